"""Measures of claims: the bench that they share, and the numbers of a team that learns to follow its leader.

The ledger names a measure and its arguments. A technique is compared, in turn and in one process, with what it is
claimed to be faster than. Sizes are those of the claims: batch 128, networks of width 256, an actor for each agent, one
world, one step and one update per cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch

from uavlab.bench.compare import Call, Row, Settings, acting_call, compare, cycle_call, update_call
from uavlab.bench.timing import median, time_in_turn
from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig, configure
from uavlab.profiling.roofline import ceilings
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.stage_timer import Monitor, count_work
from uavlab.runtime.toggles import Toggles, as_dict, toggle_presets
from uavlab.storage.machine import device_name
from uavlab.train import make_cycle

Setting = Mapping[str, Any]

PLAIN = as_dict(Toggles())
SIZES = {"batch": 128, "hidden": 256, "share": False, "worlds": 1, "learning_starts": 128}

LOOP: Setting = {}
LOW = "low"  # stands for the precision that a device is fast in
STAGES: list[Setting] = [LOOP, {"update": "batched"}]
STAGES.append({**STAGES[1], "precision": LOW, "prefetch": "on", "acting": "batched"})
STAGES.append({**STAGES[2], "compile": "default", "adam": "fused", "optimizers": "one"})
"""The loop, and the three stages of the claims, each with all before it; a setting may begin with ``stage``."""

WARM = 10  # cycles before a monitor watches
EPISODES = {2: 60_060, 4: 251_703}
"""Steps that 500 episodes took in a published run of each team; of others an eighth or two and a half times that."""


class NotTestable(Exception):  # noqa: N818 - an answer, not an error
    """A number cannot be measured on this machine; the message is the reason."""


@dataclass(frozen=True)
class Estimate:
    """A number, its 95 % interval where there is one, and what it depends on."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


Measure = Callable[..., Estimate]
F = TypeVar("F", bound=Callable)
MEASURES: dict[str, Measure] = {}
"""Every measure by the name that the ledger has for it."""


def measure(function: Measure) -> Measure:
    """Register a function of a ``Bench``, and of the ledger's arguments, under its name."""
    MEASURES[function.__name__] = function
    return function


class Bench:
    """Where measurements are made.

    Attributes:
        rounds: Interleaved repetitions.
        settings: Laid over those of the claims: smaller sizes are quicker, and answer other questions.
        device: Where runs compute.
        name: Its maker's name.
        results: Of functions that are ``once``, by their names and arguments.
    """

    def __init__(self, rounds: int = 30, **settings: Any) -> None:
        self.rounds, self.settings = rounds, settings
        self.device = build.runtime(RunConfig(device=settings.get("device", "auto"))).device
        self.name = device_name(self.device)
        self.results: dict[str, Any] = {}

    def layer(self, setting: Setting, agents: int = 2) -> dict[str, Any]:
        """Return a setting over the plain reference, as a whole layer."""
        stage, own = STAGES[setting.get("stage", 0)], {k: v for k, v in setting.items() if k != "stage"}
        layer = {**PLAIN, **SIZES, "followers": agents - 1, **stage, **own, **self.settings}
        return layer | ({"precision": self.low} if layer["precision"] == LOW else {})

    def config(self, setting: Setting, agents: int = 2, env: str = "leader_follower") -> Config:
        """Configure a setting of the claims about teams."""
        return configure(env, self.layer(setting, agents))

    def known(self, preset: str) -> dict[str, Any]:
        """Return the bench's settings that a preset has."""
        values = configure(preset).values
        return {name: value for name, value in self.settings.items() if name in values}

    def preset(self, preset: str, *layers: Setting) -> Config:
        """Configure a preset of another task."""
        return configure(preset, self.known(preset), *layers)

    @property
    def low(self) -> str:
        """The low precision that this device is fast in, if in any: CPUs have units for bfloat16 before float16."""
        return "fp16" if self.device.type == "cuda" else "bf16"

    @property
    def few(self) -> int:
        """Rounds of what takes seconds."""
        return max(3, self.rounds // 10)

    def pair(self, call: str, before: Setting, after: Setting, agents: int = 2, preset: str = "") -> list[Row]:
        """Time a call under two settings of a team, or of another task's preset, in two rows of ``compare``.

        Raises:
            NotTestable: A toggle could not be used.
        """
        if preset:
            known, settings = self.known(preset), {"before": before, "after": after}
            rows = compare(preset, settings, known, call=call, rounds=self.few)
        else:
            rows = compare_once(self, call, {"before": self.layer(before, agents), "after": self.layer(after, agents)})
        if reasons := rows[1]["fell_back"]:
            raise NotTestable("; ".join(f"{name} cannot be used: {reason}" for name, reason in reasons.items()))
        return rows

    def need_gpu(self, what: str) -> None:
        """Check that there is a GPU.

        Raises:
            NotTestable: There is none.
        """
        if self.device.type != "cuda":
            raise NotTestable(f"needs a GPU: {what}")

    def device_share(self, one: Call, rounds: int) -> float:
        """Return the share of a call in which a kernel runs on the GPU, however few of its units that kernel uses."""
        with one.rt.scope():
            seconds = median(time_in_turn({"call": one.call}, rounds, self.device, warm_up=1)["call"])
            rows = profile(one.call, self.device, top=10_000)
        return min(1.0, sum(row["device_ms"] for row in rows) / 1e3 / seconds)


def once(function: F) -> F:
    """Decorate a function of a bench: called again with equal arguments it returns the first result."""

    @wraps(function)
    def cached(bench: Bench, *arguments: Any) -> Any:
        key = f"{function.__name__}{arguments}"
        if key not in bench.results:
            bench.results[key] = function(bench, *arguments)
        return bench.results[key]

    return cached  # type: ignore[return-value]


@once
def compare_once(bench: Bench, call: str, settings: Settings) -> list[Row]:
    """Compare settings of a team, all of them whole layers."""
    return compare("leader_follower", settings, call=call, rounds=bench.rounds)


def as_speedup(rows: Sequence[Row]) -> Estimate:
    """Return the second row of ``compare`` over the first."""
    slow, fast = rows
    note = f"{slow['ms']:.3g} ms before, {fast['ms']:.3g} ms after"
    return Estimate(fast["over_first"], fast["low"], fast["high"], note)


@measure
def constant(bench: Bench, note: str, value: float | None = None) -> Estimate:
    """Return a number that the ledger holds, worked out and not measured.

    Raises:
        NotTestable: It holds none, only the reason.
    """
    if value is None:
        raise NotTestable(note)
    return Estimate(value, note=note)


@measure
def gain(
    bench: Bench, call: str, before: Setting = LOOP, after: Setting = LOOP, agents: int = 2, preset: str = ""
) -> Estimate:
    """Measure how many times faster a call becomes, of a team or of another task's preset."""
    if "placement" in before:
        bench.need_gpu("copies between host and device")
    return as_speedup(bench.pair(call, before, after, agents, preset))


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
    return Estimate(sum(loop_shares(bench).get(stage, 0.0) for stage in stages))


@once
def loop_shares(bench: Bench) -> dict[str, float]:
    """Return the shares of time by stage of the plain loop."""
    host = {"placement": "host"} if bench.device.type == "cuda" else {}
    monitor = Monitor(bench.device)
    rt, rng, learner, source = build.assemble(bench.config({"priorities": "mean", **host}), monitor)
    cycle = make_cycle(source, learner, rng, rt)
    with rt.scope():
        for number in range(WARM + 10 * bench.rounds):
            if number == WARM:
                monitor.reset()
            cycle()
        return read_shares(monitor)


def read_shares(monitor: Monitor) -> dict[str, float]:
    """Return the shares of time by stage."""
    return {row["name"]: row["share"] for row in monitor.read()}


@measure
def duplicates(bench: Bench, agents: int) -> Estimate:
    """Count which part of the loop's evaluations of actors repeats another: N - 1 of N."""
    loop, cached = (_evaluations(bench, {"update": rung}, agents) for rung in ("loop", "cached"))
    return Estimate(1 - cached / loop, note=f"{loop} evaluations of actors in an update, {cached} where they are kept")


def _evaluations(bench: Bench, setting: Setting, agents: int) -> int:
    """Count the products of an update that have the shape of an actor's first layer."""
    config = bench.config(setting, agents)
    one = update_call(config)
    with one.rt.scope():
        products = dict(count_work(one.call).products)
    return products[1, config.source.batch, config.env.spec.obs, config.learner.hidden]


@measure
def low_precision(bench: Bench) -> Estimate:
    """Measure updates in low precision over float32."""
    before, lower = {"stage": 1}, {"stage": 1, "precision": "fp16"}
    speedup = gain(bench, "update", before, {"stage": 1, "precision": LOW})
    if bench.low == "fp16":
        return speedup
    half = _text(lambda: gain(bench, "update", before, lower))
    return replace(speedup, note=f"in bf16: {speedup.note}; in fp16 itself: {half}")


def _text(speedup: Callable[[], Estimate]) -> str:
    try:
        return f"{speedup().value:.2f}x"
    except NotTestable as reason:
        return f"none, {reason}"


@measure
def batch_size(bench: Bench) -> Estimate:
    """Measure the most rows learned per second at two and four times the batch, over those at the batch."""
    size = bench.config({}).source.batch
    settings = {str(k * size): {**bench.layer({"stage": 1}), "batch": k * size} for k in (1, 2, 4)}
    _, *rows = compare_once(bench, "update", settings)
    note = "; ".join(f"{row['setting']} rows: {row['over_first']:.2f} times the updates per second" for row in rows)
    factors = [(int(row["setting"]) / size, row) for row in rows]
    value, low, high = max((k * row["over_first"], k * row["low"], k * row["high"]) for k, row in factors)
    return Estimate(value, low, high, note)


@measure
def total(bench: Bench, agents: int = 2) -> Estimate:
    """Measure whole cycles with all three stages over the loop; the note has the toggles chosen for this device."""
    speedup = gain(bench, "cycle", LOOP, {"stage": 3}, agents)
    name = "gpu" if bench.device.type == "cuda" else "laptop"
    toggles = toggle_presets(bench.device)[name]
    text = _text(lambda: gain(bench, "cycle", LOOP, toggles, agents))
    return replace(speedup, note=f"{speedup.note}; the toggles of `{name}`: {text}")


@measure
def growth(bench: Bench) -> Estimate:
    """Measure the speed-up of all stages at 4 agents over that at 2."""
    (_, two), (_, four) = (bench.pair("cycle", LOOP, {"stage": 3}, agents) for agents in (2, 4))
    note = f"{two['over_first']:.2f}x at 2 agents, {four['over_first']:.2f}x at 4"
    value = four["over_first"] / two["over_first"]
    return Estimate(value, four["low"] / two["high"], four["high"] / two["low"], note)


@measure
def on_cpu(bench: Bench) -> Estimate:
    """Return 1 if the toggles chosen for a CPU make whole cycles on it faster, else 0."""
    cpu = bench if bench.device.type == "cpu" else Bench(bench.rounds, **bench.settings | {"device": "cpu"})
    _, row = cpu.pair("cycle", LOOP, toggle_presets(cpu.device)["laptop"])
    return Estimate(float(row["low"] > 1), note=f"{row['over_first']:.2f}x with the toggles of `laptop` on {cpu.name}")


@measure
def hours(bench: Bench, agents: int) -> Estimate:
    """Measure the hours that all stages would take for as many steps as 500 episodes took in one published run."""
    slow, fast = (1e3 / row["ms"] for row in bench.pair("cycle", LOOP, {"stage": 3}, agents))
    rates = f"{slow:.0f} updates/s before and {fast:.0f} updates/s after"
    steps = EPISODES[agents]
    return Estimate(steps / fast / 3600, note=f"{rates}; hours for the {steps:,} steps of one published run")


@measure
def utilisation(bench: Bench, setting: Setting = LOOP, preset: str = "", note: str = "") -> Estimate:
    """Measure the share of a cycle, of a team or of another task's preset, in which a kernel runs on the GPU."""
    bench.need_gpu("device utilisation")
    config = bench.preset(preset, setting) if preset else bench.config(setting)
    return Estimate(bench.device_share(cycle_call(config), bench.few if preset else bench.rounds), note=note)


@measure
def peak_memory(bench: Bench, after: Setting, before: Setting = LOOP, saved: bool = False) -> Estimate:
    """Measure the most device memory that tensors of a run take, after over before, or the part that is saved."""
    bench.need_gpu("device memory")
    first, second = (_peak(bench, setting) for setting in (before, after))
    note = f"{first / 1e6:.0f} MB before, {second / 1e6:.0f} MB after"
    return Estimate(1 - second / first if saved else second / first, note=note)


def _peak(bench: Bench, setting: Setting) -> int:
    allocated = torch.cuda.memory_allocated(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    one = cycle_call(bench.config(setting))
    with one.rt.scope():
        for _ in range(3):
            one.call()
    return torch.cuda.max_memory_allocated(bench.device) - allocated


@measure
def acting_rate(bench: Bench) -> Estimate:
    """Measure the share of the device's rate of large matrix products that acting in 128 worlds reaches."""
    one = acting_call(bench.config({"acting": "batched", "worlds": 128}))
    with one.rt.scope():
        seconds = median(time_in_turn({"act": one.call}, bench.rounds, bench.device)["act"])
        rate = count_work(one.call).flops / seconds
        return Estimate(rate / ceilings(bench.device).rate, note=f"{rate / 1e9:.3g} GFLOP/s")
