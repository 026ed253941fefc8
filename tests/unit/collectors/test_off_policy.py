"""Replay's source: every row a real transition, runs alone or together the same, stopping and going on the same."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import tiny
from tests.support.plain_collector import collector
from uavlab.collectors.off_policy import POOL_STEPS, OffPolicyCollector, ReplayConfig
from uavlab.core.errors import FileError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Transition, Update, leaves, tree_map
from uavlab.envs.autoreset import Worlds, advance
from uavlab.envs.leader_follower.env import LeaderFollower, State
from uavlab.envs.pursuit import MOVES, Pursuit
from uavlab.evaluation import random_policy
from uavlab.experiment.run import Run
from uavlab.replay.prioritized import ByPriority
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

ENV = LeaderFollower(sight=1, horizon=12)  # with one obstacle in sight, observations tell the whole state but its age
CONFIG = ReplayConfig(worlds=3, world_steps=2, batch=5, capacity=400, learning_starts=30)


def policy(obs: Tensor, noise: Tensor | None) -> Tensor:
    """Act on both inputs, element by element, so that equal numbers give equal bits in any batch."""
    assert noise is not None
    return torch.tanh(noise + obs[..., :2])


def make(
    seeds: tuple[int, ...] = (3, 8), config: ReplayConfig = CONFIG, act: Callable = policy, prefetch: str = "off"
) -> OffPolicyCollector:
    rt = Runtime(requested=Toggles(prefetch=prefetch))
    return collector(ENV, act, config, Streams(seeds, dtype=torch.float64), rt)


def recall(obs: Tensor) -> State:
    """Read the state out of observations (B A O), in px, px/s and rad."""
    pos, obstacle = 1000 * obs[..., :2], 1000 * (obs[:, :1, :2] + obs[:, :1, 7:])
    goal = 1000 * obs[:, 0, 4:6]
    return State(
        pos=pos, speed=30 * obs[..., 2], heading=obs[..., 3] * 360 / 57.3, action=torch.zeros_like(pos), goal=goal,
        obstacle=obstacle, drift=torch.zeros_like(obstacle), step=torch.zeros(len(obs), dtype=torch.int64),
        gap=torch.hypot(*(pos[:, 1:] - pos[:, :1]).unbind(-1)), to_goal=torch.hypot(*(pos - goal[:, None]).unbind(-1)),
        clearance=torch.hypot(*(pos - obstacle).unbind(-1)),
    )  # fmt: skip


def check_rows(source: OffPolicyCollector, calls: int) -> tuple[int, int]:
    """Compute every stored row again from its own observation and action; count task ends and time limits.

    Raises:
        AssertionError: A row is not a transition of the environment, or not the successor of the row before.
    """
    for _ in range(calls):
        source.next()
    count, size = CONFIG.worlds, int(source.ring.size)
    assert size == source.steps * count < CONFIG.capacity  # nothing was overwritten: slot t W + w is step t of world w
    rows: Transition = tree_map(lambda leaf: leaf[:, :size].flatten(0, 1), source.ring.rows)
    before = recall(rows.obs)
    after = ENV.transition(before, rows.action, rows.action.new_zeros(len(rows.obs), 0))
    close(ENV.observe(after), rows.next_obs)
    close(ENV.reward(before, rows.action, after), rows.reward)
    assert torch.equal(ENV.terminated(after), rows.terminated)
    age = torch.zeros(source.runs, count, dtype=torch.int64)
    table: Transition = tree_map(lambda leaf: leaf[:, :size].unflatten(1, (-1, count)), source.ring.rows)
    for t in range(source.steps - 1):
        age += 1
        ended, late = table.terminated[:, t].all(-1), age >= ENV.horizon
        assert torch.equal(table.truncated[:, t], late & ~ended)
        goes_on = ~(ended | late)
        assert torch.equal(table.obs[:, t + 1][goes_on], table.next_obs[:, t][goes_on])
        start = 1000 * table.obs[:, t + 1][~goes_on][..., :2]
        close(start, start.round())  # starts are whole numbers of px ...
        assert ((start[..., 1] > 499.9) & (start[..., 1] < 550.1)).all()  # ... in the published band
        age[~goes_on] = 0
    return int(rows.terminated.all(-1).sum()), int(rows.truncated.sum())


def test_replay_holds_moves_and_masks() -> None:
    """Every UAV is one cell further in the direction of its move; rows with other moves would be noticed."""
    env = Pursuit(pursuers=2, evaders=1, side=4, obstacles=3, horizon=6)
    source = collector(env, random_policy, CONFIG, Streams((3, 8), dtype=torch.float64), Runtime())
    for _ in range(20):
        batch = source.next()
    assert batch.data.obs.legal.dtype == torch.bool
    rows = tree_map(lambda leaf: leaf[:, : int(source.ring.size)], source.ring.rows)
    assert rows.action.dtype == torch.int64
    assert rows.obs.legal.gather(-1, rows.action[..., None]).all()
    assert not rows.obs.legal.all()
    for move in range(env.spec.choices):
        assert (rows.action[:, : CONFIG.learning_starts] == move).any()  # at random
        assert (rows.action[:, CONFIG.learning_starts :] == move).any()  # by the policy
    moved = env.side * (rows.next_obs.features - rows.obs.features)[..., :2]
    expected = torch.tensor(MOVES, dtype=torch.float64)
    torch.testing.assert_close(moved, expected[rows.action])
    assert not torch.allclose(moved, expected[rows.action.roll(1, 1)])


MORTAL = Pursuit(pursuers=2, evaders=2, side=3, obstacles=0, horizon=7)


def live_by_hand(rows: Transition) -> Tensor:
    """Return which agents had not ended before each row, from the ends of the rows of its world before."""
    live, worlds = torch.ones_like(rows.terminated), CONFIG.worlds
    for run in range(live.shape[0]):
        for n in range(worlds, live.shape[1]):
            ends, over = rows.terminated[run, n - worlds], bool(rows.truncated[run, n - worlds])
            for agent in range(live.shape[2]):
                goes_on = bool(live[run, n - worlds, agent]) and not ends[agent]
                live[run, n, agent] = goes_on or over or bool(ends.all())
    return live


def test_replay_marks_the_rows_before_an_agents_end() -> None:
    source = collector(MORTAL, random_policy, CONFIG, Streams((3, 8), dtype=torch.float64), Runtime())
    for _ in range(25):
        batch = source.next()
    rows = tree_map(lambda leaf: leaf[:, : int(source.ring.size)], source.ring.rows)
    expected = live_by_hand(rows)
    assert 0.05 < (~expected).double().mean() < 0.5
    assert torch.equal(rows.live, expected)
    assert torch.equal(batch.data.live[0], rows.live[0, batch.index[0]])
    assert (rows.terminated | rows.live).all()  # who is not live has ended


def test_going_on_keeps_who_is_live() -> None:
    def make_mortal() -> OffPolicyCollector:
        return collector(MORTAL, random_policy, CONFIG, Streams((3, 8), dtype=torch.float64), Runtime())

    first = make_mortal()
    while first.worlds.live.all():  # type: ignore[attr-defined]
        first.next()
    state, rows, streams = saved(first)
    expected = [leaf.clone() for _ in range(9) for _, leaf in leaves(first.next().data)]
    for lost in (False, True):
        second = make_mortal()
        second.load_state_dict({**state, "worlds.live": state["worlds.live"] | lost})
        second.load_segments(rows)
        second.rng.load_state_dict(streams)
        results = [leaf for _ in range(9) for _, leaf in leaves(second.next().data)]
        assert all(map(torch.equal, results, expected)) is not lost


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_every_row_is_a_real_transition() -> None:
    ended, late = check_rows(make((3, 8, 21)), calls=50)
    assert late > 10
    assert ended > 0


def test_rows_recorded_after_the_reset_would_be_noticed() -> None:
    source = make()

    def late(*args: Any) -> tuple[Worlds, Transition]:
        worlds, row = advance(*args)
        return worlds, replace(row, next_obs=worlds.obs)

    source._advance = late
    with pytest.raises(AssertionError):
        check_rows(source, calls=20)


def test_batches_hold_the_rows_of_their_indices() -> None:
    source = make()
    for _ in range(10):
        batch = source.next()
        assert batch.index.shape == (2, 5)
        assert batch.weight is None
        for (name, drawn), (_, stored) in zip(leaves(batch.data), leaves(source.ring.rows), strict=True):
            expected = torch.stack([stored[r, batch.index[r]] for r in range(2)])
            assert torch.equal(drawn, expected), name
        source.feedback(batch, Update({}))


def batches(source: OffPolicyCollector, calls: int) -> list[tuple[str, Tensor]]:
    out = []
    for _ in range(calls):
        batch = source.next()
        out += [*leaves(batch.data), ("index", batch.index)]
    return out


def equal(a: list[tuple[str, Tensor]], b: list[tuple[str, Tensor]]) -> None:
    for (name, x), (_, y) in zip(a, b, strict=True):
        assert torch.equal(x, y), name


CALLS = 30  # 2 steps each after 10 of exploration: the pool is refilled twice, every world replaced several times


def test_runs_together_equal_runs_alone() -> None:
    seeds = (3, 8, 5)
    together = batches(make(seeds), CALLS)
    for r, seed in enumerate(seeds):
        equal([(name, leaf[r : r + 1]) for name, leaf in together], batches(make((seed,)), CALLS))


def test_runs_that_mix_would_be_noticed() -> None:
    def mixing(obs: Tensor, noise: Tensor | None) -> Tensor:
        return policy(obs.mean(0, keepdim=True).expand_as(obs), noise)

    together = batches(make((3, 8), act=mixing), 5)
    with pytest.raises(AssertionError):
        equal([(name, leaf[:1]) for name, leaf in together], batches(make((3,), act=mixing), 5))


def saved(source: OffPolicyCollector) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Copy a source's state, its rows and its streams."""
    state = {k: v.clone() for k, v in source.state_dict().items()}  # first: it waits for steps in another thread
    rows = {name: dict(cut) for name, cut in source.segments(()).items() if cut is not None}
    return state, rows, source.rng.state_dict()


@pytest.mark.parametrize("prefetch", ["off", "on", "overlap"])
def test_going_on_from_a_state_is_bit_exact(prefetch: str) -> None:
    first = make(prefetch=prefetch)
    batches(first, 8)
    state, rows, streams = saved(first)
    expected = batches(first, CALLS)
    second = make(prefetch=prefetch)
    batches(second, 3)  # whatever it did before is forgotten
    second.load_state_dict(state)
    second.load_segments(rows)
    second.rng.load_state_dict(streams)
    equal(batches(second, CALLS), expected)
    steps = [int(source.state_dict()["steps"]) for source in (first, second)]
    assert steps[0] == steps[1] > 2 * POOL_STEPS


def test_only_rows_that_are_new_are_cut() -> None:
    source = make()
    batches(source, 8)
    first = source.segments(())
    assert [rows is None for rows in first.values()] == [False]
    batches(source, 1)
    second = source.segments(first)
    assert list(second)[:1] == list(first)
    assert [rows is None for rows in second.values()] == [True, False]
    assert [len(rows["reward"][0]) for rows in second.values() if rows] == [CONFIG.world_steps * CONFIG.worlds]


def test_without_its_rows_replay_fills_anew_before_the_next_batch() -> None:
    first = make()
    batches(first, 8)
    state, _, streams = saved(first)
    second = make()
    second.load_state_dict(state)
    with pytest.raises(FileError, match=r"rows \[0, 78\) are in no segment"):
        second.load_segments({})
    second.load_segments(None)
    assert (int(second.ring.size), second.steps) == (0, 0)
    second.rng.load_state_dict(streams)
    second.next()
    assert int(second.ring.size) == CONFIG.learning_starts + CONFIG.world_steps * CONFIG.worlds


@pytest.mark.parametrize("lost", ["worlds.state.speed", "pool.obs", "reward", "steps"])
def test_a_state_with_a_part_changed_goes_on_differently(lost: str) -> None:
    first = make()
    batches(first, 8)
    state, rows, streams = saved(first)
    expected = batches(first, CALLS)
    second = make()
    changed = next(iter(rows.values())) if lost == "reward" else state
    changed[lost] = changed[lost] + 7

    def go_on() -> None:
        second.load_state_dict(state)
        second.load_segments(rows)
        second.rng.load_state_dict(streams)
        equal(batches(second, CALLS), expected)

    with pytest.raises((AssertionError, FileError)):
        go_on()


def test_first_rows_come_from_random_actions() -> None:
    asked = []

    def counted(obs: Tensor, noise: Tensor | None) -> Tensor:
        asked.append(obs.shape)
        return policy(obs, noise)

    source = make(config=replace(CONFIG, learning_starts=100), act=counted)
    assert int(source.ring.size) == 0
    source.next()
    assert asked == [(2, 3, 2, 9)] * 2  # world_steps of them
    assert source.steps == 34 + 2  # 34 x 3 worlds is the first multiple of 3 from 100 up
    explored = source.ring.rows.action[:, : 34 * 3]
    assert -1 <= explored.min() < -0.9
    assert 0.9 < explored.max() <= 1
    source.next()
    assert source.steps == 38


def test_no_two_worlds_start_alike() -> None:
    source = make(config=replace(CONFIG, worlds=20))
    for state in (source.worlds.state, source.pool.state):
        assert len(state.heading[:, 0].unique()) == len(state.heading)


@pytest.mark.parametrize("forgetful", [False, True])
def test_priorities_are_those_of_the_rows_that_were_learned(forgetful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``prefetch=on`` rows are overwritten between the draw and the update; the mutant does not notice."""
    run = Run(tiny(prefetch="on", priorities="mean", n_step=1, capacity=24, updates=30, evaluate_every=30))
    source, store = run.source, run.source.store
    feedback, counts = source.feedback, Counter[str]()
    if forgetful:
        monkeypatch.setattr(OffPolicyCollector, "_replaced", lambda self, index: None)

    def check(batch: Batch, update: Update) -> None:
        def set_priorities(index: Tensor, priority: Tensor, skip: Tensor | None = None) -> None:
            same = torch.stack(
                [(new == old).flatten(2).all(-1) for (_, new), (_, old) in zip(
                    leaves(store.take(index)), leaves(batch.data), strict=True
                ) if new.dim() > 2]
            ).all(0)  # fmt: skip
            skip = torch.zeros_like(same) if skip is None else skip
            counts.update(skipped=int(skip.sum()), wrong=int((~same & ~skip).sum()), needless=int((same & skip).sum()))
            ByPriority.set_priorities(store, index, priority, skip)

        monkeypatch.setattr(store, "set_priorities", set_priorities)
        feedback(batch, update)

    monkeypatch.setattr(source, "feedback", check)
    for _ in run.train():
        pass
    assert (counts["wrong"] > 0) == forgetful
    assert (counts["skipped"] > 0) != forgetful
    assert counts["needless"] == 0
