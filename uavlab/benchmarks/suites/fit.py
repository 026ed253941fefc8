"""How near the number of worlds that a sweep chooses is to the best of a longer sweep, for each task."""

from collections.abc import Sequence

from uavlab.benchmarks.registry import Option, Record, suite
from uavlab.benchmarks.timing import ratio, time_in_turn
from uavlab.core.registry import ENVIRONMENTS
from uavlab.experiment.build import runtime
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.throughput import sweep_worlds, turns

OPTIONS = (Option("presets", "a preset to measure, by default the environments with worlds", kind=str),)


@suite("fit", about="worlds at the knee of their throughput beside a longer sweep", options=OPTIONS)
def fit_suite(rounds: int, device: Device, presets: Sequence[str] = (), most: int = 16_384) -> Record:
    """Choose worlds as ``worlds=auto`` does, then time all numbers of that sweep, and twice the largest, anew.

    Returns:
        Rows with ``preset``, ``worlds`` (the number that was chosen), ``best`` (the fastest number of the longer sweep)
        and ``of_best``, the rate of the former over that of the latter, with its 95 % interval from ``low`` to
        ``high``; ``rates`` by number (agent steps per second).
    """
    names = presets or [name for name, each in ENVIRONMENTS.items() if hasattr(each.kind(), "observe")]
    return {"rows": [_row(configure(name, {"device": device}), rounds, most) for name in names]}
