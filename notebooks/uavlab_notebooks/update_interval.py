"""Loops beside worlds that wait, and the steps that they make: what notebooks show of update intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from uavlab.bench.claims.measures import Bench
from uavlab.bench.claims.update_interval import BLOCK, paced_blocks
from uavlab.bench.timing import median, ratio
from uavlab.experiment import build
from uavlab.experiment.config import Config


def paced(bench: Bench, settings: Mapping[str, Mapping[str, Any]], paces: Sequence[float]) -> list[dict[str, Any]]:
    """Make the same number of updates under each of ``settings``, in turn, beside worlds of each pace (ms a step).

    Returns:
        Rows ``setting, step_ms``; ``share``, the learner's part of the time (None where worlds are stepped meanwhile);
        ``updates_per_s`` and ``rows_per_s`` (learned and gathered); ``over_first, low, high`` as ``compare`` has them.
    """
    blocks = {name: paced_blocks(bench, setting) for name, setting in settings.items()}
    rows = []
    for pace in paces:
        rounds = [{name: block(pace) for name, block in blocks.items()} for _ in range(bench.rounds)]
        first = [each[next(iter(settings))].seconds for each in rounds]
        for name, setting in settings.items():
            made = [each[name] for each in rounds]
            seconds = [block.seconds for block in made]
            over, rate = ratio(first, seconds), BLOCK / median(seconds)
            together = setting.get("prefetch") == "overlap"
            rows.append(
                {
                    "setting": name,
                    "step_ms": pace,
                    "share": None if together else round(median([block.learner for block in made]), 4),
                    "updates_per_s": round(rate, 1),
                    "rows_per_s": round(rate * setting.get("worlds", 1) / setting.get("ratio", 1), 1),
                    "over_first": over["median"],
                    "low": over["low"],
                    "high": over["high"],
                }
            )
    return rows


def steps_made(config: Config, updates: int) -> int:
    """Count the steps that every world makes for so many updates."""
    _, _, _, source = build.assembled(config)
    source.before_cycle()
    before = source.steps
    for _ in range(updates):
        source.next()
    return source.steps - before
