"""Update intervals with a slow simulator: when steps and updates happen, shares of the time, and rates."""

from typing import Any

from uavlab_lab.suites.interval import compare_paces

__all__ = ["compare_paces", "schedule"]


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
