"""Update intervals with a slow simulator: when steps and updates happen, shares of the time, and rates."""

from collections.abc import Sequence
from typing import Any

from uavlab.benchmarks.claims.measures import Bench
from uavlab.benchmarks.claims.update_interval import BLOCK, paced_blocks
from uavlab.benchmarks.compare import Settings
from uavlab.benchmarks.timing import median, ratio


def schedule(
    lane: str, interval: int, step_ms: float, update_ms: float, count: int, overlap: bool = False
) -> list[dict[str, Any]]:
    """Return when ``count`` steps and as many updates happen, in rounds of ``interval``: spans of ``charts.timeline``.

    With ``overlap`` the steps of a round happen during the updates of the round before, in a lane of their own.
    """
    lanes = {name: f"{lane}, {who}" if overlap else lane for name, who in (("step", "worlds"), ("update", "learner"))}
    gather, learn = interval * step_ms, interval * update_ms
    period = max(gather, learn) if overlap else gather + learn
    spans = []
    for number in range(count // interval):
        updates = gather + number * period
        steps = updates - period if overlap and number else number * period
        for name, start, ms in (("step", steps, step_ms), ("update", updates, update_ms)):
            places = [start + place * ms for place in range(interval)]
            spans += [{"lane": lanes[name], "name": name, "start": place, "end": place + ms} for place in places]
    return spans


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
