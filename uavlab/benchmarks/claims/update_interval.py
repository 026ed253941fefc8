"""Measures of update intervals where worlds, not updates, take the time: beside a world of adjustable pace.

With an interval k, k steps are made in a row and then k updates; the gradient steps are as many as with 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from uavlab.benchmarks.claims.measures import Bench, Estimate, Setting, measure, once, read_shares
from uavlab.benchmarks.compare import build_call
from uavlab.benchmarks.timing import median, ratio, time_call
from uavlab.envs.leader_follower.env import SlowLeaderFollower
from uavlab.experiment import build
from uavlab.runtime.stage_timer import Monitor

SIZES = {"update": "batched", "acting": "batched", "batch": 512, "hidden": 64, "learning_starts": 1, "step_ms": 0.0}
GAME_MS = 80.0
PACE = GAME_MS / 22.5  # a step of the game over an update, of which the claims have it take 20 to 25 ms
INTERVALS = (1, 5, 10, 20)
BLOCK = 20  # updates: whole rounds of every interval
OUTSIDE = ("environment", "acting", "store", "draw", "copy")  # stages that are not the learner's


@dataclass(frozen=True)
class Block:
    """Some updates and their steps: the learner's and the environment's share of the time, and all of it (s)."""

    learner: float
    environment: float
    seconds: float


@dataclass(frozen=True)
class PacedWorld(SlowLeaderFollower):
    """A slow world whose pace may change while it runs.

    Attributes:
        pace_ms: The time that a step keeps the host waiting from now on (ms), in a list that its owner writes to.
    """

    pace_ms: list[float] = field(default_factory=lambda: [0.0], compare=False)

    def transition(self, state: Any, action: Any, noise: Any) -> Any:
        """Wait for the present time, then move all agents by one step."""
        return SlowLeaderFollower.transition(replace(self, step_ms=self.pace_ms[0]), state, action, noise)


def paced_blocks(bench: Bench, setting: Setting) -> Callable[[float], Block]:
    """Build a loop beside a world of adjustable pace: each call takes the time of a step (ms) and runs one block."""
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
            for _ in range(config.toggles.interval * overlap):  # steps that began in the last block are over by now
                one.call()
            seconds = time_call(lambda: [one.call() for _ in range(BLOCK)], one.rt.device)
        shares = read_shares(monitor) if monitor else {}
        learner_share = sum(part for stage, part in shares.items() if stage not in OUTSIDE)
        return Block(learner_share, shares.get("environment", 0.0), seconds)

    block(0.0)  # the first updates also prepare
    return block


@once
def measure_intervals(bench: Bench) -> dict[str, list[Block]]:
    """Run every interval, and ``overlap`` of worlds and learner, in turn beside a world of the claimed ``PACE``."""
    settings = {str(k): {"interval": k} for k in INTERVALS} | {"overlap": {"interval": 10, "prefetch": "overlap"}}
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
def learner_share(bench: Bench, interval: int) -> Estimate:
    """Measure the learner's share of the time at an update interval."""
    return Estimate(median([block.learner for block in measure_intervals(bench)[str(interval)]]))


@measure
def interval_gain(bench: Bench) -> Estimate:
    """Measure the time of as many updates at interval 1 over that at 10."""
    seconds = {name: [block.seconds for block in blocks] for name, blocks in measure_intervals(bench).items()}
    overlap = ratio(seconds["1"], seconds["overlap"])["median"]
    note = f"on one device; with the worlds stepped beside the updates (prefetch=overlap): {overlap:.2f}x"
    return Estimate(**ratio(seconds["1"], seconds["10"], "value"), note=note)


@measure
def game_share(bench: Bench) -> Estimate:
    """Measure the share of a world that takes 80 ms a step, beside updates of 64 rows."""
    return Estimate(paced_blocks(bench, {"batch": 64, "hidden": 256})(GAME_MS).environment)


@measure
def updates_per_episode(bench: Bench, steps: int = 200, interval: int = 10) -> Estimate:
    """Count the updates of an episode of ``steps`` steps at an update interval."""
    _, _, _, source = build.assemble(bench.config({"interval": interval}))
    source.before_cycle()
    start, updates = source.steps, 0
    while source.steps - start < steps or source.turn:
        source.next()
        updates += 1
    return Estimate(updates, note=f"{steps // interval} times {interval} updates")
