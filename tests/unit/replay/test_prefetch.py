"""A batch drawn ahead: one at a time, waited for, and ordered between streams on a GPU."""

import threading
import weakref
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from uavlab.core.types import Batch
from uavlab.replay.prefetch import Ahead

CPU = torch.device("cpu")


def batch(number: int) -> Batch:
    return Batch(data=None, index=torch.full((1, 2), number))


@pytest.mark.parametrize("threaded", [False, True])
def test_a_batch_is_there_once_it_was_asked_for(threaded: bool) -> None:
    ahead, batches = Ahead(CPU, threaded), [batch(1), batch(2)]
    assert (ahead.wait(), ahead.take()) == (None, None)
    for one in batches:
        ahead.start(lambda one=one: one)
        assert ahead.wait() is ahead.wait() is ahead.take() is one
        assert ahead.take() is None
    ahead.hold(batches[0])
    assert ahead.take() is batches[0]


def test_it_is_drawn_beside_the_caller() -> None:
    ahead, go = Ahead(CPU, threaded=True), threading.Event()
    one = batch(1)

    def draw() -> Batch:
        assert go.wait(60)
        return one

    ahead.start(draw)  # returns while it waits
    go.set()
    assert ahead.take() is one


@pytest.mark.parametrize("threaded", [False, True])
def test_an_error_of_the_drawing_is_told_to_whoever_asks(threaded: bool) -> None:
    def broken() -> Batch:
        raise ValueError("no rows")

    def ask() -> None:
        ahead.start(broken)
        ahead.take()

    ahead = Ahead(CPU, threaded)
    with pytest.raises(ValueError, match="no rows"):
        ask()


@pytest.mark.parametrize("threaded", [False, True])
def test_what_is_read_is_kept_until_the_batch_is_taken(threaded: bool) -> None:
    ahead, noise = Ahead(CPU, threaded), torch.zeros(1, 2, dtype=torch.int64)
    alive = weakref.ref(noise)
    ahead.start(lambda noise=noise: Batch(None, noise + 1))
    del noise
    ahead.wait()
    assert alive() is not None
    ahead.take()
    assert alive() is None


class Stream:
    """A stream that writes down what it is told."""

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
    ahead = Ahead(torch.device("cuda"), threaded)
    ahead.start(lambda: diary.append("draws") or batch(1))
    assert ahead.take() is not None
    assert diary == [
        "main marks main1",  # rows are written up to here
        "side begins",
        "side waits for main1",
        "draws",
        "side marks side1",
        "side ends",
        "main waits for side1",  # before rows are overwritten, and the batch is read
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("threaded", [False, True])
def test_on_a_gpu_what_was_written_before_is_drawn_and_what_is_written_later_is_not(threaded: bool) -> None:
    ahead = Ahead(torch.device("cuda"), threaded)
    value = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    heavy = torch.rand(4096, 4096, device="cuda")
    for number in range(20):
        heavy = (heavy @ heavy).sigmoid()  # keeps the main stream behind
        value.fill_(number)
        ahead.start(lambda: Batch(None, value.clone()))
        drawn = ahead.take()
        value.fill_(-1)
        assert drawn is not None
        assert drawn.index.item() == number
