"""Trials of toggles: how much faster each makes a cycle, predicted from its parts and then measured."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from uavlab.benchmarks.compare import Call, Row, compare_calls, prepare_pieces
from uavlab.benchmarks.timing import FEWEST
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.profiling.roofline import predict_speedup
from uavlab.runtime.toggles import TOGGLES, resolve, with_toggles
from uavlab.storage.machine import usable_cores

ENOUGH_S, PART_S = 5.0, 2.0  # seconds after which only the fewest repetitions of cycles, and of parts, are made
SLOWEST = ("precision", "fp16", "cpu")  # fp16 is emulated there: an update through convolutions takes minutes
NO_GAIN = ("recompute", "deterministic")  # they spend time, on less memory and on equal bits
TRIED = {"compile": ("default",), "scaler": ()}  # other modes warm up for minutes; a scaler alone has no effect
LATE = "not compiled within the time limit (option limit); what is compiled by now is kept for the next time"

Changes = Mapping[str, Mapping[str, Any]]
"""Settings of toggles, by the name of the change."""


class _LateError(Exception):
    """A function is to be compiled after the time limit."""


def candidates(config: Config) -> dict[str, dict[str, Any]]:
    """List every usable change of one toggle that keeps the algorithm, by ``name=value``."""
    device, now = build.runtime(config.run).device, config.toggles
    changes = {}
    for toggle in TOGGLES.values():
        if toggle.equality == "algorithm" or toggle.name in config.task.unserved:
            continue
        cores = (usable_cores(),) if toggle.name == "threads" else ()
        for value in cores or TRIED.get(toggle.name, toggle.choices):
            change = {toggle.name: value}
            tried = value != getattr(now, toggle.name) and (toggle.name, value, device.type) != SLOWEST
            if tried and not resolve(with_toggles(now, change), device)[1]:
                changes[f"{toggle.name}={value}"] = change
    return changes


def promising(changes: Changes, slow: bool) -> dict[str, Mapping[str, Any]]:
    """Return the changes that may save time; of slow cycles, not those to the value of the plain reference."""
    return {
        text: change
        for text, change in changes.items()
        for name, value in change.items()
        if name not in NO_GAIN and not (slow and value == TOGGLES[name].default)
    }


def measure_changes(
    base: Config,
    changed: Mapping[str, Config],
    cycle_ms: float,
    rounds: int,
    most: int | None = None,
    until: float = math.inf,
) -> tuple[list[Row], dict[str, str]]:
    """Predict by Amdahl's law how much faster each change makes a cycle, and measure the most promising ones.

    The parts of a cycle are timed with and without a change. What is compiled is measured last, because its first call
    may take minutes.

    Args:
        base: The run without a change.
        changed: The run under each change.
        cycle_ms: Time of a cycle of ``base``.
        rounds: Interleaved repetitions, fewer where they would take longer than ``ENOUGH_S``.
        most: How many changes are measured of those that compile, and of the others; None for all.
        until: Time of the monotonic clock (s) after which the compilation of no function begins.

    Returns:
        A row for each measured change, the largest speed-up first: ``toggle``, ``predicted``, ``measured`` with ``low``
        and ``high``, and ``first_call_s``; and by the name of each change without effect, or not compiled in time, why.
    """
    pieces = ("cycle", *base.task.collector.calls)  # the first call of a cycle includes all warm-up
    rows, failed = list[Row](), dict[str, str]()
    if not changed:
        return rows, failed
    reference = prepare_pieces(base, pieces)
    without = reference["cycle"].rt.fell_back
    for compiled in (False, True):
        group = {name: one for name, one in changed.items() if (one.toggles.compile != "off") == compiled}
        calls, reasons = _prepare(group, pieces, without, until)
        rows += _measure({"": reference, **calls}, cycle_ms, rounds, most) if calls else []
        failed |= reasons
        del calls  # before the next runs take memory
    return sorted(rows, key=lambda row: -row["measured"]), failed


def _prepare(
    group: Mapping[str, Config], pieces: Sequence[str], without: Collection[str], until: float
) -> tuple[dict[str, dict[str, Call]], dict[str, str]]:
    """Return the calls of each run, and why others have none; toggles in ``without`` lack effect without a change."""

    def check_time(function: str) -> None:
        if time.monotonic() > until:
            raise _LateError

    calls, failed = dict[str, dict[str, Call]](), dict[str, str]()
    for name, config in group.items():
        try:
            one = prepare_pieces(config, pieces, check_time)
        except _LateError:
            failed[name] = LATE
            continue
        reasons = [why for toggle, why in one["cycle"].rt.fell_back.items() if toggle not in without]
        if reasons:
            failed[name] = f"without effect: {'; '.join(reasons)}"
        else:
            calls[name] = one
    return calls, failed


def _measure(calls: Mapping[str, Mapping[str, Call]], cycle_ms: float, rounds: int, most: int | None) -> list[Row]:
    """Return a row for each of the changes that promise most, from the calls of each of their pieces."""
    pieces = [piece for piece in calls[""] if piece != "cycle"]
    parts = [_time(calls, list(calls), piece, rounds, PART_S, fewest=1) for piece in pieces]
    forecast = {
        name: predict_speedup(cycle_ms, [(part[""]["ms"], part[name]["ms"]) for part in parts])
        for name in calls
        if name
    }
    best = sorted(forecast, key=lambda name: -forecast[name])[:most]
    cycles = _time(calls, ["", *best], "cycle", rounds, ENOUGH_S)
    return [
        {
            "toggle": name,
            "predicted": round(forecast[name], 3),
            "measured": cycles[name]["over_first"],
            **{key: cycles[name][key] for key in ("low", "high", "first_call_s")},
        }
        for name in best
    ]


def _time(
    calls: Mapping[str, Mapping[str, Call]],
    names: list[str],
    piece: str,
    rounds: int,
    enough_s: float,
    fewest: int = FEWEST,
) -> dict[str, Row]:
    """Time a piece of each named run in turn."""
    each = {name: calls[name][piece] for name in names}
    rows = compare_calls(each, rounds, enough_s, warm_up=0, fewest=fewest, count=False)
    return {row["setting"]: row for row in rows}
