"""Profile a run: where its time goes, what bounds it, and which toggles would help, predicted and then measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from uavlab.benchmarks.advice import interval_advice
from uavlab.benchmarks.compare import Settings, build_call, compare
from uavlab.benchmarks.suites import telemetry
from uavlab.benchmarks.timing import FEWEST, median, time_call
from uavlab.core.cards import Html, card, folded, notes, table
from uavlab.core.text import printable
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.profiling.roofline import ceilings, find_bottleneck, predict_speedup
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.stage_timer import Monitor, count_work, memory
from uavlab.runtime.toggles import TOGGLES, resolve, with_toggles
from uavlab.storage.machine import describe, usable_cores

WARM, CYCLES = 10, 60  # cycles before and during monitoring, at most
LONG_S = 0.3  # seconds of a cycle of which one is recorded instead of several
SHORT_S = 0.5  # seconds of a cycle beyond which a shorter one is profiled
ENOUGH_S = 5.0  # seconds after which only the fewest repetitions are made
UPDATES = 10  # timed updates, of which the quickest counts, as for ceilings, at most
WORTH = 3  # toggles that are measured by default, by their predicted speed-up
SLOWEST = ("precision", "fp16", "cpu")  # fp16 is emulated there: an update through convolutions takes minutes
NO_GAIN = ("recompute", "deterministic")  # they spend time, on less memory and on equal bits
TRIED = {"compile": ("default",), "scaler": ()}  # other modes warm up for minutes; a scaler alone has no effect


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
        texts = [
            *([_shortened(self["shortened"])] if self.get("shortened") else []),
            self["verdict"],
            *self.get("advice", ()),
            *(telemetry.format_throughput(self["pipeline"]) if "pipeline" in self else []),
            *([_untried(self["untried"])] if self.get("untried") else []),
        ]
        stages = [(row["name"], *_columns(row)) for row in self["stages"]]
        gains = [(row["toggle"], *_gains(row)) for row in self["candidates"]]
        return card(
            f"Profile of {self['preset']}",
            facts,
            notes(texts),
            table(("stage", "ms", "p95 ms", "share"), stages),
            table(("toggle", "predicted", "measured", "95 % interval", "first call"), gains),
            folded("Operators", _operators(self["operators"])),
        )


def profile_preset(
    preset: str,
    *layers: Mapping[str, Any],
    rounds: int = 20,
    trace: Path | None = None,
    every: bool = False,
    stacks: bool = False,
) -> Profile:
    """Profile some cycles of a run, compare an update with this machine's ceilings, and measure toggles that may help.

    Amdahl's law predicts the speed-up of a toggle from the parts of a cycle, each timed with and without the toggle;
    then cycles are timed. Toggles that change the algorithm are left out, because they change the work itself.

    Args:
        preset: What to profile.
        layers: Settings over it.
        rounds: Interleaved repetitions, fewer where they would take longer than ``ENOUGH_S``.
        trace: Where to write a trace of some cycles.
        every: Measure all usable toggles, not only the most promising, and whole cycles, not shorter ones.
        stacks: Name the function that calls each operator.

    Returns:
        ``shortened`` (as ``shorten`` returns it, where a part of a cycle is profiled, otherwise None), ``cycle_ms``,
        ``stages`` (rows of ``Monitor.read``), ``update`` (its work and ceilings), ``memory``, ``operators`` (the table
        of the profiler), ``pipeline`` (throughput of tasks that learn from logs), ``kind`` and ``verdict`` (the
        bottleneck in a word and in a sentence), ``advice`` on update intervals (lines), and ``candidates``: ``toggle``,
        ``predicted``, ``measured`` (speed-up of cycles, as they are profiled) with ``low`` and ``high``,
        ``first_call_s``; the largest speed-up first; ``untried`` (changes that were not even predicted).

    Raises:
        ConfigError: The settings are not valid, or do not fit this machine.
    """
    config = configure(preset, *layers)
    shortened = None if every else shorten(config)
    if shortened:
        layers = (*layers, shortened["settings"])
        config = configure(preset, *layers)
    record = {**_watch(config, trace, stacks), "shortened": shortened}
    possible = candidates(config)
    tried = possible if every else _promising(possible, slow=record["cycle_ms"] > 1e3 * LONG_S)
    changes: Settings = {"": {}, **tried}
    time_calls = partial(compare, preset, rounds=rounds, enough_s=ENOUGH_S, warm_up=0, count=False)
    calls = config.task.collector.calls
    if "load" in calls:
        record["pipeline"] = telemetry.throughput(config, rounds)
    parts = [{row["setting"]: row for row in time_calls(changes, *layers, call=call, fewest=1)} for call in calls]
    forecast = {
        name: predict_speedup(record["cycle_ms"], [(part[""]["ms"], part[name]["ms"]) for part in parts])
        for name in changes
        if name and not any(part[name]["fell_back"] for part in parts)
    }
    best = sorted(forecast, key=lambda name: -forecast[name])[: None if every else WORTH]
    _, *rows = time_calls({"": {}, **{name: changes[name] for name in best}}, *layers, call="cycle")
    results = [
        {
            "toggle": row["setting"],
            "predicted": round(forecast[row["setting"]], 3),
            "measured": row["over_first"],
            **{key: row[key] for key in ("low", "high", "first_call_s")},
        }
        for row in rows
    ]
    untried = [name for name in possible if name not in tried]
    return Profile({**record, "candidates": sorted(results, key=lambda row: -row["measured"]), "untried": untried})


def shorten(config: Config) -> dict[str, Any] | None:
    """Return settings of a shorter cycle, where a whole one takes more than ``SHORT_S`` and consists of minibatches.

    A share of the minibatches learns from the same share of the steps, or where batches are of whole episodes, of the
    worlds. So minibatches keep their size, and stages about their shares of a cycle; what an update does once for all
    of its rows, such as targets, has fewer rows, whose cost by row may differ.

    Returns:
        ``cycle_ms`` (of a whole cycle, not compiled), ``settings``, and ``whole`` (the values that they replace).
    """
    values = config.values
    part = next((name for name in ("rollout_steps", "worlds") if name in values), "")
    if not part or "minibatches" not in values or values.get("memory"):  # with memory, minibatches are of whole worlds
        return None
    uncompiled = build_call(replace(config, toggles=with_toggles(config.toggles, {"compile": "off"})), "cycle")
    with uncompiled.rt.scope(), build.enough_memory():
        seconds = time_call(uncompiled.call, uncompiled.rt.device)
        if seconds < WARM * SHORT_S:  # otherwise the warm-up of a first call does not matter
            seconds = time_call(uncompiled.call, uncompiled.rt.device)
    common = math.gcd(values[part], values["minibatches"])
    by = next((n for n in range(1, common + 1) if common % n == 0 and seconds / n <= SHORT_S), common)
    if by == 1:
        return None
    whole = {name: values[name] for name in (part, "minibatches", "spares") if values.get(name, 1) > 1}
    settings = {name: -(-value // by) for name, value in whole.items()}
    return {"cycle_ms": round(1e3 * seconds, 3), "settings": settings, "whole": whole}


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


def _promising(changes: Settings, slow: bool) -> Settings:
    """Return the changes that may save time; of slow cycles, not those to the value of the plain reference."""
    return {
        text: change
        for text, change in changes.items()
        for name, value in change.items()
        if name not in NO_GAIN and not (slow and value == TOGGLES[name].default)
    }


def format_profile(record: Mapping[str, Any]) -> str:
    """Format a record of ``profile_preset`` as text."""
    lines = [_shortened(record["shortened"]), ""] if record.get("shortened") else []
    lines += [f"{'stage':14} {'ms':>9} {'p95 ms':>9} {'share':>7}"]
    lines += ["{:14} {:>9} {:>9} {:>7}".format(row["name"], *_columns(row)) for row in record["stages"]]
    lines += ["", *_operator_lines(record["operators"])]
    lines += ["", record["verdict"], _achieved(record["update"]), _memory(record["memory"])]
    lines += record.get("advice", ())
    lines += telemetry.format_throughput(record["pipeline"]) if "pipeline" in record else []
    lines += ["", f"{'toggle':24} {'predicted':>9} {'measured':>9}  95 % interval   first call"]
    lines += ["{:24} {:>9} {:>9}  {:14}  {:>10}".format(row["toggle"], *_gains(row)) for row in record["candidates"]]
    lines += [_untried(record["untried"])] if record.get("untried") else []
    return "\n".join(lines)


def _untried(names: Sequence[str]) -> str:
    return f"not tried: {', '.join(names)}; --all measures them"


def _shortened(record: Mapping[str, Any]) -> str:
    """Return a line on the part of a cycle that was profiled."""
    settings = ", ".join(f"{name} {value} for {record['whole'][name]}" for name, value in record["settings"].items())
    return f"part of a cycle, which takes {record['cycle_ms'] / 1e3:.1f} s: {settings}; --all profiles it whole"


def _columns(stage: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return mean, 95th percentile and share of a stage as text."""
    return f"{stage['mean_ms']:.3f}", f"{stage['p95_ms']:.3f}", f"{stage['share']:.1%}"


def _gains(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return speed-up as predicted and as measured, its interval, and the time of the first call as text."""
    interval = f"{row['low']:.2f} to {row['high']:.2f}"
    return f"{row['predicted']:.2f}x", f"{row['measured']:.2f}x", interval, f"{row['first_call_s']:.1f} s"


def _operators(rows: Sequence[Mapping[str, Any]]) -> Html:
    """Return the table of the profiler, whose columns depend on the device."""
    head, *cells = _operator_cells(rows)
    return table(head, cells)


def _operator_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of the profiler's table as text, the names of its columns first."""
    formats = {"operator": "", "source": "", "calls": ".0f", "share": ".1%"}  # other columns are times (ms)
    cells = [[format(value, formats.get(name, ".3f")) for name, value in row.items()] for row in rows]
    return [[name.replace("_", " ") for name in rows[0]] if rows else [], *cells]


def _operator_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the profiler as lines, with the source last."""
    head, *cells = _operator_cells(rows)
    forms = {"operator": "{:46.45}", "source": "  {}"}  # the others are numbers
    return [
        "".join(forms.get(name, "{:>10}").format(cell) for name, cell in zip(head, line, strict=True)).rstrip()
        for line in (head, *cells)
        if head
    ]


def _achieved(update: Mapping[str, Any]) -> str:
    """Return what an update reaches of the ceilings that were measured here at its sizes."""
    rates = {"matrix products": ("flop_per_s", "GFLOP/s"), "memory": ("bytes_per_s", "GB/s")}
    texts = []
    for name, (key, unit) in rates.items():
        rate, most = update[key], update[f"{key}_ceiling"]
        texts.append(f"{name} {rate / 1e9:.3g} of at most {most / 1e9:.3g} {unit} ({rate / most:.0%})")
    starts = f"{update['operators']:,} operators of at least {update['launch_us']:.3g} us each"
    return f"achieved: {', '.join(texts)}; {starts}"


def _memory(sizes: Mapping[str, float]) -> str:
    return f"memory: {', '.join(f'{name} {size / 2**20:,.0f} MiB' for name, size in sizes.items())}"


def _repetitions(most: int, once: float, least: int = FEWEST) -> int:
    """Return how often a call that takes ``once`` (s) is made."""
    return max(least, min(most, int(ENOUGH_S / once)))


def _watch(config: Config, trace: Path | None, stacks: bool = False) -> dict[str, Any]:
    """Run some cycles under a monitor, and compare an update with the ceilings."""
    device = build.runtime(config.run).device
    monitor = Monitor(device)
    loop = build_call(config, "cycle", monitor)
    with loop.rt.scope(), build.enough_memory():
        loop.call()  # may compile
        once = time_call(loop.call, device)
        for _ in range(_repetitions(WARM, once, least=0)):
            loop.call()
        monitor.reset()
        cycle_s = median([time_call(loop.call, device) for _ in range(_repetitions(CYCLES, once))])
        stages, sizes = monitor.read(), memory(device)  # before the profiler takes its own
        table = profile(loop.call, device, trace, monitor=monitor, stacks=stacks, once=once > LONG_S)
    uncompiled = replace(config, toggles=with_toggles(config.toggles, {"compile": "off"}))
    one, plain = (build_call(each, "update") for each in (config, uncompiled))
    with loop.rt.scope():
        first = time_call(one.call, device)
        seconds = min(time_call(one.call, device) for _ in range(_repetitions(UPDATES, first)))
        work = count_work(plain.call)  # operators inside compiled code are not visible
        limits = ceilings(device, config.toggles.precision, work)
    shares = {row["name"]: row["share"] for row in stages}
    toggles = config.toggles
    kind, sentence = find_bottleneck(shares, seconds, work, limits)
    return {
        "preset": config.preset,
        "machine": describe(device),
        "kind": kind,
        "verdict": sentence,
        "advice": interval_advice(shares, toggles.interval, toggles.prefetch) if config.task.collector.replay else [],
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
