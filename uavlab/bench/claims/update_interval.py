"""What an update interval does where worlds, not updates, take the time: measured beside a world of adjustable pace.

With an interval k, k steps are made in a row and then k updates; the gradient steps are as many as with 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from uavlab.bench.claims.leader_follower import Bench, Measure, Measured, NotTestable, Setting, read_shares
from uavlab.bench.timing import median, ratio, timed
from uavlab.envs.leader_follower.delayed import SlowLeaderFollower
from uavlab.experiment import build
from uavlab.runtime.stage_timer import Monitor
from uavlab.train import make_cycle

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


def beside(bench: Bench, setting: Setting) -> Callable[[float], Block]:
    """Build a loop beside a world whose step takes the host as long as it is told (ms); each call makes a block."""
    config = bench.config({**SIZES, **setting}, env="slow_leader_follower")
    at_once = config.toggles.prefetch == "overlap"
    monitor = None if at_once else Monitor(bench.device)  # which knows one thread
    rt, rng, learner, source = build.assembled(config, monitor)
    cycle, world = make_cycle(source, learner, rng, rt), cast(SlowLeaderFollower, config.env)

    def block(step_ms: float) -> Block:
        source.env = replace(world, step_ms=step_ms)
        if monitor:
            monitor.reset()
        with rt.scope():
            for _ in range(config.toggles.interval * at_once):  # steps begun in the last block have long been made
                cycle()
            seconds = timed(lambda: [cycle() for _ in range(BLOCK)], rt.device)
        shares = read_shares(monitor) if monitor else {}
        learned = sum(part for stage, part in shares.items() if stage not in OUTSIDE)
        return Block(learned, shares.get("environment", 0.0), seconds)

    block(0.0)  # the first updates also prepare
    return block


def paced(bench: Bench) -> dict[str, list[Block]]:
    """Run every interval in turn beside a world of the claimed ``PACE``; and once with worlds and learner at once."""
    settings = {str(k): {"interval": k} for k in INTERVALS} | {"overlap": {"interval": 10, "prefetch": "overlap"}}
    blocks = {name: beside(bench, setting) for name, setting in settings.items()}
    update_ms = 1.0
    for _ in range(2):  # an update takes longer after a wait than after another update
        trial = blocks["1"](PACE * update_ms)
        update_ms = 1e3 * trial.learner * trial.seconds / BLOCK
    rounds = [
        {name: block(PACE * update_ms) for name, block in blocks.items()} for _ in range(max(1, bench.rounds // 3))
    ]
    return {name: [made[name] for made in rounds] for name in blocks}


def utilisation(bench: Bench, interval: int) -> Measured:
    """Give the learner's share of the time at an update interval."""
    found = bench.once("paced", partial(paced, bench))
    return Measured(median([block.learner for block in found[str(interval)]]))


def speedup(bench: Bench) -> Measured:
    """Give the time of as many updates at interval 1 over that at 10."""
    found = bench.once("paced", partial(paced, bench))
    seconds = {name: [block.seconds for block in blocks] for name, blocks in found.items()}
    over, overlap = (ratio(seconds["1"], seconds[name]) for name in ("10", "overlap"))
    note = f"on one device; with the worlds stepped beside the updates (prefetch=overlap): {overlap['median']:.2f}x"
    return Measured(over["median"], over["low"], over["high"], note)


def game(bench: Bench) -> Measured:
    """Give the share of a world that takes 80 ms a step, beside updates of 64 rows."""
    return Measured(beside(bench, {"batch": 64, "hidden": 256})(GAME_MS).environment)


def counted(bench: Bench, steps: int = 200, every: int = 10) -> Measured:
    """Count the updates of an episode of ``steps`` steps, at update interval ``every``."""
    _, _, _, source = build.assembled(bench.config({"interval": every}))
    source.before_cycle()
    begun, updates = source.steps, 0
    while source.steps - begun < steps or source.turn:
        source.next()
        updates += 1
    return Measured(updates, note=f"{steps // every} times {every} updates")


def multiplied(bench: Bench) -> Measured:
    """Multiply what the claim multiplies."""
    return Measured(6250 * 200 / 10 * 8, note="6,250 episodes x 200 steps / 10 x 8 devices")


def no_engine(bench: Bench) -> Measured:
    """Refuse.

    Raises:
        NotTestable: Always.
    """
    raise NotTestable("needs the game's own engine")


MEASURES: dict[str, Measure] = {
    **{f"busy_interval_{k}": partial(utilisation, interval=k) for k in INTERVALS},
    "interval_speedup": speedup,
    "game_share": game,
    "game_engine": no_engine,
    "updates_counted": counted,
    "updates_multiplied": multiplied,
}
"""Every number of update intervals that can be had, by its name in the ledger."""
