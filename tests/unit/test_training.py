"""The loop: what happens in which order, from where to where, and that breaking off is all it takes to stop."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from uavlab.core.errors import DivergedError
from uavlab.core.protocols import CheckedTensors
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update
from uavlab.runtime.runtime import Runtime
from uavlab.training import check_state, training

ROWS = 7


class Diary:
    """A source and a learner in one that write down each call; batches are numbered."""

    host_work = ""

    def __init__(self) -> None:
        self.pages: list[Any] = []
        self.batches = 0
        self.state = torch.zeros(2)
        self.value = 0.0  # what updates return

    def before_cycle(self) -> None:
        self.pages.append(("before_cycle",))

    def after_cycle(self) -> None:
        self.pages.append(("after_cycle",))

    def next(self) -> Batch:
        self.batches += 1
        self.pages.append(("next", self.batches))
        return Batch(data=self.batches, index=torch.zeros(2, ROWS, dtype=torch.int64))

    def update_noise(self, rng: Streams, rows: int) -> float:
        self.pages.append(("noise", rows))
        return rng.uniform("noise").item()

    def update(self, batch: Batch, noise: float) -> Update:
        self.pages.append(("update", batch.data, noise))
        return Update({"batch": torch.tensor(batch.data), "loss": torch.tensor([0, self.value])})

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        return {"state": (self.state, "R")} if update is None else {"loss": (update.metrics["loss"], "R")}

    def feedback(self, batch: Batch, update: Update) -> None:
        self.pages.append(("feedback", batch.data, update.metrics["batch"].item()))


def loop(diary: Diary, start: int, updates: int, rt: Runtime | None = None) -> Iterator[tuple[int, Update]]:
    return training(diary, diary, Streams([0]), rt or Runtime(), start, updates)


def test_order_within_a_cycle() -> None:
    diary, rng = Diary(), Streams([0])
    steps = list(loop(diary, 0, 2))
    noises = [rng.uniform("noise").item() for _ in range(2)]
    assert diary.pages == [
        page
        for k in (1, 2)
        for page in (
            *(("before_cycle",), ("next", k), ("noise", ROWS)),
            *(("update", k, noises[k - 1]), ("feedback", k, k), ("after_cycle",)),
        )
    ]
    assert [update.metrics["batch"].item() for _, update in steps] == [1, 2]


@pytest.mark.parametrize(
    ("start", "updates", "numbers"), [(0, 3, [1, 2, 3]), (5, 8, [6, 7, 8]), (3, 3, []), (4, 3, [])]
)
def test_numbers_run_from_start_to_updates(start: int, updates: int, numbers: list[int]) -> None:
    diary = Diary()
    assert [number for number, _ in loop(diary, start, updates)] == numbers
    assert diary.batches == len(numbers)


def test_nothing_runs_ahead_of_the_caller() -> None:
    diary = Diary()
    steps = loop(diary, 0, 10)
    assert diary.pages == []
    for done, (number, _) in enumerate(steps, 1):
        assert number == diary.batches == done
        if done == 4:
            break
    assert diary.batches == 4  # stop is break
    assert [number for number, _ in loop(diary, 4, 6)] == [5, 6]


def test_a_bad_state_is_refused_before_anything_is_done_with_it() -> None:
    diary = Diary()
    steps = loop(diary, 5, 10)
    next(steps)
    diary.state[1] = math.nan
    with pytest.raises(DivergedError, match="training: state of run 1 is nan at update 6; expected "):
        next(steps)  # the state is that after update 6
    assert diary.batches == 1


def test_a_bad_update_is_refused_before_the_source_hears_of_it() -> None:
    diary = Diary()
    steps = loop(diary, 5, 10)
    next(steps)
    diary.value = math.inf
    with pytest.raises(DivergedError, match="training: loss of run 1 is inf at update 7; expected "):
        next(steps)
    whole = ["before_cycle", "next", "noise", "update", "feedback", "after_cycle"]
    assert [page[0] for page in diary.pages] == [*whole, *whole[:4]]


def test_a_bad_state_is_not_to_be_kept() -> None:
    learner, source = Diary(), Diary()
    check_state(source, learner, Runtime(), 3)
    for diary in (source, learner):
        learner.state, source.state = torch.zeros(2), torch.zeros(2)
        diary.state[0] = -math.inf
        with pytest.raises(DivergedError, match="training: state of run 0 is -inf at update 3; expected "):
            check_state(source, learner, Runtime(), 3)


def test_the_cycle_is_wrapped_once() -> None:
    wrapped, cycles = [], []

    class Counting(Runtime):
        def cycle(self, fn: Callable, generators: Callable, host_work: str = "") -> Callable:  # type: ignore[override]
            wrapped.append(fn)

            def cycle(*args: Any) -> Any:
                cycles.append(1)
                return fn(*args)

            return cycle

    list(loop(Diary(), 0, 5, Counting()))
    assert (len(wrapped), len(cycles)) == (1, 5)
