"""What a claim's number is on this machine: functions that measure one number each, of training one team.

A technique is compared, in turn and in one process, with what it is said to be faster than. Sizes are those of the
claims: batch 128, networks of width 256, an actor for each agent, one world, one step and one update per cycle.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from uavlab.bench.compare import compare, update_call
from uavlab.experiment import build
from uavlab.experiment.config import Config, RunConfig, configure
from uavlab.runtime.stage_timer import Monitor, count_work
from uavlab.runtime.toggles import Toggles, toggle_presets
from uavlab.storage.machine import device_name
from uavlab.train import make_cycle

Setting = Mapping[str, Any]

PLAIN = asdict(Toggles())
SIZES = {"batch": 128, "hidden": 256, "share": False, "worlds": 1, "learning_starts": 128}

LOW = "low"  # stands for the precision that a device is fast in
LOOP: Setting = {}
STAGE_1 = {"update": "batched"}
STAGE_2 = STAGE_1 | {"precision": LOW, "prefetch": "on", "acting": "batched"}
STAGE_3 = STAGE_2 | {"compile": "default", "adam": "fused", "optimizers": "one"}
"""The three stages that the claims are about, each with all before it."""

WARM = 10  # cycles before a monitor watches
EPISODES = {2: 60_060, 4: 251_703}
"""Steps that 500 episodes took in a published run of each team; of others an eighth or two and a half times that."""


class NotTestable(Exception):  # noqa: N818 - an answer, not an error
    """A number cannot be had on this machine; the message says why."""


@dataclass(frozen=True)
class Measured:
    """A number, its 95 % interval where there is one, and what it depends on."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


class Bench:
    """Where measurements are made; what several claims need is measured once.

    Attributes:
        rounds: Interleaved repetitions.
        settings: Laid over those of the claims: smaller sizes are quicker, and answer other questions.
        device: Where runs compute.
        name: What its maker calls it.
    """

    def __init__(self, rounds: int = 30, **settings: Any) -> None:
        self.rounds, self.settings = rounds, settings
        self.device = build.runtime(RunConfig(device=settings.get("device", "auto"))).device
        self.name = device_name(self.device)
        self._kept: dict[str, Any] = {}

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """Give what ``make`` gave the first time."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def layer(self, setting: Setting, agents: int = 2) -> dict[str, Any]:
        """Lay a setting over the plain reference."""
        layer = {**PLAIN, **SIZES, "followers": agents - 1, **setting, **self.settings}
        return layer | ({"precision": self.low} if layer["precision"] == LOW else {})

    def config(self, setting: Setting, agents: int = 2, env: str = "leader_follower") -> Config:
        """Make a setting valid."""
        return configure(env, self.layer(setting, agents))

    @property
    def low(self) -> str:
        """The low precision that this device is fast in, if in any: CPUs have units for bfloat16 before float16."""
        return "fp16" if self.device.type == "cuda" else "bf16"

    def pair(self, call: str, slow: Setting, fast: Setting, agents: int = 2) -> list[dict[str, Any]]:
        """Time a call under two settings; rows of ``compare``.

        Raises:
            NotTestable: A toggle could not be used.
        """
        settings = {"slow": self.layer(slow, agents), "fast": self.layer(fast, agents)}
        make = partial(compare, "leader_follower", settings, call=call, rounds=self.rounds)
        rows = self.once(f"{call} {settings}", make)
        if reasons := rows[1]["fell_back"]:
            raise NotTestable("; ".join(f"{name} cannot be used: {reason}" for name, reason in reasons.items()))
        return rows


Measure = Callable[[Bench], Measured]


def gain(bench: Bench, call: str, slow: Setting, fast: Setting, agents: int = 2) -> Measured:
    """Measure how many times faster a call becomes."""
    before, after = bench.pair(call, slow, fast, agents)
    note = f"{before['ms']:.3g} ms before, {after['ms']:.3g} ms after"
    return Measured(after["over_first"], after["low"], after["high"], note)


def lost(bench: Bench, without: Measure) -> Measured:
    """Turn a speed-up into the share of time that is lost without it."""
    found = without(bench)
    low, high = (None if x is None else 1 - 1 / x for x in (found.low, found.high))
    return replace(found, value=1 - 1 / found.value, low=low, high=high)


def need_gpu(bench: Bench, what: str) -> None:
    """Refuse where there is no GPU.

    Raises:
        NotTestable: There is none.
    """
    if bench.device.type != "cuda":
        raise NotTestable(f"needs a GPU: {what}")


def share(bench: Bench, stages: tuple[str, ...]) -> Measured:
    """Give the share of time that stages of the plain loop take, by its monitor."""
    if "copy" in stages:
        need_gpu(bench, "copies between host and device")
    shares = bench.once("shares", partial(_shares, bench))
    return Measured(sum(shares.get(stage, 0.0) for stage in stages))


def _shares(bench: Bench) -> dict[str, float]:
    host = {"placement": "host"} if bench.device.type == "cuda" else {}
    monitor = Monitor(bench.device)
    rt, rng, learner, source = build.assembled(bench.config({"priorities": "mean", **host}), monitor)
    cycle = make_cycle(source, learner, rng, rt)
    with rt.scope():
        for number in range(WARM + 10 * bench.rounds):
            if number == WARM:
                monitor.reset()
            cycle()
        return read_shares(monitor)


def read_shares(monitor: Monitor) -> dict[str, float]:
    """Give the shares of time by stage."""
    return {row["name"]: row["share"] for row in monitor.read()}


def duplicates(bench: Bench, agents: int) -> Measured:
    """Count which part of the loop's evaluations of actors it had made before: N - 1 of N."""
    made, kept = (_evaluations(bench, {"update": rung}, agents) for rung in ("loop", "cached"))
    return Measured(1 - kept / made, note=f"{made} evaluations of actors in an update, {kept} where they are kept")


def _evaluations(bench: Bench, setting: Setting, agents: int) -> int:
    """Count the products of an update that have the shape of an actor's first layer."""
    config = bench.config(setting, agents)
    one = update_call(config)
    with one.rt.scope():
        products = dict(count_work(one.call).products)
    return products[1, config.source.batch, config.env.spec.obs, config.learner.hidden]


def precision(bench: Bench) -> Measured:
    """Measure updates in low precision over float32."""
    found = gain(bench, "update", STAGE_1, STAGE_1 | {"precision": LOW})
    if bench.low == "fp16":
        return found
    half = told(bench, partial(gain, call="update", slow=STAGE_1, fast=STAGE_1 | {"precision": "fp16"}))
    return replace(found, note=f"in bf16: {found.note}; in fp16 itself: {half}")


def told(bench: Bench, of: Measure) -> str:
    """Give a speed-up, or why there is none, in words."""
    try:
        return f"{of(bench).value:.2f}x"
    except NotTestable as reason:
        return f"none, {reason}"


def sweep(bench: Bench) -> Measured:
    """Give the most rows learned per second at two and four times the batch, over those at the batch."""
    size = bench.config({}).source.batch
    settings = {str(k * size): {**bench.layer(STAGE_1), "batch": k * size} for k in (1, 2, 4)}
    _, *rows = bench.once("sweep", partial(compare, "leader_follower", settings, rounds=bench.rounds))
    note = "; ".join(f"{row['setting']} rows: {row['over_first']:.2f} times the updates per second" for row in rows)
    factors = [int(row["setting"]) / size for row in rows]
    value, low, high = max(
        (f * row["over_first"], f * row["low"], f * row["high"]) for f, row in zip(factors, rows, strict=True)
    )
    return Measured(value, low, high, note)


def total(bench: Bench, agents: int = 2) -> Measured:
    """Measure whole cycles with all three stages over the loop, and beside them what is chosen for this device."""
    found = gain(bench, "cycle", LOOP, STAGE_3, agents)
    name = "gpu" if bench.device.type == "cuda" else "laptop"
    chosen = partial(gain, call="cycle", slow=LOOP, fast=toggle_presets(bench.device)[name], agents=agents)
    return replace(found, note=f"{found.note}; the toggles of `{name}`: {told(bench, chosen)}")


def growth(bench: Bench) -> Measured:
    """Give the speed-up of all stages at 4 agents over that at 2."""
    (_, two), (_, four) = (bench.pair("cycle", LOOP, STAGE_3, agents) for agents in (2, 4))
    note = f"{two['over_first']:.2f}x at 2 agents, {four['over_first']:.2f}x at 4"
    value = four["over_first"] / two["over_first"]
    return Measured(value, four["low"] / two["high"], four["high"] / two["low"], note)


def on_cpu(bench: Bench) -> Measured:
    """Tell whether the toggles chosen for a CPU make whole cycles on it faster: 1 or 0."""
    cpu = bench if bench.device.type == "cpu" else Bench(bench.rounds, **bench.settings | {"device": "cpu"})
    _, row = cpu.pair("cycle", LOOP, toggle_presets(cpu.device)["laptop"])
    return Measured(float(row["low"] > 1), note=f"{row['over_first']:.2f}x with the toggles of `laptop` on {cpu.name}")


def hours(bench: Bench, agents: int) -> Measured:
    """Give the hours that all stages would take for as many steps as 500 episodes took in one published run."""
    before, after = bench.pair("cycle", LOOP, STAGE_3, agents)
    rates = " and ".join(
        f"{1e3 / row['ms']:.0f} updates/s {when}" for row, when in ((before, "before"), (after, "after"))
    )
    steps = EPISODES[agents]
    return Measured(steps * after["ms"] / 3.6e6, note=f"{rates}; hours for the {steps:,} steps of one published run")


CACHED, MERGED, ACTING = {"update": "cached"}, {"update": "merged"}, {"acting": "batched"}
_compiled = partial(gain, call="update", slow=STAGE_1, fast=STAGE_1 | {"compile": "default"})

MEASURES: dict[str, Measure] = {
    "environment_share": partial(share, stages=("environment",)),
    "draw_share": partial(share, stages=("draw",)),
    "copy_share": partial(share, stages=("copy",)),
    "forward_share": partial(share, stages=("forward", "target")),
    "backward_share": partial(share, stages=("backward",)),
    "optimizer_share": partial(share, stages=("optimizer",)),
    "cached": partial(gain, call="update", slow=LOOP, fast=CACHED),
    "merged": partial(gain, call="update", slow=CACHED, fast=MERGED),
    "duplicates_2": partial(duplicates, agents=2),
    "duplicates_4": partial(duplicates, agents=4),
    "precision": precision,
    "prefetch": partial(gain, call="cycle", slow=STAGE_1, fast=STAGE_1 | {"prefetch": "on"}),
    "acting": partial(gain, call="acting", slow=LOOP, fast=ACTING),
    "batch": sweep,
    "compile": _compiled,
    "stage_1": partial(gain, call="cycle", slow=LOOP, fast=STAGE_1),
    "stage_2_over_1": partial(gain, call="cycle", slow=STAGE_1, fast=STAGE_2),
    "stage_3_over_2": partial(gain, call="cycle", slow=STAGE_2, fast=STAGE_3),
    "total_2": total,
    "growth": growth,
    "on_cpu": on_cpu,
    "lost_to_loop": partial(lost, without=partial(gain, call="update", slow=LOOP, fast=STAGE_1)),
    "lost_to_fp32": partial(lost, without=precision),
    "lost_to_acting": partial(lost, without=partial(gain, call="cycle", slow=LOOP, fast=ACTING)),
    "lost_to_batch": partial(lost, without=sweep),
    "lost_to_eager": partial(lost, without=_compiled),
    "hours_2": partial(hours, agents=2),
    "hours_4": partial(hours, agents=4),
}
"""Every number of one team's training that can be had, by its name in the ledger."""
