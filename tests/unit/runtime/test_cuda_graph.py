"""Replays equal direct calls bit for bit, and each mistake that breaks a graph is detected, on any machine."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.cuda_graph_emulator import Emulator
from tests.support.fixtures_config import tiny
from uavlab.collectors.off_policy import POOL_STEPS, OffPolicyCollector
from uavlab.core.errors import DivergedError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update
from uavlab.experiment.run import Run
from uavlab.learners.masac.masac import MASAC, UpdateNoise
from uavlab.runtime.cuda_graph import MAX_CAPTURES, WARM_UP, GraphCapture, GraphedFunction, clone_tree, tree_tensors
from uavlab.runtime.finite_check import DeferredCheck

UPDATES, FEW = 50, 12
CPU = torch.device("cpu")


class Sum:
    """A minimal learner: sums its inputs in place, and returns the sum plus noise."""

    def __init__(self) -> None:
        self.rng, self.total = Streams([0]), torch.zeros(3)
        self.rng.uniform("elsewhere")

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        self.total.add_(x)
        return {"total": self.total + self.rng.uniform("noise", 3)[0]}

    def generators(self) -> list[Generator]:
        return list(self.rng._generators.values())


def captured(fn: Callable, generators: Callable = tuple) -> tuple[GraphedFunction, Emulator, list[str]]:
    emulator, reasons = Emulator(), []
    return GraphedFunction(fn, reasons.append, generators, emulator), emulator, reasons


def test_the_first_calls_count_and_later_ones_are_replays() -> None:
    plain, learner = Sum(), Sum()
    fast, emulator, reasons = captured(learner, learner.generators)
    results = []
    for k in range(10):
        x = torch.tensor([k, 0.5 * k, -k])  # another tensor each time
        results.append(fast(x)["total"])
        assert torch.equal(results[-1], plain(x)["total"])
    assert (emulator.plain, reasons) == (WARM_UP, [])
    assert [tape.replays for tape in emulator.tapes] == [10 - WARM_UP]
    assert torch.equal(learner.total, plain.total)
    assert all(result is results[-1] for result in results[WARM_UP:])  # valid until the next call


class Counted(TorchDispatchMode):
    """The operators that are called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.names = [*getattr(self, "names", []), func.__name__]
        return func(*args, **(kwargs or {}))


def test_arguments_are_copied_by_one_operator() -> None:
    """Views of one buffer too, as a batch from replay is, and others of several types."""
    words = torch.arange(24).view(4, 6)
    given = {"a": words[:, :2], "b": words[:, 2:3].view(torch.float64), "c": torch.ones(3), "d": words[0] > 2}
    graph = GraphCapture(inputs=list(tree_tensors(clone_tree(given))))
    for each in graph.inputs:
        each.zero_()
    with Counted() as counted:
        graph.run(list(given.values()))
    assert counted.names == ["_foreach_copy_.default"]
    assert all(map(torch.equal, graph.inputs, given.values()))
    assert GraphCapture(result=3).run([]) == 3


def test_only_generators_that_are_drawn_from_are_registered() -> None:
    learner = Sum()
    fast, emulator, _ = captured(learner, learner.generators)
    for _ in range(WARM_UP + 1):
        fast(torch.ones(3))
    assert len(learner.generators()) == 2
    assert emulator.tapes[0].generators == [torch.default_generator, learner.rng._generator(0, "noise")]


def test_generators_that_were_replaced_begin_a_new_graph() -> None:
    plain, learner = Sum(), Sum()
    fast, emulator, reasons = captured(learner, learner.generators)
    for k in range(12):
        if k == 6:
            for rng in (plain.rng, learner.rng):
                rng.reopen(7)
                rng.uniform("noise")
        assert torch.equal(fast(torch.ones(3))["total"], plain(torch.ones(3))["total"])
    assert [tape.replays for tape in emulator.tapes] == [3, 3]
    assert reasons == []


def test_two_forms_in_turn_have_a_graph_each() -> None:
    """As minibatches of two sizes; with one graph at a time, all would be recorded again and again, and then none."""
    plain, learner = Sum(), Sum()
    fast, emulator, reasons = captured(learner, learner.generators)
    for k in range(20):
        x = torch.full(((3,), (1,))[k % 2], 1.5**k)
        assert torch.equal(fast(x)["total"], plain(x)["total"])
    assert reasons == []
    assert [tape.replays for tape in emulator.tapes] == [10 - WARM_UP] * 2


def test_arguments_of_another_form_begin_a_new_graph_but_not_for_ever() -> None:
    plain, learner = Sum(), Sum()
    fast, emulator, reasons = captured(learner, learner.generators)
    forms = [(shape, dtype) for shape in ((3,), (1,)) for dtype in (torch.float32, torch.float64, torch.int64)]
    for k, (shape, dtype) in enumerate(forms):
        for i in range(WARM_UP + 2):
            x = torch.full(shape, 2**k + i, dtype=dtype)
            assert torch.equal(fast(x)["total"], plain(x)["total"])
    assert reasons == [f"arguments changed their form after each of {MAX_CAPTURES} captures"]
    assert [tape.replays for tape in emulator.tapes] == [2] * MAX_CAPTURES


def test_a_recording_that_fails_leaves_everything_as_it_was() -> None:
    def asks(learner: Sum) -> Callable:
        def call(x: Tensor) -> Any:
            result = learner(x)
            learner.total.mul_(0.5)
            if learner.total.sum() > 0:  # waits for the value
                learner.total.neg_()
            return result

        return call

    plain, learner = Sum(), Sum()
    fast, emulator, reasons = captured(asks(learner), learner.generators)
    for k in range(10):
        x = torch.full((3,), 0.7**k)
        assert torch.equal(fast(x)["total"], asks(plain)(x)["total"])
    assert torch.equal(learner.total, plain.total)
    (reason,) = reasons
    assert reason.startswith("RuntimeError: ")
    assert "waits for the device" in reason
    assert [tape.replays for tape in emulator.tapes] == [0]


def test_an_error_of_the_function_itself_is_raised_as_it_is() -> None:
    calls = []

    def fails(x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) > WARM_UP:
            raise KeyError("missing")
        return x

    fast, _, reasons = captured(fails)
    for _ in range(WARM_UP):
        fast(torch.ones(1))
    with pytest.raises(KeyError, match="missing"):
        fast(torch.ones(1))
    assert reasons == ["KeyError: 'missing'"]


def test_all_plain_calls_and_the_recorded_one_see_one_layout() -> None:
    """Compiled code is specialised on one layout, and cannot be compiled again during a capture."""
    seen = []

    def looks(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return x + 1

    fast, _, reasons = captured(looks)
    for start in range(WARM_UP + 2):
        wide = torch.arange(start, start + 12.0).view(2, 6)
        assert fast(wide[:, ::2]).tolist() == (wide[:, ::2] + 1).tolist()
    assert seen == [(3, 1)] * (WARM_UP + 1)
    assert reasons == []


def test_trees_keep_their_structure_and_nothing_but_tensors_is_taken() -> None:
    x = torch.arange(6.0).view(2, 3)
    batch = Batch(data={"a": (x, [x[:, :1].expand(2, 3)])}, index=x.long())
    copy = clone_tree((batch, None))
    assert isinstance(copy[0], Batch)
    assert copy[0].weight is copy[1] is None
    assert [t.tolist() for t in tree_tensors(copy)] == [t.tolist() for t in tree_tensors(batch)]
    assert [t.stride() for t in tree_tensors(copy)] == [(3, 1)] * 3
    assert not any(a is b for a, b in zip(tree_tensors(copy), tree_tensors(batch), strict=True))
    fast, emulator, reasons = captured(lambda x, rate: x * rate)
    assert [fast(torch.ones(1), rate).item() for rate in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 5]
    assert (reasons, emulator.tapes) == (["TypeError: an argument holds 4, expected tensors"], [])


# The update of the batched learner

Learn = Callable[[Batch, UpdateNoise], Update]
Make = Callable[[MASAC], Learn]


def sound(learner: MASAC) -> Learn:
    return learner._update


def binds_anew(learner: MASAC) -> Learn:
    def update(batch: Batch, noise: UpdateNoise) -> Update:
        result = learner._update(batch, noise)
        learner.target = 0.99 * learner.target
        return result

    return update


def counts(learner: MASAC) -> Learn:
    calls: list[None] = []

    def update(batch: Batch, noise: UpdateNoise) -> Update:
        calls.append(None)
        if len(calls) % 2:
            learner.target.mul_(0.99)
        return learner._update(batch, noise)

    return update


def branches(learner: MASAC) -> Learn:
    def update(batch: Batch, noise: UpdateNoise) -> Update:
        result = learner._update(batch, noise)
        if result.metrics["critic_loss"].mean() > 1:
            learner.target.mul_(0.99)
        return result

    return update


def brings_numbers(learner: MASAC) -> Learn:
    def update(batch: Batch, noise: UpdateNoise) -> Update:
        learner.target.mul_(torch.tensor([0.99]))
        return learner._update(batch, noise)

    return update


def loads(learner: MASAC, update: Learn) -> None:
    learner.load_state_dict({name: 0.9 * value for name, value in learner.state_dict().items()})


def moves_moments(learner: MASAC, update: Learn) -> None:
    """Move Adam's moments to other memory, as loading a state might."""
    for part in (learner.actor, learner.critic, learner.temperature):
        for adam in part.adams:
            for state in adam.state.values():
                state.update({name: value.clone() for name, value in state.items()})


def moves_and_resets(learner: MASAC, update: GraphedFunction) -> None:
    moves_moments(learner, update)
    update.reset()


def run_updates(
    make: Make,
    graph: bool,
    updates: int = FEW,
    between: Callable[[MASAC, Any], None] | None = None,
    **changes: Any,
) -> tuple[Any, list[str]]:
    """Run updates, directly or by a graph; return the state with all metrics, and the reasons of fallbacks."""
    run = Run(tiny(**changes))
    update, emulator, reasons = make(run.learner), Emulator(), []
    if graph:
        update = GraphedFunction(update, reasons.append, backend=emulator)
    seen = []
    for k in range(updates):
        if k == updates // 2 and between:
            between(run.learner, update)
        batch = run.source.next()
        result = update(batch, run.learner.update_noise(run.rng, batch.index.shape[1]))
        seen.append({name: value.clone() for name, value in result.metrics.items()})
    replays = sum(tape.replays for tape in emulator.tapes)
    assert replays == (0 if reasons or not graph else updates - emulator.plain)
    return [run.learner.state_dict(), *seen], reasons


@cache
def plain_updates() -> Any:
    return run_updates(sound, graph=False)[0]


def equal(one: Any, other: Any) -> bool:
    """Compare lists of dictionaries of tensors, bit by bit."""
    pairs = [(a.keys() == b.keys(), a, b) for a, b in zip(one, other, strict=True)]
    return all(same and all(torch.equal(a[k], b[k]) for k in a) for same, a, b in pairs)


def test_recorded_updates_equal_plain_ones(proof: Callable) -> None:
    plain, _ = run_updates(sound, graph=False, updates=UPDATES)
    fast, reasons = run_updates(sound, graph=True, updates=UPDATES)
    assert reasons == []
    assert equal(plain, fast)
    proof("graph of the update (emulated)", f"{UPDATES} updates, equal bits")


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": 2},
        {"update": "vmap"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"recompute": "on"},
        {"micro_batches": 2},
    ],
    ids=str,
)
def test_recorded_updates_equal_plain_ones_with_other_toggles(changes: dict[str, Any]) -> None:
    plain, _ = run_updates(sound, graph=False, **changes)
    fast, reasons = run_updates(sound, graph=True, **changes)
    assert reasons == []
    assert equal(plain, fast)


@pytest.mark.parametrize("make", [binds_anew, counts])
def test_state_that_a_graph_does_not_see_is_noticed(make: Make) -> None:
    fast, reasons = run_updates(make, graph=True)
    assert reasons == []  # nothing refuses it
    assert not equal(run_updates(make, graph=False)[0], fast)


def test_arguments_that_are_not_copied_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: GraphCapture, arguments: list[Tensor]) -> Any:
        self.replay()
        return self.result

    monkeypatch.setattr(GraphCapture, "run", run)
    assert not equal(plain_updates(), run_updates(sound, graph=True)[0])


@pytest.mark.parametrize("make", [branches, brings_numbers])
def test_what_cannot_be_recorded_falls_back_with_the_same_numbers(make: Make) -> None:
    fast, reasons = run_updates(make, graph=True)
    assert len(reasons) == 1
    assert "waits for the device" in reasons[0]
    assert equal(run_updates(make, graph=False)[0], fast)


def test_a_state_loaded_later_is_what_the_graph_goes_on_with() -> None:
    plain, _ = run_updates(sound, graph=False, between=loads)
    assert equal(plain, run_updates(sound, graph=True, between=loads)[0])
    assert not equal(plain, plain_updates())


def test_state_that_moved_is_noticed_and_forgetting_the_graph_is_the_cure() -> None:
    assert not equal(plain_updates(), run_updates(sound, graph=True, between=moves_moments)[0])
    assert equal(plain_updates(), run_updates(sound, graph=True, between=moves_and_resets)[0])


# The whole cycle


def run_cycles(
    graph: bool,
    updates: int = FEW,
    static: bool = True,
    known: bool = True,
    spoil: Callable[[OffPolicyCollector], None] | None = None,
    **changes: Any,
) -> tuple[Any, list[str]]:
    """Run whole cycles, with a ``static`` source as graphs require; return the state of the run afterwards."""
    run = Run(tiny(**changes))
    source, learner, check = run.source, run.learner, DeferredCheck(CPU)
    source._check, source.static = check.record, static
    if spoil:
        spoil(source)
    emulator, reasons = Emulator(), []

    def cycle() -> Update:
        check.next_update()
        batch = source.next()
        update = learner._update(batch, learner.update_noise(run.rng, batch.index.shape[1]))
        check.record(learner.tensors_to_check(update))
        check.record(learner.tensors_to_check())
        source.feedback(batch, update)
        return update

    def generators() -> list[Generator]:
        return list(run.rng._generators.values()) if known else []

    fast = GraphedFunction(cycle, reasons.append, generators, emulator) if graph else cycle
    source.before_cycle()
    seen = []
    for k in range(updates):
        seen.append({name: value.clone() for name, value in fast().metrics.items()})
        if static:
            source.count(source.config.world_steps)
        check.read(k + 1)
    replays = sum(tape.replays for tape in emulator.tapes)
    assert replays == (updates - WARM_UP if graph and not reasons else 0)
    return [learner.state_dict(), source.state_dict(), source.rows(), run.rng.state_dict(), *seen], reasons


@pytest.mark.parametrize("changes", [{}, {"world_steps": 2, "runs": 2}, {"priorities": "mean"}], ids=str)
def test_recorded_cycles_equal_plain_ones(changes: dict[str, Any], proof: Callable) -> None:
    plain, _ = run_cycles(graph=False, static=False, updates=UPDATES, **changes)
    assert plain[1]["steps"] > POOL_STEPS  # the pool was refilled
    fast, reasons = run_cycles(graph=True, updates=UPDATES, **changes)
    assert reasons == []
    assert equal(plain, fast)
    proof("graph of the cycle (emulated)", f"{UPDATES} cycles, equal bits")


def moves_worlds(source: OffPolicyCollector) -> None:
    source.keep_static = lambda old, new: new


def test_worlds_that_move_are_noticed() -> None:
    fast, reasons = run_cycles(graph=True, spoil=moves_worlds)
    assert reasons == []
    assert not equal(run_cycles(graph=False)[0], fast)
    assert equal(run_cycles(graph=False)[0], run_cycles(graph=False, spoil=moves_worlds)[0])


def test_generators_that_the_graph_does_not_know_are_refused() -> None:
    fast, reasons = run_cycles(graph=True, known=False)
    assert len(reasons) == 1
    assert "generator that is not in capture mode" in reasons[0]
    assert equal(run_cycles(graph=False)[0], fast)


def test_a_check_may_be_part_of_a_graph() -> None:
    check = DeferredCheck(CPU)

    def update(x: Tensor) -> Tensor:
        check.next_update()
        check.record({"loss": (x, "R")})
        return x * 2

    fast, emulator, reasons = captured(update)
    for k in range(1, 11):
        fast(torch.tensor([1.0, math.nan if k == 7 else k]))
        if k < 7:
            check.read(k)
    assert (reasons, emulator.tapes[0].replays) == ([], 7)
    with pytest.raises(DivergedError, match=r"^training: loss is .* \(checked 3 updates later\) at update 7;"):
        check.read(10)


# The emulator


def test_recording_executes_nothing_and_a_replay_does() -> None:
    x, y, generator = torch.ones(3), [torch.zeros(2), torch.zeros(3)], Generator()
    state = generator.get_state()

    def work() -> tuple[Tensor, ...]:
        torch._foreach_add_(y, 1)
        torch.add(y[1], x, out=x)
        x[1:].mul_(torch.rand(2, generator=generator))
        result = x + 1
        return result, result[1:].view(2, 1)

    (result, view), replay = Emulator().capture(work, [generator])
    assert x.tolist() == [1, 1, 1]
    assert [part.tolist() for part in y] == [[0, 0], [0, 0, 0]]
    assert torch.equal(generator.get_state(), state)
    assert result.isnan().all()
    assert view.isnan().all()
    draws = torch.rand(2, 2, generator=generator.clone_state())
    for k in range(2):
        before = x.clone()
        replay()
        assert [part.tolist() for part in y] == [[k + 1] * 2, [k + 1] * 3]
        assert x[0] == before[0] + k + 1
        assert torch.equal(x[1:], (before[1:] + k + 1) * draws[k])
        assert torch.equal(result, x + 1)
        assert torch.equal(view, result[1:, None])


def waiting(x: Tensor) -> Iterator[Callable[[], Any]]:
    mask, ring = x > 0, torch.zeros(3)
    yield from (x.sum().item, lambda: bool(mask.any()), lambda: float(x[0]))
    yield from (lambda: x.tolist(), lambda: x.cpu(), lambda: x.numpy())
    yield from (x.nonzero, lambda: x[mask], lambda: ring.__setitem__(mask, 1.0), lambda: x.masked_select(mask))
    yield from (lambda: torch.equal(x, ring), lambda: torch.tensor([1.0]) + x, x.long().unique)
    yield lambda: x.repeat_interleave(x.long())


@pytest.mark.parametrize("case", range(14))
def test_what_makes_the_host_wait_is_refused(case: int) -> None:
    asks = list(waiting(torch.ones(3)))
    assert len(asks) == 14
    asks[case]()
    with pytest.raises(RuntimeError, match="waits for the device: operation not permitted when stream is capturing"):
        Emulator().capture(asks[case], [])
