"""What a run measures of itself while it trains: its time in each stage, its load, its memory, and its counts."""

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import TypeVar
from weakref import ReferenceType, ref

import torch
from jaxtyping import Shaped
from torch import Tensor

from uavlab.core.extras import install_command
from uavlab.experiment.run_state import COMPARISON, Change, RunState
from uavlab.experiment.schedules import gradient_steps
from uavlab.profiling.roofline import count_operators
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import RECENT, Monitor
from uavlab.storage.machine import memory
from uavlab.storage.metrics_log import COUNTS

T = TypeVar("T")
OPERATORS = f"{COUNTS}operators"
MIB = 2**20
EVERY, LEAST = 8, 16  # of so many updates one is timed; fewer where rows of the log would hold less than so many


class Instruments:
    """Readings of a runtime's monitor since the reading before; several may read one monitor."""

    def __init__(self) -> None:
        self._updates = 0  # that the monitor had timed
        self._of: tuple[Monitor | None, int] = (None, 0)  # the monitor, and how often it had been reset
        self._used, self._at = cpu_seconds(), time.monotonic()
        self._gpu = True  # whether it can be asked
        self._counted: tuple[ReferenceType[Runtime] | None, list[int]] = (None, [])  # operators of some updates

    def next_update(self, run: RunState, steps: Iterator[T]) -> T:
        """Make the next update; with a monitor, one of some is timed, and once for each runtime a round is counted."""
        monitor, toggles = run.rt.monitor, run.rt.toggles
        if monitor is None:
            return next(steps)
        if self._counted[0] is None or self._counted[0]() is not run.rt:
            self._counted = ref(run.rt), []
        each, whole = self._counted[1], toggles.interval * toggles.ratio
        begins = bool(each) or (run.number % whole == 0 and countable(run))
        if len(each) == whole or not begins:
            monitor.begin_update(run.number + 1, max(1, min(EVERY, run.config.run.log_every // LEAST)))
            return next(steps)
        monitor.active = False  # because counting takes time
        result: list[T] = []
        each.append(count_operators(lambda: result.append(next(steps))))
        return result[0]

    def log(
        self, figures: Mapping[str, Shaped[Tensor, "R ..."]], run: RunState
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Return means of figures over seeds, with readings and counts of a run, and those of each seed (host sync)."""
        means = {name: value.double().mean().item() for name, value in figures.items()}
        seeds = {name: x.double().reshape(len(x), -1).mean(1).tolist() for name, x in figures.items()}
        return means | self.read(run.rt) | counts(run) | self.operators(run.rt), seeds

    def read(self, rt: Runtime) -> dict[str, float]:
        """Return what a monitor read since the last call, of the updates that were timed (host sync).

        ``ms/NAME`` is the time of a stage in one update (ms): the median of the updates in which it ran, times the part
        of updates in which it ran; ``time/NAME`` its share of the sum of these times. ``load/cpu`` is the time of all
        threads on processors over the time that passed, so 1 is one core in full use; ``load/gpu`` the share of time in
        which any process used the GPU, ``load/gpu_watts`` its power (W). ``memory/NAME`` is in MiB.
        """
        if rt.monitor is None:
            return {}
        if self._of != (present := (rt.monitor, rt.monitor.resets)):
            self._updates, self._of = 0, present
        since = max(self._updates, rt.monitor.updates - RECENT)  # a monitor keeps no more of each stage
        seconds, updates = rt.monitor.by_update(since), rt.monitor.updates - since
        self._updates = rt.monitor.updates
        spent = {name: median(times) * len(times) if times else 0.0 for name, times in seconds.items()}
        whole = sum(spent.values())
        shares = {f"time/{name}": value / whole for name, value in spent.items() if whole > 0}
        each = {f"ms/{name}": 1e3 * value / updates for name, value in spent.items() if updates}
        sizes = {f"memory/{name}": size / MIB for name, size in memory(rt.device).items()}
        return {**shares, **each, **self._load(rt.device), **sizes}

    def operators(self, rt: Runtime) -> dict[str, float]:
        """Return the operators of an update without views, once they were counted; on a GPU each starts a kernel."""
        of, each = self._counted
        whole = rt.toggles.interval * rt.toggles.ratio
        return {OPERATORS: sum(each) / whole} if of is not None and of() is rt and len(each) == whole else {}

    def _load(self, device: torch.device) -> dict[str, float]:
        used, at = cpu_seconds(), time.monotonic()
        load = {"load/cpu": (used - self._used) / (at - self._at)} if at > self._at else {}
        self._used, self._at = used, at
        if device.type == "cuda" and self._gpu:
            try:
                load |= gpu_load(device)
            except Exception as error:  # of the package, which has classes of its own, or of torch
                self._gpu = False
                reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                line = f"no load/gpu in the log ({reason}); it needs a driver that reports it, and the package of NVML"
                warnings.warn(f"{line}: {install_command('gpu')}.", stacklevel=2)
        return load


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def gpu_load(device: torch.device) -> dict[str, float]:
    """Return the share of the last moments in which a GPU was in use, and its power (W), as NVML reports them."""
    used, milliwatts = torch.cuda.utilization(device), torch.cuda.power_draw(device)
    return {"load/gpu": used / 100, "load/gpu_watts": milliwatts / 1000}


def countable(run: RunState) -> bool:
    """Return whether operators can be counted: they are visible, an interval of the log after the last change."""
    toggles, last = run.rt.toggles, run.changes[-1] if run.changes else None
    since = last.update if last else 0
    visible = toggles.compile == "off" and toggles.graph == "off" and not (last and last.by == COMPARISON)
    return visible and run.number >= since + run.config.run.log_every


def counts(run: RunState) -> dict[str, float]:
    """Return how far a run with replay is: rounds, the most gradient steps of a network, and episodes (host sync).

    Updates per episode are those since the last row over the episodes that ended since.
    """
    if not run.config.task.collector.replay:
        return {}
    steps, toggles = gradient_steps(run.learner), run.rt.toggles
    row = {"rounds": rounds(run.number, toggles.interval, toggles.ratio, run.changes)}
    if steps:
        row["gradient_steps"] = max(step.count for step in steps)
    if (ended := run.source.ended()) is not None:
        row["episodes"] = ended
        before = next((each for each in reversed(run.recorder.rows) if f"{COUNTS}episodes" in each), None)
        if before is not None and ended > before[f"{COUNTS}episodes"]:
            row["updates_per_episode"] = (run.number - before["update"]) / (ended - before[f"{COUNTS}episodes"])
    return {f"{COUNTS}{name}": value for name, value in row.items()}


def rounds(updates: int, interval: int, ratio: int, changes: Iterable[Change] = ()) -> int:
    """Return how many rounds of steps and updates have begun, at the present interval and ratio, and those before.

    >>> rounds(40, interval=10, ratio=1)
    4
    """
    total, end, sizes = 0, updates, {"interval": interval, "ratio": ratio}
    for change in sorted(changes, key=lambda each: -each.update):
        if not change.undone and sizes.keys() & change.settings.keys():
            total += -(-(end - change.update) // (sizes["interval"] * sizes["ratio"]))
            end, sizes = change.update, {name: change.settings.get(name, (size,))[0] for name, size in sizes.items()}
    return total + -(-end // (sizes["interval"] * sizes["ratio"]))
