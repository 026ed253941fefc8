"""Advice on update intervals by where the time of a run goes, instead of by the utilisation of a device.

A published guide raises the interval while a GPU is utilised to less than 40 %. In one process that changes nothing: k
updates follow k steps, so both totals stay. What helps is to step worlds beside updates, or more worlds at once; an
interval gives ``prefetch=overlap`` longer rounds. The advice is for one process.
"""

from collections.abc import Mapping

LITTLE = 0.1  # share of the time below which hiding steps is not worth trying
ROUND = 10  # updates of a round that the advice suggests


def interval_advice(shares: Mapping[str, float], interval: int, prefetch: str) -> list[str]:
    """Return lines of advice for a run with replay.

    Args:
        shares: Shares of its time by stage, as in ``Monitor.read``; with ``prefetch=overlap`` there is no such share.
        interval: Its update interval.
        prefetch: Its toggle ``prefetch``.

    >>> interval_advice({"environment": 0.6, "acting": 0.1, "update": 0.3}, interval=10, prefetch="off")[0]
    'steps of worlds take 70% of the time: prefetch=overlap makes training at most 1.43x as fast'
    """
    steps = sum(shares.get(stage, 0.0) for stage in ("environment", "acting"))
    lines = []
    if prefetch != "overlap" and steps >= LITTLE:
        most = f"{1 / max(steps, 1 - steps):.2f}x as fast"
        rounds = f", with interval={ROUND} for longer rounds" if interval < ROUND else ""
        lines.append(
            f"steps of worlds take {steps:.0%} of the time: prefetch=overlap makes training at most {most}{rounds}"
        )
    elif prefetch != "overlap":
        lines.append(f"steps of worlds take {steps:.0%} of the time: no interval or overlap is worth trying")
    if shares.get("environment", 0.0) > 0.5:
        lines.append("the environment bounds training: more worlds at once give more rows for each step that it takes")
    if interval > 1 and prefetch != "overlap":
        lines.append(
            f"interval={interval} makes no update cheaper in one process: {interval} updates follow {interval} steps; "
            "interval=1 learns from rows of a newer policy"
        )
    return lines
