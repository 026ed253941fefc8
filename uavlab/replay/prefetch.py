"""A batch that is drawn while another one is learned: in a thread, on a GPU in a stream of its own."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import torch
from torch import Tensor

from uavlab.core.types import Batch, leaves

Drawn = tuple[Batch, torch.cuda.Event | None]


class Ahead:
    """At most one batch under way; whoever asks for it waits until it is there."""

    def __init__(self, device: torch.device, threaded: bool) -> None:
        """Open a stream where there are any, and a thread if drawing would keep the host busy."""
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.thread: Executor | None = ThreadPoolExecutor(1, "draw") if threaded else None
        self._under_way: Future[Drawn] | None = None
        self._reading: Callable[[], Batch] | None = None  # kept, because a stream reads its tensors after it returned

    def start(self, draw: Callable[[], Batch]) -> None:
        """Begin to draw, after all work that the present stream was given before."""
        ready = None if self.stream is None else torch.cuda.current_stream(self.device).record_event()
        self._reading = draw
        if self.thread is not None:
            self._under_way = self.thread.submit(self._draw, draw, ready)
        else:
            self._under_way = _done(self._draw(draw, ready))

    def hold(self, batch: Batch) -> None:
        """Take over a batch that was drawn before."""
        self._under_way = _done((batch, None))

    def wait(self) -> Batch | None:
        """Give the batch under way once it is there; work that the present stream is given then comes after it."""
        if self._under_way is None:
            return None
        batch, drawn = self._under_way.result()
        if drawn is not None:
            torch.cuda.current_stream(self.device).wait_event(drawn)
        return batch

    def take(self) -> Batch | None:
        """Give the batch under way and let go of it."""
        batch, self._under_way, self._reading = self.wait(), None, None
        for tensor in _tensors(batch):
            if tensor.is_cuda:  # its memory is the other stream's, which may use it again once this one has read it
                tensor.record_stream(torch.cuda.current_stream(self.device))
        return batch

    def _draw(self, draw: Callable[[], Batch], ready: torch.cuda.Event | None) -> Drawn:
        if self.stream is None or ready is None:
            return draw(), None
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(ready)
            return draw(), self.stream.record_event()


def _done(drawn: Drawn) -> Future[Drawn]:
    future: Future[Drawn] = Future()
    future.set_result(drawn)
    return future


def _tensors(batch: Batch | None) -> Iterator[Tensor]:
    if batch is not None and batch.data is not None:
        yield from (leaf for _, leaf in leaves(batch.data))
        yield batch.index
    if batch is not None and batch.weight is not None:
        yield batch.weight
