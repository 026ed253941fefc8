"""A batch drawn in advance: one at a time, waited for, and ordered between streams on a GPU."""

import threading
import time
import weakref
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.support.devices import DEVICES
from uavlab.core.types import Batch
from uavlab.replay.prefetch import Prefetcher

CPU = torch.device("cpu")


def batch(number: int) -> Batch:
    return Batch(data=None, index=torch.full((1, 2), number))


@pytest.mark.parametrize("threaded", [False, True])
def test_batches_come_in_order_and_once(threaded: bool) -> None:
    prefetcher, batches = Prefetcher(CPU, threaded), [batch(1), batch(2)]
    assert (prefetcher.wait(), prefetcher.take()) == (None, None)
    for one in batches:
        prefetcher.start(lambda one=one: one)
        assert prefetcher.wait() is prefetcher.wait() is prefetcher.take() is one
        assert prefetcher.take() is None
    prefetcher.hold(batches[0])
    assert prefetcher.take() is batches[0]


def test_start_returns_before_the_batch_is_drawn() -> None:
    prefetcher, go = Prefetcher(CPU, threaded=True), threading.Event()
    one = batch(1)

    def draw() -> Batch:
        assert go.wait(60)
        return one

    prefetcher.start(draw)  # returns while it waits
    go.set()
    assert prefetcher.take() is one


def test_draws_follow_one_another_even_if_the_first_takes_longer() -> None:
    prefetcher, order = Prefetcher(CPU, threaded=True), []
    for number, pause_s in ((1, 0.3), (2, 0.0)):
        prefetcher.start(lambda n=number, s=pause_s: time.sleep(s) or order.append(n) or batch(n))
    assert prefetcher.take() is not None
    assert order == [1, 2]


@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_of_the_draw_is_raised_by_take(threaded: bool) -> None:
    def broken() -> Batch:
        raise ValueError("no rows")

    def ask() -> None:
        prefetcher.start(broken)
        prefetcher.take()

    prefetcher = Prefetcher(CPU, threaded)
    with pytest.raises(ValueError, match="no rows"):
        ask()


@pytest.mark.parametrize("threaded", [False, True])
def test_inputs_of_the_draw_live_until_the_batch_is_taken(threaded: bool) -> None:
    prefetcher, noise = Prefetcher(CPU, threaded), torch.zeros(1, 2, dtype=torch.int64)
    alive = weakref.ref(noise)
    prefetcher.start(lambda noise=noise: Batch(None, noise + 1))
    del noise
    prefetcher.wait()
    assert alive() is not None
    prefetcher.take()
    if prefetcher.executor is not None:
        prefetcher.executor.submit(int).result()  # the thread lets go of its last work before it begins another
    assert alive() is None


class Stream:
    """A stream that records its calls."""

    def __init__(self, name: str, diary: list[Any]) -> None:
        self.name, self.diary, self.marks = name, diary, 0

    def record_event(self) -> str:
        self.marks += 1
        self.diary.append(f"{self.name} marks {self.name}{self.marks}")
        return f"{self.name}{self.marks}"

    def wait_event(self, event: str) -> None:
        self.diary.append(f"{self.name} waits for {event}")


@pytest.mark.parametrize("threaded", [False, True])
def test_streams_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, threaded: bool) -> None:
    diary: list[str] = []
    main, side = Stream("main", diary), Stream("side", diary)

    @contextmanager
    def stream(chosen: Stream) -> Any:
        diary.append(f"{chosen.name} begins")
        yield
        diary.append(f"{chosen.name} ends")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    prefetcher = Prefetcher(torch.device("cuda"), threaded)
    prefetcher.start(lambda: diary.append("draws") or batch(1))
    assert prefetcher.take() is not None
    assert diary == [
        "main marks main1",  # rows are written up to here
        "side begins",
        "side waits for main1",
        "draws",
        "side marks side1",
        "side ends",
        "main waits for side1",  # before rows are overwritten, and the batch is read
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threaded", [False, True])
def test_what_was_written_before_is_drawn_and_what_is_written_later_is_not(threaded: bool, device: str) -> None:
    prefetcher = Prefetcher(torch.device(device), threaded)
    value = torch.zeros(1, 1, dtype=torch.int64, device=device)
    side = 4096 if device == "cuda" else 2
    heavy = torch.rand(side, side, device=device)
    for number in range(20):
        heavy = (heavy @ heavy).sigmoid()  # keeps the main stream behind
        value.fill_(number)
        prefetcher.start(lambda: Batch(None, value.clone()))
        drawn = prefetcher.take()
        value.fill_(-1)
        assert drawn is not None
        assert drawn.index.item() == number
