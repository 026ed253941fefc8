"""Profile a run: where its time goes, what bounds it, and which toggles would help, predicted and then measured."""

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, schedule

from uavlab.core.cards import Table, card, folded, notes
from uavlab.core.errors import ConfigError
from uavlab.core.text import printable
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.profiling.roofline import ceilings, count_work, find_bottleneck, predict_speedup
from uavlab.profiling.timing import FEWEST, median, time_call
from uavlab.runtime.stage_timer import PREFIX, Monitor
from uavlab.runtime.toggles import TOGGLES, resolve, with_toggles
from uavlab.storage.files import atomic_write
from uavlab.storage.machine import describe, memory, usable_cores
from uavlab_lab.measure.compare import Call, Row, build_call, compare_calls, prepare_pieces

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
        if toggle.equality == "algorithm" or toggle.name in config.task.inapplicable:
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
    """Predict how much faster each change makes a cycle, and measure ``most`` that compile, and as many others.

    After ``until``, a time of the monotonic clock (s), the compilation of no function begins. Returned are a row for
    each measured change, the largest speed-up first, and why others have none.
    """
    pieces = ("cycle", *base.task.collector.calls)  # the first call of a cycle includes all warm-up
    rows, failed = list[Row](), dict[str, str]()
    if not changed:
        return rows, failed
    reference = prepare_pieces(base, pieces)
    without = reference["cycle"].rt.fell_back
    for compiled in (False, True):  # what compiles comes last, because its first call may take minutes
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
    timed = {name: calls[name][piece] for name in names}
    rows = compare_calls(timed, rounds, enough_s, warm_up=0, fewest=fewest, count=False)
    return {row["setting"]: row for row in rows}


WARM, CYCLES = 10, 60  # cycles before and during monitoring, at most
LONG_S = 0.3  # seconds of a cycle of which one is recorded instead of several
SHORT_S = 0.5  # seconds of a cycle beyond which a shorter one is profiled
LARGE_S = 2.0  # seconds of a cycle of few minibatches beyond which they become smaller
LIMIT_S = 75.0  # seconds after the start, beyond which no further function is compiled for a trial
UPDATES = 10  # timed updates, of which the quickest counts, as for ceilings, at most
WORTH = 3  # toggles that are measured by default, by their predicted speed-up, and as many that are compiled


class Profile(dict[str, Any]):
    """The record of a profile; ``str`` formats its stages, its verdict and the toggles that may help."""

    def __repr__(self) -> str:
        return printable(format_profile(self))

    def _repr_html_(self) -> str:
        update, machine = self["update"], self["machine"]
        facts = {
            "bound by": self["kind"],
            "update": f"{update['ms']:.3f} ms, {update['operators']:,} operators",
            **{f"memory, {name}": f"{size / 2**20:,.0f} MiB" for name, size in self["memory"].items()},
            "device": machine["device"],
            "threads": machine["threads"],
            "trace": self["trace"],
        }
        texts = [*_part(self), self["verdict"], *_unmeasured(self)]
        operators = folded("Operators", _operators(self).html())
        return card(
            f"Profile of {self['preset']}", facts, notes(texts), _stages(self).html(), _gains(self).html(), operators
        )


def profile_preset(
    preset: str,
    *layers: Mapping[str, Any],
    rounds: int = 20,
    trace: Path | None = None,
    every: bool = False,
    limit: float | None = None,
) -> Profile:
    """Profile some cycles of a run, compare an update with this machine's ceilings, and measure toggles that may help.

    Amdahl's law predicts the speed-up of a toggle from the parts of a cycle, each timed with and without the toggle;
    then cycles are timed. Toggles that change the algorithm are left out, because they change the work itself.

    The arguments are those of ``uavlab.profile``, with layers of settings over the preset.

    Returns:
        ``shortened`` (as ``shorten`` returns it, where a part of a cycle is profiled, otherwise None), ``cycle_ms``,
        ``stages`` (rows of ``Monitor.read``), ``update`` (its work and ceilings), ``memory``, ``operators`` (the table
        of the profiler), ``kind`` and ``verdict`` (the bottleneck in a word and in a sentence), and ``candidates``:
        ``toggle``, ``predicted``, ``measured`` (speed-up of cycles, as they are profiled) with ``low`` and ``high``,
        ``first_call_s``; the largest speed-up first; ``untried`` (changes that were not even predicted) and ``failed``
        (by change, why it has no row: without effect, or not compiled in time).
    """
    limit = limit if limit is not None else math.inf if every else LIMIT_S
    if not limit >= 0:  # refuses nan, too
        raise ConfigError(f"limit: got {limit} s; expected at least 0.")
    until = time.monotonic() + limit
    config = configure(preset, *layers)
    layers = (*layers, {name: config.values[name] for name in config.chosen})  # sizes are measured once
    shortened = None if every else shorten(config, *layers)
    if shortened:
        layers = (*layers, shortened["settings"])
        config = configure(preset, *layers)
    record = {**_watch(config, trace), "shortened": shortened}
    possible = candidates(config)
    tried = possible if every else promising(possible, slow=record["cycle_ms"] > 1e3 * LONG_S)
    changed = {name: configure(preset, *layers, change) for name, change in tried.items()}
    rows, failed = measure_changes(config, changed, record["cycle_ms"], rounds, None if every else WORTH, until)
    untried = [name for name in possible if name not in tried]
    return Profile({**record, "candidates": rows, "untried": untried, "failed": failed})


def shorten(config: Config, *layers: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return settings of a shorter cycle, where a whole one takes more than ``SHORT_S`` and consists of minibatches.

    A share of the minibatches learns from the same share of the steps, or where batches are of whole episodes, of the
    worlds. So minibatches keep their size, and stages about their shares of a cycle. Where the shortest cycle of this
    kind takes more than ``LARGE_S``, its minibatches become smaller. ``cycle_ms`` is of a whole cycle, not compiled, as
    its shortest part predicts it; ``whole`` has the values that ``settings`` replace.
    """
    values = config.values
    part = next((name for name in ("rollout_steps", "worlds") if name in values), "")
    if not part or "minibatches" not in values or values.get("memory"):  # with memory, minibatches are of whole worlds
        return None
    whole = {name: values[name] for name in (part, "minibatches", "spares") if values.get(name, 1) > 1}

    def settings(by: int) -> dict[str, int]:
        return {name: -(-value // by) for name, value in whole.items()}

    common = math.gcd(values[part], values["minibatches"])
    shortest = _time_cycle(configure(config.preset, *layers, settings(common), {"compile": "off"}))
    most, choices = SHORT_S, _divisors(common)
    if shortest > LARGE_S:
        most, choices = LARGE_S, [common * factor for factor in _divisors(values[part] // common)]
    seconds = shortest * common
    by = next((factor for factor in choices if seconds / factor <= most), choices[-1])
    return {"cycle_ms": round(1e3 * seconds, 3), "settings": settings(by), "whole": whole} if by > 1 else None


def _divisors(number: int) -> list[int]:
    return [factor for factor in range(1, number + 1) if number % factor == 0]


def _time_cycle(config: Config) -> float:
    """Return the time of a cycle (s), without the warm-up of a first call where that may matter."""
    one = build_call(config, "cycle")
    with one.rt.scope(), build.enough_memory():
        seconds = time_call(one.call, one.rt.device)
        return seconds if seconds > WARM * SHORT_S else time_call(one.call, one.rt.device)


def format_profile(record: Mapping[str, Any]) -> str:
    """Format a record of ``profile_preset`` as text."""
    head = [*_part(record), ""] if record.get("shortened") else []
    operators = _operators(record)
    return "\n".join(
        [
            *head,
            *_stages(record).lines("{:14} {:>9} {:>9} {:>7}"),
            "",
            *operators.lines("".join("{:46.45}" if name == "operator" else "{:>10}" for name in operators.heads)),
            "",
            record["verdict"],
            _achieved(record["update"]),
            f"memory: {', '.join(f'{name} {size / 2**20:,.0f} MiB' for name, size in record['memory'].items())}",
            "",
            *_gains(record).lines("{:24} {:>9} {:>9}  {:14}  {:>10}"),
            *_unmeasured(record),
        ]
    )


def _stages(record: Mapping[str, Any]) -> Table:
    cells = [
        (row["name"], f"{row['mean_ms']:.3f}", f"{row['p95_ms']:.3f}", f"{row['share']:.1%}")
        for row in record["stages"]
    ]
    return Table(("stage", "ms", "p95 ms", "share"), cells)


def _operators(record: Mapping[str, Any]) -> Table:
    """Return the table of the profiler, whose columns depend on the device."""
    rows = record["operators"]
    formats = {"operator": "", "calls": ".0f", "share": ".1%"}  # other columns are times (ms)
    cells = [[format(value, formats.get(name, ".3f")) for name, value in row.items()] for row in rows]
    return Table([name.replace("_", " ") for name in rows[0]] if rows else (), cells)


def _gains(record: Mapping[str, Any]) -> Table:
    """Return the speed-up of each toggle as predicted and as measured, its interval, and the time of its first call."""
    cells = [
        (
            row["toggle"],
            f"{row['predicted']:.2f}x",
            f"{row['measured']:.2f}x",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['first_call_s']:.1f} s",
        )
        for row in record["candidates"]
    ]
    return Table(("toggle", "predicted", "measured", "95 % interval", "first call"), cells)


def _unmeasured(record: Mapping[str, Any]) -> list[str]:
    """Return lines on the changes that were not measured, and how to measure them."""
    untried = ", ".join(record.get("untried", ()))
    failed = [f"{name}: {why}" for name, why in record.get("failed", {}).items()]
    return failed + ([f"not tried: {untried}; --all measures them"] if untried else [])


def _part(record: Mapping[str, Any]) -> list[str]:
    """Return a line on the part of a cycle that was profiled; none if it was a whole one."""
    part = record.get("shortened")
    if not part:
        return []
    settings = ", ".join(f"{name} {value} for {part['whole'][name]}" for name, value in part["settings"].items())
    return [f"part of a cycle, which takes about {part['cycle_ms'] / 1e3:.1f} s: {settings}; --all profiles it whole"]


def _achieved(update: Mapping[str, Any]) -> str:
    """Return what an update reaches of the ceilings that were measured here at its sizes."""
    rates = {"matrix products": ("flop_per_s", "GFLOP/s"), "memory": ("bytes_per_s", "GB/s")}
    texts = []
    for name, (key, unit) in rates.items():
        rate, most = update[key], update[f"{key}_ceiling"]
        texts.append(f"{name} {rate / 1e9:.3g} of at most {most / 1e9:.3g} {unit} ({rate / most:.0%})")
    starts = f"{update['operators']:,} operators of at least {update['launch_us']:.3g} us each"
    return f"achieved: {', '.join(texts)}; {starts}"


def _repetitions(most: int, once: float, enough_s: float, least: int = FEWEST) -> int:
    """Return how often a call that takes ``once`` (s) is made."""
    return max(least, min(most, int(enough_s / once)))


def _watch(config: Config, trace: Path | None) -> dict[str, Any]:
    """Run some cycles under a monitor, and compare an update with the ceilings."""
    device = build.runtime(config.run).device
    monitor = Monitor(device)
    loop = build_call(config, "cycle", monitor)
    with loop.rt.scope(), build.enough_memory():
        loop.call()  # may compile
        once = time_call(loop.call, device)
        for _ in range(_repetitions(WARM, once, PART_S, least=0)):
            loop.call()
        monitor.reset()
        cycle_s = median([time_call(loop.call, device) for _ in range(_repetitions(CYCLES, once, ENOUGH_S))])
        stages, sizes = monitor.read(), memory(device)  # before the profiler takes its own
        table = profile(loop.call, device, trace, monitor=monitor, once=once > LONG_S)
    uncompiled = replace(config, toggles=with_toggles(config.toggles, {"compile": "off"}))
    one, plain = (build_call(run, "update") for run in (config, uncompiled))
    with loop.rt.scope():
        first = time_call(one.call, device)
        seconds = min(time_call(one.call, device) for _ in range(_repetitions(UPDATES, first, PART_S)))
        work = count_work(plain.call)  # operators inside compiled code are not visible
        limits = ceilings(device, config.toggles.precision, work)
    shares = {row["name"]: row["share"] for row in stages}
    kind, sentence = find_bottleneck(shares, seconds, work, limits)
    return {
        "preset": config.preset,
        "machine": describe(device),
        "kind": kind,
        "verdict": sentence,
        "cycle_ms": round(1e3 * cycle_s, 3),
        "stages": stages,
        "memory": sizes,
        "update": {
            "ms": round(1e3 * seconds, 3),
            "operators": work.operators,
            "flops": work.flops,
            "bytes": work.bytes,
            "flop_per_s": round(work.flops / seconds),
            "bytes_per_s": round(work.bytes / seconds),
            "flop_per_s_ceiling": round(limits.rate),
            "bytes_per_s_ceiling": round(limits.bandwidth),
            "launch_us": round(1e6 * limits.launch, 2),
        },
        "operators": table,
        "trace": str(trace) if trace else None,
    }


WAIT, WARM_UP, ACTIVE, REPEAT = 1, 1, 3, 2  # steps that torch's profiler sees, and cycles of them
PYTHON, GRAPHS = "between operators", "kernels of no operator"


def profile(
    step: Callable[[], Any],
    device: torch.device | str,
    trace: Path | None = None,
    *,
    monitor: Monitor | None = None,
    top: int = 10,
    once: bool = False,
) -> list[dict[str, Any]]:
    """Profile ``step`` by torch's profiler in two cycles: a call to wait, a call to warm up, and three calls to record.

    ``trace`` is a file, compressed if its name ends in ``.gz``, for https://ui.perfetto.dev or chrome://tracing. With
    ``once`` one call is recorded instead of six, because a profile of long steps takes gigabytes.

    Returns:
        A row per operator, the longest first: ``operator``, ``calls`` and own ``cpu_ms`` per step, and ``share`` of all
        own time. One row holds the time between operators, mostly Python. On a GPU there is also ``device_ms``, which
        then decides order and shares, and a row for kernels of graphs.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes to stderr
    cuda = torch.device(device).type == "cuda"
    active, repeat = (1, 1) if once else (ACTIVE, REPEAT)
    before = monitor.tracing if monitor else False
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda],
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=active, repeat=repeat),
        record_shapes=trace is not None,
        profile_memory=trace is not None,
        acc_events=True,
    ) as profiler:
        if monitor:
            monitor.tracing = True
        try:
            for _ in range((WAIT + WARM_UP + active) * repeat):
                step()
                profiler.step()
        finally:
            if monitor:
                monitor.tracing = before
    if trace is not None:
        with atomic_write(trace) as temporary:
            profiler.export_chrome_trace(str(temporary))
    return _rows(profiler.key_averages(), cuda, active * repeat)[:top]


def _rows(averages: Any, cuda: bool, steps: int = ACTIVE * REPEAT) -> list[dict[str, Any]]:
    columns = ("calls", "cpu_ms", "device_ms") if cuda else ("calls", "cpu_ms")
    rows: dict[str, dict[str, Any]] = {}
    kernels = 0.0
    for average in averages:
        if average.device_type != DeviceType.CPU:  # a kernel, whose time counts for its operator too
            kernels += 0 if average.is_user_annotation else average.self_device_time_total / 1e3 / steps
            continue
        ours = average.key.startswith(("ProfilerStep", PREFIX))
        name = PYTHON if ours else average.key
        row = rows.setdefault(name, {"operator": name, **dict.fromkeys(columns, 0.0)})
        row["cpu_ms"] += average.self_cpu_time_total / 1e3 / steps
        if not ours:
            row["calls"] += average.count / steps
        if cuda and not ours:
            row["device_ms"] += average.self_device_time_total / 1e3 / steps
    if cuda:
        rest = max(0.0, kernels - sum(row["device_ms"] for row in rows.values()))
        rows[GRAPHS] = {"operator": GRAPHS, **dict.fromkeys(columns, 0.0), "device_ms": rest}
    by = columns[-1]
    whole = sum(row[by] for row in rows.values()) or 1.0
    return [{**row, "share": row[by] / whole} for row in sorted(rows.values(), key=lambda row: -row[by])]
