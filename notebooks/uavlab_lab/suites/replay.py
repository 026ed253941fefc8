"""Prioritized replay compared with simpler structures, on a million rows in one process."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.benchmarks import Record, suite
from uavlab.collectors.off_policy import blank_row
from uavlab.core.types import tree_map
from uavlab.envs.autoreset import start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.ops import sum_tree
from uavlab.profiling.timing import WARM_UP, median, ratio, time_call
from uavlab.replay import prioritized, ring

CAPACITY, BATCH = 1_000_000, 256
BATCHES = 10  # consecutive batches per structure and round, each timed
SETTINGS = prioritized.PriorityConfig()

Slots = Int[Tensor, "1 N"]


@dataclass(frozen=True)
class Structure:
    """A data structure of priorities."""

    draw: Callable[[Slots], Slots]  # from noise; also computes importance weights, except for uniform draws
    reweight: Callable[[Slots, Float[Tensor, "1 N"]], None]  # sets priorities of slots


@suite("replay", about="prioritized replay and its rivals")
def replay_suite(rounds: int, device: Device, capacity: int = CAPACITY) -> Record:
    """Time draw, gather and reweight by structure, on full replay of the team of five with ``capacity`` rows.

    ``wide`` is ``uavlab.replay.prioritized`` with its guard and its counters; ``binary`` and ``cumsum`` have neither.
    ``uniform`` draws without priorities. Ratios are medians over batches, ``BATCHES`` in a round.
    """
    rt = build.runtime(RunConfig(device=device))
    env = LeaderFollower(followers=4)
    start = torch.zeros(1, env.spec.initial_noise, device=rt.device)
    row = tree_map(lambda leaf: leaf[None], blank_row(env, start_worlds(env, start)))
    replay = prioritized.ByPriority(row, capacity, SETTINGS)
    sum_tree.fill(replay.tree, sum_tree.fixed_point(torch.rand(1, capacity, device=rt.device)))
    replay.ring.size.fill_(capacity)
    replay.ring.words.fill_(1)  # reading memory that was never written is too fast
    mass = sum_tree.masses(replay.tree)[0].clone()
    uniform = Structure(lambda noise: noise.remainder(replay.ring.size), lambda slot, priority: None)
    structures = {"wide": wide(replay), "binary": binary(mass), "cumsum": cumsum(mass), "uniform": uniform}
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in structures}
    with rt.scope():
        for number in range(-WARM_UP, rounds):
            for name, structure in structures.items():
                batches = [time_batch(structure, replay) for _ in range(BATCHES)]
                seconds[name] += batches if number >= 0 else []
    rows, totals = [], {name: [sum(batch) for batch in batches] for name, batches in seconds.items()}
    for name, batches in seconds.items():
        draw, gather, reweight = (round(1e3 * median(each), 4) for each in zip(*batches, strict=True))
        rows.append(
            {
                "structure": name,
                "capacity": capacity,
                "batch": BATCH,
                "row_bytes": ring.row_bytes(row),
                "threads": rt.toggles.threads,
                "draw_ms": draw,
                "gather_ms": gather,
                "reweight_ms": reweight,
                "total_ms": round(draw + gather + reweight, 4),
                **{f"over_{other}": ratio(totals[other], totals[name])["median"] for other in ("binary", "cumsum")},
            }
        )
    return {"rows": rows}


def time_batch(structure: Structure, replay: prioritized.ByPriority) -> tuple[float, float, float]:
    """Draw, gather and reweight a batch (s each); calls are short, so that other processes seldom interrupt one."""
    device, slots = replay.draws.device, list[Slots]()
    noise, priority = torch.randint(2**62, (1, BATCH), device=device), torch.rand(1, BATCH, device=device)
    return (
        time_call(lambda: slots.append(structure.draw(noise)), device),
        time_call(lambda: ring.take(replay.ring, slots[0]), device),
        time_call(lambda: structure.reweight(slots[0], priority), device),
    )


def wide(replay: prioritized.ByPriority) -> Structure:
    """Build the wide tree of prioritized replay."""
    return Structure(lambda noise: replay.choose(noise)[0], replay.set_priorities)


def binary(mass: Int[Tensor, " capacity"]) -> Structure:
    """Build a binary sum tree in one array: node n has the children 2 n and 2 n + 1, the root is node 1."""
    depth = (len(mass) - 1).bit_length()
    nodes = mass.new_zeros(2 << depth)
    pairs = nodes.view(-1, 2)  # the children of each node
    nodes[1 << depth :][: len(mass)] = mass
    for level in reversed(range(depth)):
        nodes[1 << level : 2 << level] = pairs[1 << level : 2 << level].sum(1)

    def draw(noise: Slots) -> Slots:
        point, node = sum_tree.stratified_points(nodes[1:2, None], noise)[0], torch.ones_like(noise[0])
        for _ in range(depth):
            node = 2 * node
            left = nodes.index_select(0, node)
            right = point >= left
            point, node = point - left * right, node + right
        _weigh(nodes.index_select(0, node))
        return (node - (1 << depth))[None]

    def reweight(slot: Slots, priority: Float[Tensor, "1 N"]) -> None:
        node = slot[0] + (1 << depth)
        nodes.index_copy_(0, node, _to_mass(priority))
        for _ in range(depth):
            node = node // 2
            nodes.index_copy_(0, node, pairs.index_select(0, node).sum(1))

    return Structure(draw, reweight)


def cumsum(mass: Int[Tensor, " capacity"]) -> Structure:
    """Build a flat array of masses whose cumulative sum is recomputed for each draw."""

    def draw(noise: Slots) -> Slots:
        ends = mass.cumsum(0)
        slot = torch.searchsorted(ends, sum_tree.stratified_points(ends[None, -1:], noise)[0], right=True)
        _weigh(mass.index_select(0, slot))
        return slot[None]

    def reweight(slot: Slots, priority: Float[Tensor, "1 N"]) -> None:
        mass.index_copy_(0, slot[0], _to_mass(priority))

    return Structure(draw, reweight)


def _weigh(mass: Int[Tensor, " N"]) -> Tensor:
    return prioritized.importance_weights(mass[None], SETTINGS.priority_beta)


def _to_mass(priority: Float[Tensor, "1 N"]) -> Int[Tensor, " N"]:
    return sum_tree.fixed_point(priority[0].pow(SETTINGS.priority_alpha))
