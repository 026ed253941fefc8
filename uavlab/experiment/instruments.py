"""What a run measures of itself while it trains: the share of its time in each stage, its memory, and its counts."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jaxtyping import Shaped
from torch import Tensor

from uavlab.experiment.schedules import gradient_steps
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor, memory

if TYPE_CHECKING:
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_state import Change

TIMED = ("seconds", "time/", "memory/")  # beginnings of names in rows of metrics that differ between equal runs
COUNTS = "counts/"  # of names in rows of metrics that follow from the rest of the state
MIB = 2**20


class Instruments:
    """Readings of a runtime's monitor since the reading before; several may read one monitor."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._before: dict[str, float] = {}
        self._of: tuple[Monitor | None, int] = (None, 0)  # the monitor, and how often it had been reset

    def log(
        self, figures: Mapping[str, Shaped[Tensor, "R ..."]], run: "Run"
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Return means of figures over seeds, with readings and counts of a run, and those of each seed (host sync)."""
        means = {name: value.double().mean().item() for name, value in figures.items()}
        seeds = {name: x.double().reshape(len(x), -1).mean(1).tolist() for name, x in figures.items()}
        return means | self.read(run.rt) | counts(run), seeds

    def read(self, rt: Runtime) -> dict[str, float]:
        """Return shares of the time by stage (``time/NAME``) since the last call, and memory (MiB) (host sync).

        Without a monitor nothing is measured. Shares are of the time in all stages.
        """
        if rt.monitor is None:
            return {}
        if self._of != (present := (rt.monitor, rt.monitor.resets)):
            self._before, self._of = {}, present
        now = {row["name"]: row["total_ms"] for row in rt.monitor.read()}
        spent = {name: total - self._before.get(name, 0.0) for name, total in now.items()}
        self._before, whole = now, sum(spent.values())
        shares = {f"time/{name}": value / whole for name, value in spent.items() if whole > 0}
        return {**shares, **{f"memory/{name}": size / MIB for name, size in memory(rt.device).items()}}


def counts(run: "Run") -> dict[str, float]:
    """Return how far a run with replay is: rounds, gradient steps and episodes, and updates per episode (host sync).

    Gradient steps are those of the network that has taken the most. Updates per episode are those since the last row
    over the episodes that ended since: the time of an episode in steps of worlds, over the worlds, times the ratio.
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


def rounds(updates: int, interval: int, ratio: int, changes: "Iterable[Change]" = ()) -> int:
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


def updates_of(episodes: int, horizon: int, worlds: int = 1, world_steps: int = 1, ratio: int = 1) -> int:
    """Return the updates in which the worlds of a run play episodes of ``horizon`` steps to their end.

    Devices that share an update do not multiply them: each makes all of them, on rows of its own.

    >>> updates_of(6250, 200), updates_of(6250, 200, worlds=64, ratio=64)
    (1250000, 1250048)
    """
    return -(-episodes * horizon // (worlds * world_steps)) * ratio


def in_digest(name: str) -> bool:
    """Return whether a figure of a row of metrics counts for the digest of a run.

    Times and memory differ between equal runs; counts follow from the rest, and earlier versions had none.
    """
    return not name.startswith((*TIMED, COUNTS))
