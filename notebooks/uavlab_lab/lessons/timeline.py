"""When each stage of some cycles ran, and in which thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.runtime.stage_timer import Monitor
from uavlab.training import make_cycle

LANES = {"draw": "thread of the draws", "collect": "thread of the worlds"}  # by the first word of a thread's name
MAIN = "thread of the updates"


class SpanRecorder(Monitor):
    """A monitor that records start and end of every outermost stage of every thread, as the host sees them."""

    def __init__(self, device: Any) -> None:
        """Start with no spans."""
        self._inside = threading.local()
        super().__init__(device)

    def reset(self) -> None:
        """Forget all spans and restart the clock."""
        super().reset()
        self.spans: list[dict[str, Any]] = []
        self.start = time.perf_counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Record when the block starts and ends, unless it is part of another stage."""
        if getattr(self._inside, "stage", False):
            yield
            return
        self._inside.stage, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._inside.stage = False
            lane = LANES.get(threading.current_thread().name.partition("_")[0], MAIN)
            start, end = (1e3 * (moment - self.start) for moment in (start, time.perf_counter()))
            self.spans.append({"lane": lane, "name": name, "start": start, "end": end})


def record_spans(config: Config, cycles: int = 3, warm: int = 5) -> list[dict[str, Any]]:
    """Run ``warm`` cycles, then record the stages of ``cycles`` more; stages inside compiled code are not visible.

    Returns:
        ``lane`` (which thread), ``name`` (of the stage), ``start`` and ``end`` (ms), the training thread first, then
        in the order of their start; on a GPU, the host's part of each stage.
    """
    recorder = SpanRecorder(build.runtime(config.run).device)
    rt, rng, learner, source = build.assemble(config, recorder)
    # other threads do not time their own stages; of nested stages only the outer call counts
    source.store.take = rt.time_stage(source.store.take, "draw")
    source._advance = rt.time_stage(source._advance, "environment")
    cycle = make_cycle(source, learner, rng, rt)
    with rt.scope():
        for number in range(warm + cycles):
            if number == warm:
                recorder.reset()
            cycle()
        spans = list(recorder.spans)  # a step that overlaps the end may add more
    whole = [span for span in spans if span["start"] >= 0]  # started after the reset
    return sorted(whole, key=lambda span: (span["lane"] != MAIN, span["start"]))
