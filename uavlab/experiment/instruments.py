"""What a run measures of itself while it trains: the share of its time in each stage, and its memory."""

from collections.abc import Mapping

from jaxtyping import Shaped
from torch import Tensor

from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor, memory

TIMED = ("seconds", "time/", "memory/")  # beginnings of names in rows of metrics that differ between equal runs
MIB = 2**20


class Instruments:
    """Readings of a runtime's monitor since the reading before; several may read one monitor."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._before: dict[str, float] = {}
        self._of: tuple[Monitor | None, int] = (None, 0)  # the monitor, and how often it had been reset

    def log(
        self, figures: Mapping[str, Shaped[Tensor, "R ..."]], rt: Runtime
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Return means of figures over seeds, with the readings, and those of each seed (host sync)."""
        means = {name: value.double().mean().item() for name, value in figures.items()}
        seeds = {name: x.double().reshape(len(x), -1).mean(1).tolist() for name, x in figures.items()}
        return means | self.read(rt), seeds

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
    """Return whether a figure of a row of metrics differs between equal runs."""
    return name.startswith(TIMED)
