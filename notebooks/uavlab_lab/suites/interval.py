"""Update intervals with slow worlds: in one process, in turn; of ranks that wait; and by a model of such devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from uavlab.benchmarks import Option, Record, suite
from uavlab.envs.leader_follower.env import SlowLeaderFollower
from uavlab.experiment.config import Device, configure
from uavlab.profiling.timing import median, ratio, time_call
from uavlab.runtime.stage_timer import Monitor
from uavlab_lab.claims.measures import Bench, Setting
from uavlab_lab.measure.compare import Settings, build_call
from uavlab_lab.scaling import Link, Load, interval_gain, longest_wait
from uavlab_lab.suites.ranks import time_groups
from uavlab_lab.suites.scale import COLLECT

SIZES = {"update": "batched", "acting": "batched", "batch": 512, "hidden": 64, "learning_starts": 1, "step_ms": 0.0}
BLOCK = 20  # updates, a multiple of every interval
INTERVALS = (1, 5, 10, 20)
DEVICES = (2, 8, 64)
FREE = Link(bandwidth=float("inf"), latency=0.0)  # sums of gradients that take no time


@suite(
    "interval",
    about="update intervals with slow worlds, in turn and overlapped; by a model for devices that wait",
    options=[
        Option("worlds", "worlds that are stepped at once; default 1, 16 and 64", (1, 100_000)),
        Option("pace", "time of a step over that of an update; default 1", (0.01, 1000.0), float, several=False),
        Option("ranks", "also time so many ranks of the presets interval_K, which wait for each other", (1, 64)),
    ],
)
def interval_suite(
    rounds: int,
    device: Device,
    worlds: Sequence[int] = (1, 16, 64),
    pace: float = 1.0,
    ranks: Sequence[int] = (),
    **sizes: Any,
) -> Record:
    """Time the same updates at each interval, with steps between updates and beside them, in turn in this process.

    Returns:
        Rows ``worlds, interval, overlap`` and what ``compare_paces`` measures; ``over_first`` is to interval 1 with as
        many worlds. ``waiting`` has the ``gain`` over interval 1 of ``devices`` that wait for the slowest of random,
        exponentially distributed steps, by the model; ``ranks`` has what ranks gain here, beside the model.
    """
    bench = Bench(rounds, device=device, **sizes)
    trial = paced_blocks(bench, {})
    update_ms = 1e3 * median([block.learner * block.seconds / BLOCK for block in (trial(0.0) for _ in range(3))])
    rows = []
    for count in worlds:
        settings = {
            f"{k} {prefetch}": {"worlds": count, "interval": k, "prefetch": prefetch}
            for prefetch in ("off", "overlap")
            for k in INTERVALS
        }
        for row in compare_paces(bench, settings, [pace * update_ms]):
            interval, prefetch = row.pop("setting").split()
            rows.append({"worlds": count, "interval": int(interval), "overlap": prefetch == "overlap", **row})
    return {
        "update_ms": round(update_ms, 3),
        "pace": pace,
        "rows": rows,
        "waiting": waiting(pace),
        "ranks": [row for count in sorted(set(ranks)) for row in time_ranks(count, rounds, device)],
    }


class Block(NamedTuple):
    """The time of some updates with their steps (s), and the learner's share of it."""

    learner: float
    seconds: float


@dataclass(frozen=True)
class PacedWorld(SlowLeaderFollower):
    """A slow world whose steps wait for ``pace_ms``, a list of one number (ms) that the caller may change."""

    pace_ms: list[float] = field(default_factory=lambda: [0.0], compare=False)

    def transition(self, state: Any, action: Any, noise: Any) -> Any:
        """Wait, then move all agents by one step."""
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
        rows = monitor.read() if monitor else []
        return Block(sum(row["share"] for row in rows if row["name"] not in COLLECT), seconds)

    block(0.0)  # warm-up
    return block


def waiting(pace: float) -> list[dict[str, Any]]:
    """Return what an interval is worth to devices that wait for the slowest, if a step is ``pace`` updates long."""
    return [
        {
            "devices": devices,
            "interval": k,
            "gain": round(interval_gain(Load(1.0, 0.0, pace, interval=k), devices, FREE), 3),
        }
        for devices in DEVICES
        for k in INTERVALS
    ]


def time_ranks(count: int, rounds: int, device: Device) -> list[dict[str, Any]]:
    """Time blocks of updates of so many ranks at each interval, in turn, beside the gain of the model."""
    seconds, _ = time_groups({k: (f"interval_{k}", count) for k in INTERVALS}, BLOCK, rounds, device)
    env, first = configure("interval_1").env, median(seconds[1]) / BLOCK
    step_s, pause_s = env.step_ms / 1e3, env.pause_ms / 1e3
    rest = max(first - step_s - pause_s * longest_wait(count, 1), 0.0)  # of the updates, at interval 1
    return [
        {
            "ranks": count,
            "interval": k,
            "update_ms": round(1e3 * median(each) / BLOCK, 3),
            **ratio(seconds[1], each, "over_first"),
            "gain": round(interval_gain(Load(rest, step_s, pause_s, interval=k), count, FREE), 3),
        }
        for k, each in seconds.items()
    ]


def compare_paces(bench: Bench, settings: Settings, paces: Sequence[float]) -> list[dict[str, Any]]:
    """Time the same number of updates under each of ``settings``, in turn, with worlds of each pace (ms per step).

    Returns:
        Rows ``setting, step_ms``; ``share``, the learner's share of the time (None where worlds step at the same time);
        ``updates_per_s`` and ``rows_per_s`` (learned and gathered); ``over_first, low, high`` as in ``compare``.
    """
    blocks = {name: paced_blocks(bench, setting) for name, setting in settings.items()}
    rows = []
    for pace in paces:
        rounds = [{name: block(pace) for name, block in blocks.items()} for _ in range(bench.rounds)]
        first = [each[next(iter(settings))].seconds for each in rounds]
        for name, setting in settings.items():
            own = [each[name] for each in rounds]
            seconds = [block.seconds for block in own]
            over, rate = ratio(first, seconds), BLOCK / median(seconds)
            overlap = setting.get("prefetch") == "overlap"
            rows.append(
                {
                    "setting": name,
                    "step_ms": round(pace, 3),
                    "share": None if overlap else round(median([block.learner for block in own]), 4),
                    "updates_per_s": round(rate, 1),
                    "rows_per_s": round(rate * setting.get("worlds", 1) / setting.get("ratio", 1), 1),
                    "over_first": over["median"],
                    "low": over["low"],
                    "high": over["high"],
                }
            )
    return rows
