"""Scenarios of the assignment task, drawn from uniform noise: where things are, and what they have and need.

Places are distinct cells of a grid with a jitter, so that all are at least ``spacing`` apart without a draw that has
to be repeated. The sizes are those of the published generator (largesone/uav-task-path-planning), but for the radii of
obstacles, which it does not publish.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.types import Rule, first_slots, tensors
from uavlab.ops.geometry import constant

if TYPE_CHECKING:
    from uavlab.envs.target_assignment.env import Assignment

SUPPLY, LEAST_SUPPLY = (50.0, 60.0), 10.0  # of a UAV, by kind of resource, before it varies; and at least
DEMAND, LEAST_DEMAND = (40.0, 50.0), 5.0  # of a target
SPEED = (15.0, 35.0)  # m/s: mean of the published slowest and fastest cruise
MOST_NEAR = 16  # neighbours, unless ``near`` is more
RADIUS = 0.4  # smallest radius of an obstacle, relative to the largest


def _in_order(name: str, least: int, kind: str) -> Rule:
    """Return the rule that a pair of limits is in order."""
    return (name,), lambda pair: least <= pair[0] <= pair[1], f"{name} {{0}}: expected {kind}"


RULES: tuple[Rule, ...] = (
    _in_order("uavs", 1, "fewest and most, from 1 on"),
    _in_order("targets", 1, "fewest and most, from 1 on"),
    _in_order("obstacles", 0, "fewest and most, from 0 on"),
    _in_order("supply", 0, "least and most, in order"),
    _in_order("reach", 0, "shortest and longest, in order"),
    (
        ("side", "spacing", "slots", "uavs", "targets", "obstacles"),
        lambda side, spacing, slots, uavs, targets, obstacles: (
            max(slots[0], uavs[1]) + max(slots[1], targets[1]) + max(slots[2], obstacles[1])
            <= int(side / (2 * spacing)) ** 2
        ),
        "uavs {3}, targets {4} and obstacles {5} with slots {2}: more than there are cells in side {0} / (2 x "
        "spacing {1}), squared; lower them, or spacing",
    ),
    (
        ("spacing", "approach", "obstacle_radius"),
        lambda spacing, approach, radius: approach + radius <= spacing,
        "approach {1} + obstacle_radius {2} > spacing {0}: obstacles must be clear of approaches",
    ),
    (
        ("supply",),
        lambda supply: supply[1] >= 1,
        "supply {0}: less than all demand in every world, so that no team can satisfy all targets; expected a most of "
        "at least 1",
    ),
    (
        ("reach", "side", "spacing"),
        lambda reach, side, spacing: reach[1] * side > spacing,
        "reach {0} x side {1}: not beyond spacing {2}, so that no UAV reaches a target in any world; raise reach",
    ),
)


@tensors
class Scenario:
    """A batch of scenarios; slots beyond the numbers of UAVs and targets of a world have no supply and no demand.

    Attributes:
        pos: Places of UAVs, then of targets (m).
        obstacle: x, y and radius of obstacles (m); the radius of one that is not there is 0.
        supply: Resources of each UAV, by kind.
        demand: Resources that each target needs, by kind.
        range: Distance that each UAV can fly (m).
        speed: Cruise speed of each UAV (m/s); 0 in an empty slot.
        near: Nearest UAVs and targets that count as neighbours of a UAV, see ``neighbours``.
    """

    pos: Float[Tensor, "B N+M 2"]
    obstacle: Float[Tensor, "B K 3"]
    supply: Float[Tensor, "B N 2"]
    demand: Float[Tensor, "B M 2"]
    range: Float[Tensor, "B N"]
    speed: Float[Tensor, "B N"]
    near: Float[Tensor, "B 2"]


def noise_count(env: "Assignment") -> int:
    """Return how many uniform numbers a scenario needs."""
    return sum(_parts(env))


def draw(env: "Assignment", noise: Float[Tensor, "B K"]) -> Scenario:
    """Draw scenarios; ``noise`` holds ``noise_count`` uniform numbers for each."""
    parts = noise.split(_parts(env), 1)
    count, centre, first, second, jitter, supply, demand, reach, speed, radius, near = parts
    uavs, targets = env.rows, env.columns
    here = [first_slots(count[:, at], limits, slots) for at, (limits, slots) in enumerate(_slots(env))]
    pos = _places(env, centre, first, second)
    pos = (pos + 0.25 + 0.5 * jitter.view_as(pos)) * 2 * env.spacing
    supply = _amounts(supply.view(-1, uavs, 2), SUPPLY, LEAST_SUPPLY, env.variance) * here[0][..., None]
    demand = _amounts(demand.view(-1, targets, 2), DEMAND, LEAST_DEMAND, env.variance) * here[1][..., None]
    size = env.obstacle_radius * (RADIUS + (1 - RADIUS) * radius) * here[2]
    return Scenario(
        pos=pos[:, : uavs + targets],
        obstacle=torch.cat((pos[:, uavs + targets :], size[..., None]), -1),
        supply=supply * _scale(supply, demand, env.supply),
        demand=demand,
        range=env.side * (env.reach[0] + (env.reach[1] - env.reach[0]) * reach) * here[0],
        speed=(SPEED[0] + (SPEED[1] - SPEED[0]) * speed) * here[0],
        near=neighbours(torch.stack([each.sum(1) for each in here[:2]], 1), near, env),
    )


def neighbours(count: Int[Tensor, "B 2"], unit: Float[Tensor, "B 2"], env: "Assignment") -> Float[Tensor, "B 2"]:
    """Return how many of ``count`` things are neighbours: min(count, max(4, ceil(count / 4)), 16), jittered.

    With ``env.near`` they are as many in place of the formula. ``unit`` draws a change between -``env.jitter`` and
    ``env.jitter``; the result stays from 1 to ``count``, and to 16 or ``env.near`` if that is more.
    """
    whole = torch.full_like(count, env.near) if env.near else ((count + 3) // 4).clamp(4, MOST_NEAR)
    change = (unit * (2 * env.jitter + 1)).floor() - env.jitter
    return torch.minimum((whole + change).clamp_max(max(env.near, MOST_NEAR)), count.to(unit.dtype)).clamp_min(1)


def _slots(env: "Assignment") -> tuple[tuple[tuple[int, int], int], ...]:
    """Return fewest and most UAVs, targets and obstacles, with their slots."""
    return (env.uavs, env.rows), (env.targets, env.columns), (env.obstacles, env.blocks)


def _parts(env: "Assignment") -> list[int]:
    uavs, targets, obstacles = env.rows, env.columns, env.blocks
    things = uavs + targets + obstacles
    return [3, 2, env.cells**2, env.cells**2, 2 * things, 2 * uavs, 2 * targets, uavs, uavs, obstacles, 2]


def _places(
    env: "Assignment", centre: Float[Tensor, "B 2"], first: Float[Tensor, "B C"], second: Float[Tensor, "B C"]
) -> Float[Tensor, "B N+M+K 2"]:
    """Return column and row of cells, all distinct: of UAVs, then of targets, then of obstacles.

    Targets are in the cells of the largest numbers of ``first``, less ``clustering`` times the distance to ``centre``.
    """
    cell = torch.arange(env.cells**2, device=first.device)
    place = torch.stack((cell % env.cells, cell // env.cells), -1).to(first.dtype)
    apart = (place - centre[:, None] * (env.cells - 1)).norm(dim=-1) / env.cells
    target = (first - env.clustering * apart).topk(env.columns, 1).indices
    other = second.scatter(1, target, 2.0).topk(env.rows + env.blocks, 1, largest=False).indices
    return place[torch.cat((other[:, : env.rows], target, other[:, env.rows :]), 1)]


def _amounts(
    unit: Float[Tensor, "B N 2"], mean: tuple[float, float], least: float, variance: float
) -> Float[Tensor, "B N 2"]:
    middle = constant(mean, unit.device, unit.dtype)
    return (middle * (1 + variance * (2 * unit - 1))).clamp_min(least)


def _scale(
    supply: Float[Tensor, "B N 2"], demand: Float[Tensor, "B M 2"], limits: tuple[float, float]
) -> Float[Tensor, "B 1 1"]:
    """Return the factor that brings all supply, relative to all demand, into the limits."""
    ratio = supply.sum((1, 2)) / demand.sum((1, 2))
    return (ratio.clamp(*limits) / ratio)[:, None, None]
