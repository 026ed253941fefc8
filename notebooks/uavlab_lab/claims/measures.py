"""Measures of claims: the bench that all of them share, and measures of the leader-follower team.

The ledger names a measure and its arguments. A technique and the baseline of its claim are timed in turn in one
process. Sizes are those of the claims: batch 128, networks of width 256, an actor for each agent, one world, one step
and one update per cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig, configure
from uavlab.profiling.roofline import ceilings, count_work
from uavlab.profiling.timing import median, ratio, time_in_turn
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles, as_dict, toggle_presets
from uavlab.storage.machine import device_name
from uavlab_lab.measure.compare import Row, build_call, compare, prepare

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

WARM = 10  # cycles before monitoring
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
    """The device, settings and rounds of all measures, with a cache of results.

    Attributes:
        rounds: Interleaved repetitions; calls that take seconds are repeated for ``ENOUGH_S``.
        settings: Settings over those of the claims; smaller sizes are quicker but do not test the claims.
        device: The device of all runs.
        name: The name of the device's model.
        results: Results of functions decorated by ``once``, by name and arguments.
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
        """Check that there is a GPU.

        Raises:
            NotTestable: There is none.
        """
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


@once
def time_setting(bench: Bench, call: str, setting: Setting, agents: int = 2, preset: str = TEAMS[0]) -> list[float]:
    """Time a call under one setting (s), once per round."""
    one = prepare({"": bench.config(setting, agents, preset)}, call)[""]
    _require_effect(one.rt.fell_back)
    return time_in_turn({"": one.call}, bench.rounds, one.rt.device, warm_up=0, enough_s=ENOUGH_S)[""]


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
def share(bench: Bench, stages: Sequence[str]) -> Estimate:
    """Measure the share of time that stages of the plain loop take, by its monitor."""
    if "copy" in stages:
        bench.need_gpu("copies between host and device")
    return Estimate(sum(loop_shares(bench).get(stage, 0.0) for stage in stages), rounds=10 * bench.rounds)


@once
def loop_shares(bench: Bench) -> dict[str, float]:
    """Return the shares of time by stage of the plain loop."""
    monitor = Monitor(bench.device)
    one = build_call(bench.config({"priorities": "mean"}), "cycle", monitor)
    with one.rt.scope():
        for number in range(WARM + 10 * bench.rounds):
            if number == WARM:
                monitor.reset()
            one.call()
        return read_shares(monitor)


def read_shares(monitor: Monitor) -> dict[str, float]:
    """Return the shares of time by stage."""
    return {row["name"]: row["share"] for row in monitor.read()}


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
    loop, cached = counts
    return Estimate(1 - cached / loop, note=f"{loop} evaluations of actors in an update, {cached} where they are kept")


@measure
@once
def batch_size(bench: Bench, setting: Setting) -> Estimate:
    """Measure rows learned per second at two or four times the batch, the larger of both, over those at the batch."""
    size = bench.config({}).source.batch
    settings = {str(k * size): {**bench.layer(setting), "batch": k * size} for k in (1, 2, 4)}
    _, *rows = compare(TEAMS[0], settings, call="update", rounds=bench.rounds)
    note = "; ".join(f"{row['setting']} rows: {row['over_first']:.2f} times the updates per second" for row in rows)
    factors = [(int(row["setting"]) / size, row) for row in rows]
    value, low, high = max((k * row["over_first"], k * row["low"], k * row["high"]) for k, row in factors)
    return Estimate(value, low, high, note, rows[0]["rounds"])


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
    each = [time_setting(bench, "update", setting, agents) for agents in (2, 8)]
    two, eight = map(median, each)
    note = f"{1e3 * two:.3g} ms at 2 agents, {1e3 * eight:.3g} ms at 8"
    return Estimate(eight / two, note=note, rounds=min(map(len, each)))


@measure
def helps(bench: Bench, **arguments: Any) -> Estimate:
    """Return 1 if a call becomes faster by more than chance, else 0; the arguments are those of ``gain``."""
    result = gain(bench, **arguments)
    note = f"{result.value:.2f}x on {bench.name}, {result.note}"
    return Estimate(float((result.low or 0) > 1), note=note, rounds=result.rounds)


@measure
def duration(
    bench: Bench,
    call: str = "cycle",
    setting: Setting = LOOP,
    agents: int = 2,
    preset: str = TEAMS[0],
    count: int = 1,
    unit_s: float = 1.0,
) -> Estimate:
    """Measure the time of ``count`` calls, in units of ``unit_s`` seconds."""
    each = time_setting(bench, call, setting, agents, preset)
    seconds = median(each)
    note = f"{count:,} times {1e3 * seconds:,.3g} ms" if count > 1 else ""
    return Estimate(seconds * count / unit_s, note=note, rounds=len(each))


@measure
def acting_rate(bench: Bench) -> Estimate:
    """Measure the share of the device's rate of large matrix products that acting in 128 worlds reaches."""
    one = build_call(bench.config({"acting": "batched", "worlds": 128}), "acting")
    with one.rt.scope():
        seconds = median(time_in_turn({"act": one.call}, bench.rounds, bench.device)["act"])
        rate = count_work(one.call).flops / seconds
        note = f"{rate / 1e9:.3g} GFLOP/s"
        return Estimate(rate / ceilings(bench.device).rate, note=note, rounds=bench.rounds)
