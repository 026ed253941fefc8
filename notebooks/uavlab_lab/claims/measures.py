"""Measures of claims: the bench that all of them share, and measures of teams.

The ledger names a measure and its arguments. A technique and the baseline of its claim are timed in turn in one
process. Sizes are those of the claims: batch 128, networks of width 256, an actor for each agent, one world, one step
and one update per cycle.
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from statistics import fmean
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig, configure
from uavlab.experiment.instruments import gpu_load
from uavlab.experiment.policy import choose
from uavlab.experiment.run import Run
from uavlab.experiment.transfer import places_by_stage, transfer
from uavlab.learners.masac import loop
from uavlab.profiling.roofline import ceilings, count_work
from uavlab.profiling.timing import median, ratio, time_call, time_in_turn
from uavlab.runtime.toggles import Toggles, as_dict, toggle_presets
from uavlab.runtime.wrappers import compile_function
from uavlab.storage.machine import device_name
from uavlab_lab.measure.compare import Call, Row, build_call, compare, prepare
from uavlab_lab.measure.profile_run import profile

Setting = Mapping[str, Any]

TEAMS = ("leader_follower", "slow_leader_follower")
PLAIN = as_dict(Toggles())
SIZES = {"batch": 128, "hidden": 256, "share": False, "worlds": 1, "learning_starts": 128, "n_step": 1}

LOOP: Setting = {}
LOW = "low"  # placeholder for the fast 16-bit precision of a device: fp16 on a GPU, bf16 on a CPU
CHOSEN = "chosen"  # placeholder for a stage: the named set of toggles for the device
STAGES: list[Setting] = [LOOP, {"update": "merged"}]
STAGES.append({**STAGES[1], "precision": LOW, "prefetch": "on", "acting": "batched"})
COMPILED = {"update": "batched", "precision": "bf16", "compile": "default"}  # fp16 and merged are not compiled
STAGES.append({**STAGES[2], **COMPILED, "adam": "fused", "optimizers": "one"})
"""The loop and the three cumulative stages of the claims; the key ``stage`` of a setting selects one."""

ENOUGH_S = 60.0  # seconds after which no further round begins


class NotTestable(Exception):  # noqa: N818 - an answer, not an error
    """A number cannot be measured on this machine; the message is the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number, its 95 % interval where there is one, what it depends on, and how often calls were repeated for it.

    ``low`` and ``high`` of fewer than ``timing.ENOUGH`` rounds are their range; ``rounds`` is None without timing.
    """

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    rounds: int | None = None


Measure = Callable[..., Estimate]
F = TypeVar("F", bound=Callable)
MEASURES: dict[str, Measure] = {}
"""Every measure, by its name in the ledger."""


def measure(function: Measure) -> Measure:
    """Register a function, which takes a ``Bench`` and the arguments of the ledger, under its name."""
    MEASURES[function.__name__] = function
    return function


class Bench:
    """The device, its name, and the rounds of all measures; calls that take seconds are repeated for ``ENOUGH_S``.

    ``settings`` lie over those of the claims: smaller sizes are quicker and test no claim. ``results`` holds what
    functions with the decorator ``once`` returned.
    """

    def __init__(self, rounds: int = 30, **settings: Any) -> None:
        self.rounds, self.settings = rounds, settings
        self.device = build.runtime(RunConfig(device=settings.get("device", "auto"))).device
        self.name = device_name(self.device)
        self.results: dict[str, Any] = {}

    def layer(self, setting: Setting, agents: int = 2, preset: str = TEAMS[0]) -> dict[str, Any]:
        """Return a setting as a layer.

        For a team it overrides the plain toggles and the sizes of the claims, and the bench's settings override it; on
        a GPU replay is in host memory, as in the programs of the claims, except under the stage ``CHOSEN``. For another
        preset it overrides the bench's settings that the preset has.
        """
        if preset not in TEAMS:
            values = configure(preset).values
            return {name: value for name, value in self.settings.items() if name in values} | dict(setting)
        stage, own = setting.get("stage", 0), {k: v for k, v in setting.items() if k != "stage"}
        toggles = self.chosen if stage == CHOSEN else STAGES[stage]
        host = {"placement": "host"} if self.device.type == "cuda" and stage != CHOSEN else {}
        layer = {**PLAIN, **SIZES, "followers": agents - 1, **host, **toggles, **own, **self.settings}
        low = "fp16" if self.device.type == "cuda" else "bf16"
        return layer | ({"precision": low} if layer["precision"] == LOW else {})

    def config(self, setting: Setting, agents: int = 2, preset: str = TEAMS[0]) -> Config:
        """Configure a run of a team or of another preset under a setting."""
        return configure(preset, self.layer(setting, agents, preset))

    @property
    def chosen(self) -> dict[str, Any]:
        """The named set of toggles for this device, ``gpu`` or ``laptop``."""
        return toggle_presets(self.device)["gpu" if self.device.type == "cuda" else "laptop"]

    def need_gpu(self, what: str) -> None:
        """Raise ``NotTestable`` if there is no GPU."""
        if self.device.type != "cuda":
            raise NotTestable(f"needs a GPU: {what}")


def once(function: F) -> F:
    """Decorate a function of a bench so that equal arguments are measured once and the result is kept."""

    @wraps(function)
    def cached(bench: Bench, *arguments: Any, **named: Any) -> Any:
        key = f"{function.__name__}{arguments}{named}"
        if key not in bench.results:
            bench.results[key] = function(bench, *arguments, **named)
        return bench.results[key]

    return cached  # type: ignore[return-value]


@once
def time_settings(
    bench: Bench, call: str, settings: Sequence[Setting], agents: int = 2, preset: str = TEAMS[0]
) -> list[Row]:
    """Time a call under each setting of a team or of another preset; return the rows of ``compare``."""
    layers = {str(number): bench.layer(setting, agents, preset) for number, setting in enumerate(settings)}
    rows = compare(preset, layers, call=call, rounds=bench.rounds, enough_s=ENOUGH_S)
    _require_effect(rows[-1]["fell_back"])
    return rows


def _require_effect(fell_back: Mapping[str, str]) -> None:
    if fell_back:
        raise NotTestable("; ".join(f"{name} cannot be used: {reason}" for name, reason in fell_back.items()))


@measure
def constant(bench: Bench, note: str, value: float | None = None) -> Estimate:
    """Return a number of the ledger that was calculated, not measured."""
    if value is None:
        raise NotTestable(note)
    return Estimate(value, note=note)


@measure
def gain(
    bench: Bench,
    call: str,
    before: Setting = LOOP,
    after: Setting = LOOP,
    agents: int = 2,
    preset: str = TEAMS[0],
    beside: Setting = LOOP,
) -> Estimate:
    """Measure how many times faster a call becomes; the note also has the speed-up of each setting ``beside``."""
    if "placement" in before:
        bench.need_gpu("copies between host and device")
    slow, fast = time_settings(bench, call, (before, after), agents, preset)
    note = f"{slow['ms']:.3g} ms before, {fast['ms']:.3g} ms after"
    if fast["first_call_s"] >= 1:
        note += f"; the first call takes {fast['first_call_s']:.0f} s"
    for name, setting in beside.items():
        note += f"; {name}: {speedup_text(bench, call, (before, setting), agents, preset)}"
    return Estimate(fast["over_first"], fast["low"], fast["high"], note, fast["rounds"])


def speedup_text(bench: Bench, call: str, settings: Sequence[Setting], *preset: Any) -> str:
    """Measure how many times faster a call becomes, as text; the arguments are those of ``time_settings``."""
    try:
        return f"{time_settings(bench, call, settings, *preset)[1]['over_first']:.2f}x"
    except NotTestable as reason:
        return f"none, {reason}"


def speedup(slow: Callable[[], Any], fast: Callable[[], Any], rounds: int, device: torch.device) -> Estimate:
    """Measure how many times faster one call is than another."""
    seconds = time_in_turn({"slow": slow, "fast": fast}, rounds, device, warm_up=1, enough_s=ENOUGH_S)
    note = f"{1e3 * median(seconds['slow']):.3g} ms before, {1e3 * median(seconds['fast']):.3g} ms after"
    return Estimate(**ratio(seconds["slow"], seconds["fast"], "value"), note=note, rounds=len(seconds["slow"]))


@measure
def lost(bench: Bench, of: str = "gain", **arguments: Any) -> Estimate:
    """Convert the speed-up that another measure returns to the share of time that is lost without it."""
    speedup = MEASURES[of](bench, **arguments)
    low, high = (None if x is None else 1 - 1 / x for x in (speedup.low, speedup.high))
    return replace(speedup, value=1 - 1 / speedup.value, low=low, high=high)


@measure
def duplicates(bench: Bench, agents: int) -> Estimate:
    """Measure the share of the loop's actor evaluations (products of first layers) that repeat another one."""
    counts = []
    for rung in ("loop", "cached"):
        config = bench.config({"update": rung}, agents)
        one = build_call(config, "update")
        with one.rt.scope():
            products = dict(count_work(one.call).products)
        counts.append(products[1, config.source.batch, config.env.spec.obs, config.learner.hidden])
    every, kept = counts
    return Estimate(1 - kept / every, note=f"{every} evaluations of actors in an update, {kept} where they are kept")


@measure
def growth(bench: Bench, setting: Setting) -> Estimate:
    """Measure the speed-up of a setting over the loop at 4 agents, over that at 2."""
    (_, two), (_, four) = (time_settings(bench, "cycle", (LOOP, setting), agents) for agents in (2, 4))
    note = f"{two['over_first']:.2f}x at 2 agents, {four['over_first']:.2f}x at 4"
    value = four["over_first"] / two["over_first"]
    rounds = min(two["rounds"], four["rounds"])
    return Estimate(value, four["low"] / two["high"], four["high"] / two["low"], note, rounds)


@measure
def time_growth(bench: Bench, setting: Setting) -> Estimate:
    """Measure the time of an update at 8 agents over that at 2."""
    times = []
    for agents in (2, 8):
        one = prepare({"": bench.config(setting, agents)}, "update")[""]
        _require_effect(one.rt.fell_back)
        times.append(time_in_turn({"": one.call}, bench.rounds, one.rt.device, warm_up=0, enough_s=ENOUGH_S)[""])
    two, eight = map(median, times)
    note = f"{1e3 * two:.3g} ms at 2 agents, {1e3 * eight:.3g} ms at 8"
    return Estimate(eight / two, note=note, rounds=min(map(len, times)))


@measure
def helps(bench: Bench, **arguments: Any) -> Estimate:
    """Return 1 if a call becomes faster by more than chance, else 0; the arguments are those of ``gain``."""
    result = gain(bench, **arguments)
    note = f"{result.value:.2f}x on {bench.name}, {result.note}"
    return Estimate(float((result.low or 0) > 1), note=note, rounds=result.rounds)


@measure
def acting_rate(bench: Bench) -> Estimate:
    """Measure the share of the device's rate of large matrix products that acting in 128 worlds reaches."""
    one = build_call(bench.config({"acting": "batched", "worlds": 128}), "acting")
    with one.rt.scope():
        seconds = median(time_in_turn({"act": one.call}, bench.rounds, bench.device)["act"])
        rate = count_work(one.call).flops / seconds
        note = f"{rate / 1e9:.3g} GFLOP/s"
        return Estimate(rate / ceilings(bench.device).rate, note=note, rounds=bench.rounds)


@measure
@once
def compiled_networks(bench: Bench, mode: str) -> Estimate:
    """Measure the speed-up of the loop's updates by compiling its networks, each evaluation as one function."""
    one, reasons = build_call(bench.config(LOOP), "update"), list[str]()
    compiled = compile_function(loop.evaluate, "network", mode, reasons.append)

    def call() -> None:
        with patch.object(loop, "evaluate", compiled):
            one.call()

    with one.rt.scope():
        first_s = time_call(call, bench.device)
        if reasons:
            raise NotTestable(f"compile cannot be used: {reasons[0]}")
        result = speedup(one.call, call, bench.rounds, bench.device)
    batched = {"update": "batched"}
    whole = speedup_text(bench, "update", (batched, {**batched, "compile": "default"}))
    note = f"{result.note}; the first call takes {first_s:.0f} s; whole batched updates as one function: {whole}"
    return replace(result, note=note)


@measure
def transfer_ratio(bench: Bench, preset: str, stages: str, to: int, updates: int, episodes: int = 200) -> Estimate:
    """Measure the score of a policy at stage ``to`` (from 1) over that on its own task, with its interval."""
    run = Run(bench.config({"updates": updates}, preset=preset))
    for _ in run.train():
        pass
    trained = choose(run, "best")
    place = places_by_stage(trained.config.evaluation, stages)[to - 1]
    table = transfer(trained, [place], "stage", episodes, 0, mean_action=True)
    over, home = table.rows[0]["ratio"], table.home["mean"]
    note = f"after {updates} updates, {table.metric} {table.rows[0]['score']['mean']:.2f} over {home:.2f}"
    return Estimate(over["mean"], over["low"], over["high"], note=note)


@measure
def utilisation(
    bench: Bench, call: str = "cycle", setting: Setting = LOOP, agents: int = 2, preset: str = TEAMS[0]
) -> Estimate:
    """Measure the share of a call in which a kernel runs on the GPU, for a team or another preset."""
    bench.need_gpu("device utilisation")
    return device_share(bench, build_call(bench.config(setting, agents, preset), call))


def device_share(bench: Bench, one: Call) -> Estimate:
    """Measure the share of a call's time in which any kernel runs on the GPU, even if it uses few units.

    Where NVML answers it is what NVML reports, as in the claims, and else that of a profile.
    """
    with one.rt.scope():
        calls = {"call": one.call}
        seconds = time_in_turn(calls, bench.rounds, bench.device, warm_up=1, enough_s=ENOUGH_S)["call"]
        rows, reported = profile(one.call, bench.device, top=10_000), reported_share(one.call, bench.device)
    profiled = min(1.0, sum(row["device_ms"] for row in rows) / 1e3 / median(seconds))
    if reported is None:
        return Estimate(profiled, note="by a profile, without NVML", rounds=len(seconds))
    return Estimate(reported, note=f"by NVML; {100 * profiled:.3g} % by a profile", rounds=len(seconds))


def reported_share(call: Callable[[], Any], device: torch.device, seconds: float = 3.0) -> float | None:
    """Repeat a call; return the mean utilisation that NVML reports (0 to 1) after the first third, None without it."""
    readings, began = list[float](), time.monotonic()
    with suppress(Exception):  # of the package, which has classes of its own, or of torch
        while (passed := time.monotonic() - began) < seconds:
            time_call(call, device)
            if passed > seconds / 3 + len(readings) * seconds / 30:  # NVML looks back by up to a second
                readings.append(gpu_load(device)["load/gpu"])
    return fmean(readings) if readings else None


@measure
def peak_memory(bench: Bench, after: Setting, before: Setting = LOOP, saved: bool = False, agents: int = 2) -> Estimate:
    """Measure the peak device memory of a run's tensors, ``after`` over ``before``, or the share that is saved."""
    first, second = (memory_mb(bench, setting, agents).value for setting in (before, after))
    note = f"{first:.0f} MB before, {second:.0f} MB after"
    return Estimate(1 - second / first if saved else second / first, note=note)


@measure
def memory_mb(bench: Bench, setting: Setting = LOOP, agents: int = 2, preset: str = TEAMS[0]) -> Estimate:
    """Measure the peak device memory of a run's tensors (MB)."""
    bench.need_gpu("device memory")
    gc.collect()  # what was measured before would be freed during this measurement, and hide as much
    allocated = torch.cuda.memory_allocated(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    one = build_call(bench.config(setting, agents, preset), "cycle")
    with one.rt.scope():
        for _ in range(3):
            one.call()
    return Estimate((torch.cuda.max_memory_allocated(bench.device) - allocated) / 1e6)
