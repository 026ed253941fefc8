"""Autoreset on counting worlds, whose numbers encode world, start and step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.core.types import EnvSpec, LiveTransition, Metric, Transition, leaves, tensors, tree_map
from uavlab.envs import autoreset
from uavlab.envs.autoreset import Pool, Worlds, advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower


@tensors
class Count:
    """``name`` is the noise of a start; ``end`` the step at which its task ends."""

    name: Tensor
    end: Tensor
    step: Tensor


@dataclass(frozen=True)
class Counting:
    """One agent that sees 1000 x name + step; the noise of a start is (name, end)."""

    horizon: int = 4

    metrics = (Metric("steps", "sum"),)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, 1, 1, self.horizon, 1.0, 2, 0, (0,))

    def initial(self, noise: Tensor) -> Count:
        return Count(name=noise[:, 0], end=noise[:, 1].long(), step=torch.zeros_like(noise[:, 1], dtype=torch.int64))

    def transition(self, state: Count, action: Tensor, noise: Tensor) -> Count:
        return Count(name=state.name, end=state.end, step=state.step + 1)

    def observe(self, state: Count) -> Tensor:
        return (1000 * state.name + state.step).view(-1, 1, 1)

    def reward(self, state: Count, action: Tensor, after: Count) -> Tensor:
        return (10 * state.step + after.step).view(-1, 1).to(action.dtype)

    def terminated(self, state: Count) -> Tensor:
        return (state.step >= state.end)[:, None]

    def measure(self, state: Count, action: Tensor, after: Count) -> dict[str, Tensor]:
        return {"steps": torch.ones_like(state.name)}


ENV = Counting()
ACTION, NOTHING = torch.zeros(3, 1, 1), torch.zeros(3, 0)


def begin(ends: tuple[int, ...], depth: int = 2) -> tuple[Worlds, Pool]:
    """Start worlds 1, 2, 3; spare d of world b has the name 10 d + b and does not end by itself."""
    noise = torch.tensor([[b + 1.0, end] for b, end in enumerate(ends)])
    spare = torch.tensor([[[10.0 * (d + 1) + b + 1, 99.0] for b in range(3)] for d in range(depth)])
    return start_worlds(ENV, noise), make_pool(ENV, spare)


def fly(worlds: Worlds, pool: Pool, steps: int, move: Callable = advance) -> tuple[Worlds, list[Transition]]:
    rows = []
    for _ in range(steps):
        worlds, row = move(ENV, worlds, ACTION, NOTHING, pool)
        rows.append(row)
    return worlds, rows


@dataclass(frozen=True)
class Pair(Counting):
    """Two agents, of which the second ends one step before the world."""

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, agents=2, groups=(0, 0), deaths=True)

    def observe(self, state: Count) -> Tensor:
        return super().observe(state).expand(-1, 2, -1)

    def reward(self, state: Count, action: Tensor, after: Count) -> Tensor:
        return super().reward(state, action, after).expand(-1, 2)

    def terminated(self, state: Count) -> Tensor:
        return torch.stack((state.step >= state.end, state.step >= state.end - 1), -1)


def test_agents_live_until_the_step_of_their_end_and_again_in_the_next_world() -> None:
    """World 1 ends after 3 steps, its second agent after 2; world 2 is truncated after 4, where no agent ended."""
    env, noise = Pair(), torch.tensor([[1.0, 3.0], [2.0, 99.0]])
    worlds, pool = start_worlds(env, noise, deaths=True), make_pool(env, torch.tensor([[[7.0, 3.0], [8.0, 99.0]]]))
    lived, ends = [], []
    for _ in range(6):
        worlds, row = advance(env, worlds, torch.zeros(2, 2, 1), torch.zeros(2, 0), pool)
        assert isinstance(row, LiveTransition)
        lived.append(row.live.int().tolist())
        ends.append(row.terminated[0].int().tolist())
    assert ends == [[0, 0], [0, 1], [1, 1], [0, 0], [0, 1], [1, 1]]
    assert [first for first, _ in lived] == [[1, 1], [1, 1], [1, 0], [1, 1], [1, 1], [1, 0]]
    assert [second for _, second in lived] == [[1, 1]] * 6


def test_worlds_without_deaths_keep_no_marks() -> None:
    worlds, rows = fly(*begin((2, 99, 99)), steps=1)
    assert type(worlds) is Worlds
    assert type(rows[0]) is Transition


def check_record(move: Callable = advance) -> None:
    worlds, rows = fly(*begin((2, 99, 99)), steps=2, move=move)
    assert rows[1].obs.flatten().tolist() == [1001, 2001, 3001]
    assert rows[1].next_obs.flatten().tolist() == [1002, 2002, 3002]  # the true successor of world 1, not 11000
    assert rows[1].reward.flatten().tolist() == [12, 12, 12]  # 10 x 1 + 2
    assert worlds.obs.flatten().tolist() == [11000, 2002, 3002]
    assert worlds.state.step.tolist() == [0, 2, 2]
    assert worlds.replaced.tolist() == [1, 0, 0]


def test_record_is_taken_before_the_reset() -> None:
    check_record()


def test_record_after_the_reset_would_be_noticed() -> None:
    def late(*args: Any) -> tuple[Worlds, Transition]:
        worlds, row = advance(*args)
        return worlds, replace(row, next_obs=worlds.obs)

    with pytest.raises(AssertionError, match="11000"):
        check_record(late)


def test_time_limit_truncates_and_a_task_end_terminates() -> None:
    _, rows = fly(*begin((4, 99, 3)), steps=4)  # world 1 ends at the horizon itself: its task ended
    flags = [(r.terminated.flatten().tolist(), r.truncated.tolist()) for r in rows]
    assert flags[1] == ([False] * 3, [False] * 3)
    assert flags[2] == ([False, False, True], [False] * 3)
    assert flags[3] == ([True, False, False], [False, True, False])


def test_each_world_takes_its_own_spares_in_turn() -> None:
    worlds, _ = fly(*begin((1, 99, 1)), steps=1)
    assert worlds.state.name.tolist() == [11, 2, 13]
    worlds, _ = fly(worlds, begin((1, 99, 1))[1], steps=4)  # spares 11 and 13 live to the horizon, 2 since step 0
    assert worlds.state.name.tolist() == [21, 12, 23]
    worlds, _ = fly(worlds, begin((1, 99, 1))[1], steps=4)
    assert worlds.state.name.tolist() == [11, 22, 13]  # depth 2: round again
    assert worlds.replaced.tolist() == [3, 2, 3]


def test_no_two_worlds_share_an_entry() -> None:
    count, depth = 5, 3
    noise = torch.stack((torch.arange(count * depth).float(), torch.ones(count * depth)), -1)
    pool = make_pool(ENV, noise.view(depth, count, 2))
    worlds = start_worlds(ENV, torch.ones(count, 2))
    seen: list[float] = []
    for _ in range(depth):
        worlds, _ = advance(ENV, worlds, torch.zeros(count, 1, 1), torch.zeros(count, 0), pool)
        seen += worlds.state.name.tolist()
    assert sorted(seen) == list(range(count * depth))


def test_an_agent_that_ends_alone_does_not_end_the_world() -> None:
    class Pair(Counting):
        @property
        def spec(self) -> EnvSpec:
            return EnvSpec(2, 1, 1, 9, 1.0, 2, 0, (0, 0))

        def observe(self, state: Count) -> Tensor:
            return super().observe(state).expand(-1, 2, 1)

        def reward(self, state: Count, action: Tensor, after: Count) -> Tensor:
            return super().reward(state, action, after).expand(-1, 2)

        def terminated(self, state: Count) -> Tensor:
            return torch.stack((state.step >= 1, state.step >= 2), 1)

    env = Pair()
    worlds, pool = start_worlds(env, torch.tensor([[1.0, 0.0]])), make_pool(env, torch.tensor([[[7.0, 0.0]]]))
    worlds, row = advance(env, worlds, torch.zeros(1, 2, 1), torch.zeros(1, 0), pool)
    assert row.terminated.tolist() == [[True, False]]
    assert worlds.state.name.tolist() == [1]
    worlds, row = advance(env, worlds, torch.zeros(1, 2, 1), torch.zeros(1, 0), pool)
    assert row.terminated.tolist() == [[True, True]]
    assert worlds.state.name.tolist() == [7]


def test_worlds_are_independent_of_their_neighbours() -> None:
    env, steps = LeaderFollower(followers=2, obstacles=2, obstacle_speed=5.0, horizon=20), 60
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    count, depth, k = 4, 2, env.spec.initial_noise
    noise, spare, actions = rand(count, k), rand(depth, count, k), 2 * rand(steps, count, 3, 2) - 1

    def flight(chosen: slice) -> list[Transition]:
        worlds, pool = start_worlds(env, noise[chosen]), make_pool(env, spare[:, chosen])
        nothing = noise[chosen, :0]
        rows = []
        for action in actions:
            worlds, row = advance(env, worlds, action[chosen], nothing, pool)
            rows.append(row)
        return rows

    together = flight(slice(None))
    for b in range(count):
        for all_rows, alone in zip(together, flight(slice(b, b + 1)), strict=True):
            for (name, x), (_, y) in zip(leaves(all_rows), leaves(alone), strict=True):
                torch.testing.assert_close(x[b : b + 1], y, rtol=1e-12, atol=1e-12, msg=f"{name} of world {b}")


@dataclass(frozen=True)
class Costly(Counting):
    """Counting worlds that start where they are needed, and that the environment truncates after two steps."""

    def initial_where(self, noise: Tensor, needed: Tensor) -> Count:
        STARTED.append(needed.tolist())
        return tree_map(lambda leaf: leaf * needed, self.initial(noise))

    def truncated(self, state: Count) -> Tensor:
        return state.step >= 2


STARTED: list[list[bool]] = []


def test_worlds_that_are_costly_to_start_wait_as_noise() -> None:
    env, noise = Costly(), torch.tensor([[[1.0, 9.0], [2.0, 1.0], [3.0, 9.0]], [[4.0, 9.0], [5.0, 9.0], [6.0, 9.0]]])
    worlds = start_worlds(env, noise[0])
    pool = make_pool(env, noise, worlds)
    STARTED.clear()
    assert pool.obs is None
    assert torch.equal(pool.state, noise.flatten(0, 1))
    worlds, row = advance(env, worlds, ACTION, NOTHING, pool)  # the second one ends
    assert STARTED == [[False, True, False]]
    assert worlds.state.name.tolist() == [1, 2, 3]
    assert worlds.obs.flatten().tolist() == [1001, 2000, 3001]
    assert row.truncated.tolist() == [False] * 3
    worlds, row = advance(env, worlds, ACTION, NOTHING, pool)
    assert STARTED[1:] == [[True, True, True]]
    assert row.truncated.tolist() == [True, False, True]  # by the environment, before the horizon of 4
    assert row.terminated.flatten().tolist() == [False, True, False]
    assert worlds.state.name.tolist() == [1, 5, 3]


def test_new_worlds_that_are_not_started_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    env, noise = Costly(), torch.tensor([[[1.0, 9.0], [2.0, 1.0], [3.0, 9.0]]])
    worlds = start_worlds(env, noise[0])
    monkeypatch.setattr(autoreset, "take_spare", lambda *args: take(*args[:3], args[3] & False))
    worlds, _ = advance(env, worlds, ACTION, NOTHING, make_pool(env, noise, worlds))
    assert worlds.state.name.tolist() != [1, 2, 3]


take = autoreset.take_spare
