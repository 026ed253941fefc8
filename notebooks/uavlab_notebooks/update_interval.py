"""Update intervals with a slow simulator: shares of the time, rates, and counts of steps."""

from collections.abc import Sequence
from typing import Any

from uavlab.benchmarks.claims.measures import Bench
from uavlab.benchmarks.claims.update_interval import BLOCK, paced_blocks
from uavlab.benchmarks.compare import Settings
from uavlab.benchmarks.timing import median, ratio
from uavlab.experiment import build
from uavlab.experiment.config import Config


def compare_paces(bench: Bench, settings: Settings, paces: Sequence[float]) -> list[dict[str, Any]]:
    """Time the same number of updates under each of ``settings``, in turn, with worlds of each pace (ms per step).

    Returns:
        Rows ``setting, step_ms``; ``share``, the learner's share of the time (None where worlds step at the same time);
        ``updates_per_s`` and ``rows_per_s`` (learned and gathered); ``over_first, low, high`` as in ``compare``.
    """
    blocks = {name: paced_blocks(bench, setting) for name, setting in settings.items()}
    rows = []
    for pace in paces:
        rounds = [{name: block(pace) for name, block in blocks.items()} for _ in range(bench.rounds)]
        first = [each[next(iter(settings))].seconds for each in rounds]
        for name, setting in settings.items():
            own = [each[name] for each in rounds]
            seconds = [block.seconds for block in own]
            over, rate = ratio(first, seconds), BLOCK / median(seconds)
            overlap = setting.get("prefetch") == "overlap"
            rows.append(
                {
                    "setting": name,
                    "step_ms": pace,
                    "share": None if overlap else round(median([block.learner for block in own]), 4),
                    "updates_per_s": round(rate, 1),
                    "rows_per_s": round(rate * setting.get("worlds", 1) / setting.get("ratio", 1), 1),
                    "over_first": over["median"],
                    "low": over["low"],
                    "high": over["high"],
                }
            )
    return rows


def count_steps(config: Config, updates: int) -> int:
    """Count the steps of every world during ``updates`` updates."""
    _, _, _, source = build.assemble(config)
    source.before_cycle()
    before = source.steps
    for _ in range(updates):
        source.next()
    return source.steps - before
