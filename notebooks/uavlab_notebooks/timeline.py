"""What ran when: the stages of some cycles with their threads, for a timeline."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.runtime.stage_timer import Monitor
from uavlab.train import make_cycle

LANES = {"draw": "thread that draws", "fly": "thread that flies"}  # by the first word of a thread's name
MAIN = "training"


class Spans(Monitor):
    """A monitor that keeps the beginning and end of every outermost stage of every thread, as the host sees them."""

    def __init__(self, device: Any) -> None:
        """Begin to watch."""
        self._inside = threading.local()
        super().__init__(device)

    def reset(self) -> None:
        """Forget what was seen."""
        super().reset()
        self.seen: list[dict[str, Any]] = []
        self.began = time.perf_counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Note when what runs inside begins and ends, unless it is part of another stage."""
        if getattr(self._inside, "stage", False):
            yield
            return
        self._inside.stage, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._inside.stage = False
            lane = LANES.get(threading.current_thread().name.partition("_")[0], MAIN)
            start, end = (1e3 * (moment - self.began) for moment in (start, time.perf_counter()))
            self.seen.append({"lane": lane, "name": name, "start": start, "end": end})


def spans(config: Config, cycles: int = 3, warm: int = 5) -> list[dict[str, Any]]:
    """Run some cycles and tell what ran when.

    Args:
        config: Of the run; stages of compiled code are not seen.
        cycles: Cycles that are watched.
        warm: Cycles before.

    Returns:
        ``lane`` (which thread), ``name`` (of the stage), ``start`` and ``end`` (ms), in the order of beginning; on a
        GPU, the host's part of each stage.
    """
    watch = Spans(build.runtime(config.run).device)
    rt, rng, learner, source = build.assembled(config, watch)
    # what runs in a thread of its own is not timed by itself; of what is, the outer call alone is kept
    source.store.take = rt.time_stage(source.store.take, "draw")
    source._advance = rt.time_stage(source._advance, "environment")
    cycle = make_cycle(source, learner, rng, rt)
    with rt.scope():
        for number in range(warm + cycles):
            if number == warm:
                watch.reset()
            cycle()
        found = list(watch.seen)  # a flight under way may add more
    whole = [span for span in found if span["start"] >= 0]  # begun while it was watched
    return sorted(whole, key=lambda span: (span["lane"] != MAIN, span["start"]))
