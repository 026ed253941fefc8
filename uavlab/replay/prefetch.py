"""Prefetching: the next batch is drawn during an update, in a thread, a CUDA stream of its own, or both."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import torch

from uavlab.core.types import Batch
from uavlab.runtime.cuda_graph import tree_tensors

BatchAndEvent = tuple[Batch, torch.cuda.Event | None]


class Prefetcher:
    """Draws at most one batch in advance."""

    def __init__(self, device: torch.device, threaded: bool) -> None:
        """Open a stream on a GPU, and a thread if drawing would keep the host busy."""
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.executor: Executor | None = ThreadPoolExecutor(1, "draw") if threaded else None
        self._pending: Callable[[], BatchAndEvent] | None = None  # waits for the batch and returns it
        self._draw: Callable[[], Batch] | None = None  # referenced, because a stream reads its tensors after the call

    def start(self, draw: Callable[[], Batch]) -> None:
        """Begin to draw a batch, after all work queued so far on the current stream."""
        ready = None if self.stream is None else torch.cuda.current_stream(self.device).record_event()
        self._draw = draw
        if self.executor is not None:
            self._pending = self.executor.submit(self._run, draw, ready).result
        else:
            result = self._run(draw, ready)
            self._pending = lambda: result

    def hold(self, batch: Batch) -> None:
        """Set the batch to return next, such as that of a checkpoint."""
        self._pending = lambda: (batch, None)

    def wait(self) -> Batch | None:
        """Wait for the batch and return it; the current stream waits for it, too."""
        if self._pending is None:
            return None
        batch, event = self._pending()
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)
        return batch

    def take(self) -> Batch | None:
        """Wait for the batch, return it and release it."""
        batch, self._pending, self._draw = self.wait(), None, None
        for tensor in tree_tensors(batch):
            if tensor.is_cuda:  # the other stream, which owns the memory, must not reuse it before this one reads it
                tensor.record_stream(torch.cuda.current_stream(self.device))
        return batch

    def _run(self, draw: Callable[[], Batch], ready: torch.cuda.Event | None) -> BatchAndEvent:
        if self.stream is None or ready is None:
            return draw(), None
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(ready)
            return draw(), self.stream.record_event()
