"""What a run measures of itself while it trains: the share of its time in each stage, and its memory."""

from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor, memory

TIMED = ("seconds", "time/", "memory/")  # beginnings of names in rows of metrics that differ between equal runs
COUNTS = "counts/"  # of names of figures that follow from the rest, and that earlier versions did not log
MIB = 2**20


class Instruments:
    """Readings of a runtime's monitor since the reading before; several may read one monitor."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._before: dict[str, float] = {}
        self._of: tuple[Monitor | None, int] = (None, 0)  # the monitor, and how often it had been reset

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


def differs(name: str) -> bool:
    """Return whether a figure of a row of metrics differs between equal runs, or between versions."""
    return name.startswith((*TIMED, COUNTS))
