"""How near the number of worlds that a sweep chooses is to the best of another, longer sweep."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from uavlab.benchmarks.registry import Option, Record, suite
from uavlab.benchmarks.timing import ratio
from uavlab.experiment.build import runtime
from uavlab.experiment.config import Config, Device, configure
from uavlab.experiment.throughput import MOST, measure, sweep_worlds, trial_limit

PRESETS = ("leader_follower_quick", "mapping_quick", "spread_quick", "pursuit_quick", "assignment_quick")
OPTIONS = (Option("presets", "a preset to measure", kind=str), Option("most", "most worlds", (1, 10**6), several=False))


@suite("fit", about="worlds at the knee of their throughput beside a longer sweep", options=OPTIONS)
def fit_suite(rounds: int, device: Device, presets: Sequence[str] = PRESETS, most: int = MOST) -> Record:
    """Choose worlds as ``worlds=auto`` does, then measure all numbers of that sweep, and twice its largest, in turn.

    Returns:
        Rows with ``preset``; ``worlds`` and ``best``, the number that was chosen and the fastest one; ``of_best``, the
        rate of the former over that of the latter, with its 95 % interval from ``low`` to ``high``; and ``rates``,
        medians by number (agent steps per second).
    """
    return {"rows": [_row(configure(name, {"device": device}), rounds, most) for name in presets]}


def _row(config: Config, rounds: int, most: int) -> dict[str, Any]:
    sweep = sweep_worlds(config, most, trial_limit(runtime(config.run).device))
    numbers = [*sweep.rates, *[2 * max(sweep.rates)] * (2 * max(sweep.rates) <= most)]
    rates: dict[int, list[float]] = {worlds: [] for worlds in numbers}
    for _ in range(rounds):
        for worlds in numbers:
            rates[worlds].append(measure(config, worlds)[0])
    best = max(numbers, key=lambda worlds: median(rates[worlds]))
    return {
        "preset": config.preset,
        "worlds": sweep.worlds,
        "best": best,
        **ratio(rates[sweep.worlds], rates[best], "of_best"),
        "rates": {str(worlds): round(median(each)) for worlds, each in rates.items()},
    }
