"""Measures of update intervals with slow worlds, whose time per step is adjustable.

An interval k means k consecutive steps and then k updates; the number of gradient steps is the same as with 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from uavlab.core.errors import ResourceError
from uavlab.envs.leader_follower.env import SlowLeaderFollower
from uavlab.experiment.config import configure
from uavlab.profiling.timing import ratio, time_call
from uavlab.runtime.stage_timer import Monitor
from uavlab.storage.machine import usable_cores
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable, Setting, measure, once, read_shares
from uavlab_lab.measure.compare import build_call
from uavlab_lab.scaling import gain
from uavlab_lab.suites.ranks import time_groups
from uavlab_lab.suites.scale import CLUSTERS, measure_load

SIZES = {"update": "batched", "acting": "batched", "batch": 512, "hidden": 64, "learning_starts": 1, "step_ms": 0.0}
GAME_MS = 80.0
PACE = GAME_MS / 22.5  # time of a game step over that of an update, 20 to 25 ms in the claims
BLOCK = 20  # updates, a multiple of every interval
OUTSIDE = ("environment", "acting", "store", "draw", "copy")  # stages that are not the learner's


@dataclass(frozen=True)
class Block:
    """Time of some updates and their steps: the learner's and the environment's share, and the total (s)."""

    learner: float
    environment: float
    seconds: float


@dataclass(frozen=True)
class PacedWorld(SlowLeaderFollower):
    """A slow world whose time per step may change while it runs.

    Attributes:
        pace_ms: Waiting time of the next steps (ms), in a list of one number that the caller may change.
    """

    pace_ms: list[float] = field(default_factory=lambda: [0.0], compare=False)

    def transition(self, state: Any, action: Any, noise: Any) -> Any:
        """Wait for ``pace_ms``, then move all agents by one step."""
        return SlowLeaderFollower.transition(replace(self, step_ms=self.pace_ms[0]), state, action, noise)


def paced_blocks(bench: Bench, setting: Setting) -> Callable[[float], Block]:
    """Build a function that runs one block of updates; its argument is the waiting time of a step (ms)."""
    config = bench.config({**SIZES, **setting}, preset="slow_leader_follower")
    world = PacedWorld(**{f.name: getattr(config.env, f.name) for f in fields(config.env)})
    overlap = config.toggles.prefetch == "overlap"
    monitor = None if overlap else Monitor(bench.device)  # a monitor times one thread alone
    one = build_call(replace(config, env=world), "cycle", monitor)

    def block(step_ms: float) -> Block:
        world.pace_ms[0] = step_ms
        if monitor:
            monitor.reset()
        with one.rt.scope():
            for _ in range(config.toggles.interval * overlap):  # ends steps that began in the last block
                one.call()
            seconds = time_call(lambda: [one.call() for _ in range(BLOCK)], one.rt.device)
        shares = read_shares(monitor) if monitor else {}
        learner_share = sum(part for stage, part in shares.items() if stage not in OUTSIDE)
        return Block(learner_share, shares.get("environment", 0.0), seconds)

    block(0.0)  # warm-up
    return block


@once
def measure_intervals(bench: Bench) -> dict[str, list[Block]]:
    """Time intervals 1 and 10, and ``overlap`` of worlds and learner, in turn; steps take ``PACE`` times an update."""
    settings = {str(k): {"interval": k} for k in (1, 10)} | {"overlap": {"interval": 10, "prefetch": "overlap"}}
    blocks = {name: paced_blocks(bench, setting) for name, setting in settings.items()}
    update_ms = 1.0
    for _ in range(2):  # an update takes longer after a wait than after another update
        trial = blocks["1"](PACE * update_ms)
        update_ms = 1e3 * trial.learner * trial.seconds / BLOCK
    rounds = [
        {name: block(PACE * update_ms) for name, block in blocks.items()} for _ in range(max(1, bench.rounds // 3))
    ]
    return {name: [each[name] for each in rounds] for name in blocks}


@measure
def interval_gain(bench: Bench) -> Estimate:
    """Measure the time of a block of updates at interval 1 over that at interval 10."""
    seconds = {name: [block.seconds for block in blocks] for name, blocks in measure_intervals(bench).items()}
    overlap = ratio(seconds["1"], seconds["overlap"])["median"]
    note = f"on one device; with the worlds stepped beside the updates (prefetch=overlap): {overlap:.2f}x"
    return Estimate(**ratio(seconds["1"], seconds["10"], "value"), note=note, rounds=len(seconds["1"]))


@measure
def game_share(bench: Bench, stage: str, batch: int = 64, hidden: int = 256) -> Estimate:
    """Measure the share of the time of ``learner`` or ``environment`` with steps of 80 ms."""
    block = paced_blocks(bench, {"batch": batch, "hidden": hidden})(GAME_MS)
    return Estimate(getattr(block, stage), rounds=1)


@measure
def devices_gain(bench: Bench, devices: int, interval: int = 1) -> Estimate:
    """Refuse what needs several GPUs; the reason has the gain of such devices by a model, and of two ranks here."""
    name, (count, link) = next((name, each) for name, each in CLUSTERS.items() if each[0] == devices)
    load = measure_load(bench.config({**SIZES, "interval": interval}, preset="slow_leader_follower"), bench.rounds)
    planned = f"{gain(load, count, link):.2f}x by the model of the suite scale for {name}, where no step waits"
    raise NotTestable(f"needs {devices} GPUs with a rank on each; {planned}; {two_ranks(bench, interval)}")


def two_ranks(bench: Bench, interval: int) -> str:
    """Return what two ranks gain here over one at interval 1, or why they fail.

    Their worlds wait, as a game does, so they may gain even where they share a core or a GPU.
    """
    one, two = "interval_1", f"interval_{interval}"
    groups = {1: (one, 1), 2: (two, 2)}
    cpu = bench.device.type == "cpu"
    count = usable_cores() if cpu else torch.cuda.device_count()
    where = f"two ranks of {two} on {bench.name} ({count} {'core' if cpu else 'GPU'}{'s' * (count > 1)})"
    try:
        seconds, _ = time_groups(groups, BLOCK, bench.rounds, bench.settings.get("device", "auto"))
    except ResourceError as reason:
        return f"{where} fail: {str(reason).rstrip('.')}"
    here = ratio(seconds[1], seconds[2], "value")
    value, low, high = (2 * here[each] for each in ("value", "low", "high"))
    values = configure(one).values
    return (
        f"{where}, whose steps wait {values['step_ms'] + values['pause_ms']:g} ms in the mean: {value:.2f}x the rows "
        f"per second of one rank of {one} ({low:.2f} to {high:.2f} in {bench.rounds} rounds)"
    )
