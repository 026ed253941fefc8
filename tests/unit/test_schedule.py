"""When a source steps, stores and draws: equal to the same things done in turn, whatever a thread's timing is."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.cuda_graph_emulator import Emulator
from tests.support.schedule_reference import (
    CONFIG,
    DeferredExecutor,
    InlineExecutor,
    ToyLearner,
    Trace,
    check_equal,
    make,
    run_in_turn,
    run_updates,
)
from uavlab.collectors.off_policy import POOL_STEPS, OffPolicyCollector
from uavlab.core.errors import DivergedError, FileError
from uavlab.core.types import leaves
from uavlab.runtime.cuda_graph import GraphedFunction
from uavlab.runtime.toggles import Toggles

UPDATES = 20  # 1 to 4 steps each after 10 at random: replay's 61 rows are overwritten, the pool is filled anew
ROUNDS = [(1, 1), (3, 1), (2, 2)]  # interval, ratio


@pytest.mark.parametrize("priorities", ["off", "mean", "max"])
@pytest.mark.parametrize(("interval", "ratio"), ROUNDS)
@pytest.mark.parametrize("prefetch", ["off", "on", "overlap"])
def test_whatever_is_done_at_once_equals_it_done_in_turn(
    prefetch: str, interval: int, ratio: int, priorities: str
) -> None:
    toggles = {"prefetch": prefetch, "interval": interval, "ratio": ratio, "priorities": priorities}
    expected = run_in_turn(Toggles(**toggles), UPDATES)
    for executor in (None, InlineExecutor(), DeferredExecutor()) if prefetch != "off" else (None,):
        check_equal(run_updates(*make(executor=executor, **toggles), UPDATES), expected)


def stale(source: OffPolicyCollector, learner: ToyLearner) -> None:
    first = learner.snapshot()
    source.snapshot = lambda: first


def live(source: OffPolicyCollector, learner: ToyLearner) -> None:
    source.snapshot = lambda: learner.policy


def stored_at_once(source: OffPolicyCollector, learner: ToyLearner) -> None:
    gather = source._collect_round

    def impatient() -> None:
        gather()
        gather_rows = source.pending.result()  # type: ignore[union-attr]
        for rows in gather_rows:
            source._add(rows)
        source.pending = None

    source._collect_round = impatient


def drawn_after_the_steps(source: OffPolicyCollector, learner: ToyLearner) -> None:
    source.prefetcher.start = lambda draw: None  # type: ignore[union-attr]


def drawn_after_the_feedback(source: OffPolicyCollector, learner: ToyLearner) -> None:
    source.feedback = lambda batch, update: source.store.feedback(batch.index, update)


def without_ratio(source: OffPolicyCollector, learner: ToyLearner) -> None:
    source.round = source.interval


def forgetful(source: OffPolicyCollector, learner: ToyLearner) -> None:
    draw = source._draw

    def draw_and_begin_anew(noise: Tensor) -> Any:
        source.turn = -1 if source.steps % 5 == 0 else source.turn
        return draw(noise)

    source._draw = draw_and_begin_anew


MUTANTS: list[tuple[Callable[[OffPolicyCollector, ToyLearner], None], dict[str, Any]]] = [
    (stale, {"prefetch": "overlap"}),
    (live, {"prefetch": "overlap"}),
    (stored_at_once, {"prefetch": "overlap"}),
    (drawn_after_the_steps, {"prefetch": "on"}),
    (drawn_after_the_feedback, {"prefetch": "on", "priorities": "max"}),
    (without_ratio, {"interval": 2, "ratio": 2}),
    (forgetful, {"interval": 3}),
]


@pytest.mark.parametrize(("spoil", "toggles"), MUTANTS, ids=[spoil.__name__ for spoil, _ in MUTANTS])
def test_another_order_would_be_noticed(
    spoil: Callable[[OffPolicyCollector, ToyLearner], None], toggles: dict[str, Any]
) -> None:
    source, learner = make(executor=DeferredExecutor(), **toggles)
    spoil(source, learner)
    with pytest.raises(AssertionError):
        check_equal(run_updates(source, learner, UPDATES), run_in_turn(Toggles(**toggles), UPDATES))


@pytest.mark.parametrize("prefetch", ["off", "on", "overlap"])
def test_updates_per_step_do_not_depend_on_the_interval(prefetch: str) -> None:
    for interval in (1, 2, 5, 10):
        for ratio in (1, 2):
            source, learner = make(prefetch=prefetch, interval=interval, ratio=ratio)
            run_updates(source, learner, 20)
            source.tensors_to_check()  # nothing is under way any more
            assert (source.steps - 10) * ratio == 20 * CONFIG.world_steps, (interval, ratio)


def test_an_interval_that_loses_updates_would_be_counted() -> None:
    source, learner = make(interval=3)
    for _ in range(21):  # a round is cut short after every second update, as where episodes end
        source.turn %= 2
        run_updates(source, learner, 1)
    assert source.steps - 10 > 21 * CONFIG.world_steps


@pytest.mark.parametrize(
    ("toggles", "ages"),
    [
        ({}, [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"interval": 2}, [0, 0, 0, 0, 2, 2, 2, 2]),
        ({"interval": 2, "ratio": 2}, [0, 0, 0, 0]),
        ({"ratio": 2}, [0, 0, 2, 2]),
    ],
)
def test_an_interval_changes_how_old_the_policy_is_that_flies(toggles: dict[str, Any], ages: list[int]) -> None:
    source, learner = make(**toggles)
    learn, updates, versions = learner.learn, [], []

    def dated(obs: Tensor, noise: Tensor | None) -> Tensor:
        versions.append(len(updates))
        return learner.policy(obs, noise)

    learner.learn = lambda batch: updates.append(learn(batch)) or updates[-1]
    source.policy = dated
    run_updates(source, learner, 4)
    assert versions == ages  # two steps per cycle, each by the policy after so many updates


def test_steps_and_updates_overlap() -> None:
    learning = threading.Event()
    source, _ = make(prefetch="overlap")
    snapshot = source.snapshot

    def waiting() -> Any:
        policy = snapshot()  # type: ignore[misc]

        def act(obs: Tensor, noise: Tensor | None) -> Tensor:
            assert learning.wait(60), "the flight ended before the update could begin"
            return policy(obs, noise)

        return act

    source.snapshot = waiting
    source.next()  # returns while the flight waits
    learning.set()
    source.tensors_to_check()
    assert len(source.ready) == CONFIG.world_steps


Saved = tuple[dict[str, Tensor], dict[str, dict[str, Tensor]], dict[str, Tensor], Tensor]


def saved(source: OffPolicyCollector, learner: ToyLearner) -> Saved:
    state = {key: value.clone() for key, value in source.state_dict().items()}
    rows = {name: dict(cut) for name, cut in source.segments(()).items() if cut is not None}
    return state, rows, source.rng.state_dict(), learner.theta.clone()


def restored(checkpoint: Saved, fresh_replay: bool = False, **toggles: Any) -> tuple[OffPolicyCollector, ToyLearner]:
    """Bring a source that had begun something else to where another one was saved."""
    source, learner = make(**toggles)
    run_updates(source, learner, 2)
    state, rows, streams, theta = checkpoint
    source.load_state_dict(state)
    assert {k: v.shape for k, v in source.state_dict().items()} == {k: v.shape for k, v in state.items()}
    source.load_segments(None if fresh_replay else rows)
    source.rng.load_state_dict(streams)
    learner.theta.copy_(theta)
    return source, learner


FLOWS: list[dict[str, Any]] = [
    {"interval": 3, "ratio": 2},
    {"prefetch": "on", "interval": 2},
    {"prefetch": "on", "priorities": "mean"},
    {"prefetch": "overlap", "interval": 2, "ratio": 2},
    {"prefetch": "overlap", "priorities": "max"},
]


@pytest.mark.parametrize("toggles", FLOWS, ids=str)
def test_going_on_from_any_update_is_bit_exact(toggles: dict[str, Any]) -> None:
    expected, (source, learner) = run_in_turn(Toggles(**toggles), UPDATES), make(**toggles)
    each = len(expected) // UPDATES
    seen: Trace = []
    for done in range(1, UPDATES):  # saving at any time changes nothing
        seen += run_updates(source, learner, 1)
        checkpoint = saved(source, learner)
        if done < 9 or done % 4 == 0:
            check_equal(run_updates(*restored(checkpoint, **toggles), UPDATES - done), expected[done * each :])
    check_equal(seen, expected[: (UPDATES - 1) * each])


@pytest.mark.parametrize(
    ("toggles", "lost"),
    [
        ({"interval": 3}, "turn"),
        ({"prefetch": "on"}, "ahead.index"),
        ({"prefetch": "on", "priorities": "mean"}, "ahead.weight"),
        ({"prefetch": "overlap"}, "landed.reward"),
        ({"priorities": "mean"}, "store.mass"),
        ({"priorities": "mean"}, "store.largest"),
        ({"priorities": "mean"}, "store.draws"),
    ],
)
def test_a_part_of_the_state_that_is_changed_or_gone_is_noticed(toggles: dict[str, Any], lost: str) -> None:
    source, learner = make(**toggles)
    run_updates(source, learner, 4)
    checkpoint = saved(source, learner)
    expected = run_updates(source, learner, 12)
    check_equal(run_updates(*restored(checkpoint, **toggles), 12), expected)
    whole = checkpoint[0][lost]
    for changed in (whole.roll(1, -1) if whole.dim() else whole - 1, None):
        checkpoint[0].update({lost: changed} if changed is not None else {})
        if changed is None:
            del checkpoint[0][lost]
        with pytest.raises((AssertionError, FileError, KeyError)):
            check_equal(run_updates(*restored(checkpoint, **toggles), 12), expected)


def test_rows_of_a_batch_ahead_are_read_before_they_are_overwritten() -> None:
    source, learner = make(prefetch="on")
    run_updates(source, learner, 12)
    assert int(source.ring.size) == CONFIG.capacity
    checkpoint = saved(source, learner)
    expected = run_updates(source, learner, 1)
    again, twin = restored(checkpoint, prefetch="on")
    check_equal(run_updates(again, twin, 1), expected)
    late, twin = restored(checkpoint, prefetch="on")
    batch = late.prefetcher.take()  # type: ignore[union-attr]
    late._collect_round()
    rows = late.store.take(batch.index)  # type: ignore[union-attr]
    assert not torch.equal(rows.obs, dict(expected)["obs"])


@pytest.mark.parametrize("toggles", FLOWS, ids=str)
def test_without_its_rows_replay_fills_anew(toggles: dict[str, Any]) -> None:
    source, learner = make(**toggles)
    run_updates(source, learner, 7)
    again, twin = restored(saved(source, learner), fresh_replay=True, **toggles)
    assert (int(again.ring.size), again.steps, again.turn, again.ready) == (0, 0, 0, [])
    before = again.rng.state_dict()["explore.0"]
    run_updates(again, twin, 1)
    assert not torch.equal(again.rng.state_dict()["explore.0"], before)
    assert int(again.ring.size) >= CONFIG.learning_starts
    run_updates(again, twin, 7)


def test_a_number_that_is_not_finite_is_found_before_a_flight_is_stored() -> None:
    source, learner = make(prefetch="overlap")
    run_updates(source, learner, 3)
    learner.theta.fill_(torch.nan)
    source.next()  # takes off with the spoilt policy
    for ask in (source.tensors_to_check, source.state_dict, source.next):
        with pytest.raises(DivergedError, match=r"^training: action of run 0, world 0, agent 0, dimension 0 is nan"):
            ask()
    assert all(leaf.isfinite().all() for _, leaf in leaves(source.ring.rows))


def captured(source: OffPolicyCollector) -> tuple[Callable[[], Any], Emulator]:
    """Record the device's part of ``next``; the host's is done between the replays."""
    fell_back: list[str] = []
    emulator = Emulator()
    source.static = True
    source._check = lambda numbers: None  # it asks the device at once, which no graph can
    graph = GraphedFunction(source.next, fell_back.append, source.rng.generators, emulator)

    def call() -> Any:
        source.before_cycle()
        batch = graph()
        source.after_cycle()
        assert fell_back == []
        return batch

    return call, emulator


def memory(source: OffPolicyCollector) -> list[int]:
    return [leaf.data_ptr() for _, leaf in (*leaves(source.worlds), *leaves(source.pool))]


@pytest.mark.parametrize("priorities", ["off", "max"])
def test_a_captured_cycle_steps_in_place(priorities: str) -> None:
    (plain, _), (source, _) = make(priorities=priorities), make(priorities=priorities)
    call, emulator = captured(source)
    where = memory(source)
    for _ in range(30):
        check_equal(list(leaves(call().data)), list(leaves(plain.next().data)))
    assert memory(source) == where
    assert sum(tape.replays for tape in emulator.tapes) > 20
    assert source.steps == plain.steps > 2 * POOL_STEPS
    check_equal(list(source.state_dict().items()), list(plain.state_dict().items()))


def test_a_captured_cycle_that_binds_its_worlds_anew_would_be_noticed() -> None:
    (plain, _), (source, _) = make(), make()
    source.keep_static = lambda old, new: new
    call, _ = captured(source)
    same = [torch.equal(call().data.obs, plain.next().data.obs) for _ in range(30)]
    assert not all(same)
