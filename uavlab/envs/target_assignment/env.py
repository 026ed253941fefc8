"""Assignment: which UAV serves which target next, and from which side, until all targets have what they need.

Source:
    Task and scenarios follow largesone/uav-task-path-planning, with these corrections: a leg is what the UAV flies, not
    the straight line from its start; moves that would do nothing are masked, not punished; the score that counts is
    the published one, completion times one minus congestion, with one definition of congestion; and a UAV cannot fly
    farther than its range.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import ChoiceObs, Count, Entities, EnvSpec, Metric, Rule, first_slots, tensors
from uavlab.ops.geometry import constant

FEATURES = 8  # of a UAV, and of a target
SPEED = 25.0  # m/s: the unit of observations, and nominal in the published reward
KINDS = 2  # of resources
BLOCKED = 1e9  # m: more than any range
NEVER = 1e-6  # km: a team that has not flown has no efficiency
Ratio = Annotated[float, Gt(0), Le(100)]  # a range stays below BLOCKED


@tensors
class State:
    """State of a batch of worlds with slots for N UAVs and M targets; a place is a UAV's start or a target."""

    leg: Float[Tensor, "B M M S"]  # m, from each target to each target by each sector; BLOCKED past an obstacle
    way: Float[Tensor, "B N M S"]  # m, the same from each UAV
    pos: Float[Tensor, "B N+M 2"]  # m, of each place
    obstacle: Float[Tensor, "B K 3"]  # m, x, y and radius
    demand: Float[Tensor, "B M 2"]  # of each target at the start
    own: Float[Tensor, "B N 2"]  # resources that each UAV has left
    rest: Float[Tensor, "B M 2"]  # resources that each target still needs
    at: Float[Tensor, "B N 2"]  # m, where each UAV is
    left: Float[Tensor, "B N"]  # m that each UAV can still fly
    speed: Float[Tensor, "B N"]  # m/s; 0 in an empty slot
    time: Float[Tensor, "B N"]  # s that each UAV has flown
    ideal: Float[Tensor, "B M"]  # number of UAVs that would ideally serve each target
    targets: Float[Tensor, " B"]  # number of targets
    near: Float[Tensor, "B 2"]  # nearest UAVs and targets that count as a UAV's neighbours
    served: Bool[Tensor, "B N M"]  # which UAVs have given to which targets
    legal: Bool[Tensor, "B N M S"]  # which moves a UAV can make, and would give something
    step: Int[Tensor, " B"]  # number of decisions


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


@dataclass(frozen=True)
class Assignment:
    """The assignment task: decide again and again which UAV flies to which target, by which approach sector.

    A UAV gives a target as much of each resource as it has and the target needs. It flies straight to the edge of a
    circle of radius ``approach`` around the target, at the middle of a sector, then to the centre.

    One agent decides for the team. Its move is the number of a triple, (UAV x M + target) x sectors + sector, which is
    legal if the UAV has a resource that the target needs, reaches it with the range that it has left, and crosses no
    obstacle. The number of decisions is limited: after each, a UAV has used up a resource, or a target needs one less.

    Congestion of a target is the number of UAVs that served it over the ideal one, less 1, within 0 and 1; ideal is its
    largest demand in ordinary loads, rounded up, from 1 to ``ideal_limit``. The score of an episode is the share of
    targets that have all they need, times 1 less the mean congestion.

    End: no move is legal; then all targets are satisfied, or what is left cannot be brought to them.

    Attributes:
        uavs: Fewest and most UAVs of a world.
        targets: Fewest and most targets.
        obstacles: Fewest and most obstacles.
        slots: Slots for UAVs, targets and obstacles, if these are more than the most of each.
        side: Length of the map (m).
        spacing: Least distance between any two places (m); half a cell of the grid of places.
        approach: Radius at which the approach to a target begins (m).
        sectors: Directions from which a target is approached (S).
        obstacle_radius: Largest radius of an obstacle (m).
        variance: Largest share by which resources differ from their means.
        supply: Least and most of all supply, relative to all demand; what is drawn beyond is scaled. Below 1, not all
            targets can be satisfied.
        reach: Shortest and longest range of a UAV, in sides of the map.
        jitter: Largest change of the numbers of neighbours, drawn for each world; policies are evaluated without
            (``eval_jitter`` is 0).
        clustering: How much targets are drawn to a common centre; 0 is not at all.
        near: Nearest UAVs, and nearest targets, that are neighbours of a UAV; 0 takes a quarter, from 4 to 16.
        load: Resources that a UAV ordinarily has, by which the ideal number of UAVs of a target is counted.
        ideal_limit: Most UAVs that are ideal for a target.
        rewards: ``bounded``, by the four settings that follow, or ``published``, see ``published_reward``.
        contribution_reward: For bringing all of all targets' demands.
        completion_reward: For satisfying all targets.
        congestion_cost: For a mean congestion of 1.
        distance_cost: For a distance flown of one side of the map for each target.
    """

    uavs: tuple[Count, Count] = (4, 6)
    targets: tuple[Count, Count] = (3, 4)
    obstacles: tuple[Count, Count] = (1, 3)
    slots: tuple[Count, Count, Count] = (0, 0, 0)
    side: Annotated[float, Gt(0), Le(1e6)] = 1000.0
    spacing: Annotated[float, Gt(0), Le(1e6)] = 50.0
    approach: Annotated[float, Gt(0), Le(1e6)] = 20.0
    sectors: Annotated[int, Ge(1), Le(36)] = 6
    obstacle_radius: Annotated[float, Gt(0), Le(1e6)] = 30.0
    variance: Annotated[float, Ge(0), Le(1)] = 0.4
    clustering: Annotated[float, Ge(0), Le(10)] = 0.5
    supply: tuple[Ratio, Ratio] = (0.5, 2.0)
    reach: tuple[Ratio, Ratio] = (0.8, 1.2)
    jitter: Annotated[int, Ge(0), Le(16)] = 0
    near: Annotated[int, Ge(0), Le(1000)] = 0
    load: Annotated[float, Gt(0), Le(1e6)] = 50.0
    ideal_limit: Annotated[int, Ge(1), Le(1000)] = 3
    rewards: Literal["bounded", "published"] = "bounded"
    contribution_reward: Annotated[float, Ge(0), Le(1e6)] = 1.0
    completion_reward: Annotated[float, Ge(0), Le(1e6)] = 1.0
    congestion_cost: Annotated[float, Ge(0), Le(1e6)] = 0.5
    distance_cost: Annotated[float, Ge(0), Le(1e6)] = 0.5

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("completion", "last", bounds=(0.0, 1.0)),
        Metric("congestion", "last", better="low", bounds=(0.0, 1.0)),
        Metric("normalized_score", "last", bounds=(0.0, 1.0)),
        Metric("distance", "sum", "m", "low", (0.0, math.inf)),
        Metric("makespan", "last", "s", "low", (0.0, math.inf)),
        Metric("efficiency", "last", "1/km", bounds=(0.0, math.inf)),
        Metric("reward_per_uav", "sum"),
    )
    labels: ClassVar[dict[str, str]] = {
        "normalized_score": "completion x (1 - congestion)",
        "distance": "distance flown by all (m)",
        "makespan": "time until the last arrival (s)",
        "efficiency": "satisfied targets per km",
        "reward_per_uav": "return per UAV",
    }
    sizes: ClassVar[tuple[str, ...]] = ("uavs", "targets")
    perception: ClassVar[tuple[str, ...]] = ("near",)
    initial_settings: ClassVar[tuple[str, ...]] = (
        *("uavs", "targets", "obstacles", "slots", "obstacle_radius", "variance", "clustering", "supply", "reach"),
        *("jitter", "near"),
    )
    evaluation: ClassVar[dict[str, float]] = {"jitter": 0}
    score: ClassVar[dict[str, float]] = {"normalized_score": 1.0, "distance": -2e-5}
    rules: ClassVar[tuple[Rule, ...]] = RULES

    @property
    def rows(self) -> int:
        """Slots for UAVs (N)."""
        return max(self.slots[0], self.uavs[1])

    @property
    def columns(self) -> int:
        """Slots for targets (M)."""
        return max(self.slots[1], self.targets[1])

    @property
    def blocks(self) -> int:
        """Slots for obstacles (K)."""
        return max(self.slots[2], self.obstacles[1])

    @property
    def cells(self) -> int:
        """Cells along each side of the grid of places."""
        return int(self.side / (2 * self.spacing))

    @cached_property
    def spec(self) -> EnvSpec:
        entities = Entities(self.rows, self.columns, FEATURES, self.sectors)
        return EnvSpec(
            agents=1,
            obs=entities.width,
            action=1,
            choices=self.rows * self.columns * self.sectors,
            horizon=KINDS * (self.rows + self.columns),
            dt=1.0,
            initial_noise=noise_count(self),
            step_noise=0,
            groups=(0,),
            entities=entities,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw new worlds, see ``draw``; no tensors share memory, because a CUDA graph writes over each."""
        drawn = draw(self, noise)
        leg = self.legs(drawn.pos, drawn.obstacle)
        nobody = torch.zeros(len(noise), self.rows, self.columns, dtype=torch.bool, device=noise.device)
        way = leg[:, : self.rows].clone()
        return State(
            leg=leg[:, self.rows :].clone(),
            way=way,
            pos=drawn.pos,
            obstacle=drawn.obstacle,
            demand=drawn.demand,
            own=drawn.supply,
            rest=drawn.demand.clone(),
            at=drawn.pos[:, : self.rows].clone(),
            left=drawn.range,
            speed=drawn.speed,
            time=torch.zeros_like(drawn.speed),
            ideal=(drawn.demand.amax(-1) / self.load).ceil().clamp(1, self.ideal_limit),
            targets=(drawn.demand[..., 0] > 0).sum(1).to(noise.dtype),
            near=drawn.near,
            served=nobody,
            legal=self._legal(way, drawn.supply, drawn.demand, drawn.range),
            step=torch.zeros(len(noise), dtype=torch.int64, device=noise.device),
        )

    def transition(self, state: State, action: Int[Tensor, "B 1"], noise: Float[Tensor, "B 0"]) -> State:
        """Send one UAV to a target, where it gives; a move that is not legal changes nothing."""
        legal = state.legal.flatten(1).gather(1, action)  # B 1
        pair = action // self.sectors
        to = pair % self.columns
        uav = self._mark(pair // self.columns, self.rows) & legal
        target = self._mark(to, self.columns) & legal
        mover, served = uav[..., None], target[..., None]
        given = torch.minimum(_row(state.own, pair // self.columns), _row(state.rest, to)) * legal[..., None]  # B 1 2
        distance = state.way.flatten(1).gather(1, action) * uav  # of moves that are legal, none is BLOCKED
        legs = _row(state.leg.flatten(2), to)  # B 1 M*S
        way = torch.where(mover, legs, state.way.flatten(2)).view_as(state.way)
        own, rest, left = state.own - given * mover, state.rest - given * served, state.left - distance
        return replace(
            state,
            way=way,
            own=own,
            rest=rest,
            left=left,
            at=torch.where(mover, _row(state.pos, self.rows + to), state.at),
            time=state.time + distance / state.speed.clamp_min(1e-6),
            served=state.served | (mover & target[:, None]),
            legal=self._legal(way, own, rest, left),
            step=state.step + 1,
        )

    def observe(self, state: State) -> ChoiceObs:
        legal, dtype = state.legal, state.own.dtype
        real = (state.speed > 0).to(dtype)[..., None]
        at = state.at / self.side * real
        active = legal.any((2, 3)).to(dtype)[..., None]
        uav = torch.cat(
            (
                active,
                at,
                state.own / self.load,
                (state.left / self.side)[..., None],
                (state.time * SPEED / self.side)[..., None],
                (state.speed / SPEED)[..., None],
            ),
            -1,
        )
        required = (state.demand[..., :1] > 0).to(dtype)
        target = torch.cat(
            (
                (state.rest.amax(-1, keepdim=True) > 0).to(dtype),
                state.pos[:, self.rows :] / self.side * required,
                state.rest / self.load,
                state.rest / state.demand.clamp_min(1e-6),
                (state.served.sum(1) / state.ideal)[..., None].to(dtype),
            ),
            -1,
        )
        features = torch.cat((uav.flatten(1), target.flatten(1), state.near), -1)[:, None]
        return ChoiceObs(features, with_one(legal.flatten(1))[:, None])

    def reward(self, state: State, action: Int[Tensor, "B 1"], after: State) -> Float[Tensor, "B 1"]:
        if self.rewards == "published":
            return published_reward(self, state, after)[:, None]
        share = ((state.rest - after.rest) / state.demand.clamp_min(1e-6)).flatten(1).sum(1) / KINDS
        completed = self._count_done(after) - self._count_done(state)
        crowd = self._crowd(after) - self._crowd(state)
        distance = (state.left - after.left).sum(1) / self.side
        gain = self.contribution_reward * share + self.completion_reward * completed
        cost = self.congestion_cost * crowd + self.distance_cost * distance
        return ((gain - cost) / state.targets)[:, None]

    def terminated(self, state: State) -> Bool[Tensor, "B 1"]:
        return ~state.legal.flatten(1).any(1, keepdim=True)

    def measure(self, state: State, action: Int[Tensor, "B 1"], after: State) -> dict[str, Float[Tensor, " B"]]:
        completion, congestion = self.completion(after), self.congestion(after)
        way = (after.time * after.speed).sum(1)  # m in the whole episode
        return {
            "completion": completion,
            "congestion": congestion,
            "normalized_score": completion * (1 - congestion),
            "distance": (state.left - after.left).sum(1),
            "makespan": after.time.amax(1),
            "efficiency": self._count_done(after) / (way / 1000).clamp_min(NEVER),
            "reward_per_uav": self.reward(state, action, after)[:, 0] / (after.speed > 0).sum(1),
        }

    def legs(self, pos: Float[Tensor, "B N+M 2"], obstacle: Float[Tensor, "B K 3"]) -> Float[Tensor, "B N+M M S"]:
        """Return the length of the way from each place to each target by each sector (m); BLOCKED past an obstacle."""
        x, y = pos.permute(2, 1, 0).contiguous()  # N+M B: worlds come last, which is faster
        turn = 2 * math.pi / self.sectors * torch.arange(self.sectors, device=pos.device, dtype=pos.dtype)[:, None]
        edge = [axis[self.rows :, None] + self.approach * part for axis, part in ((x, turn.cos()), (y, turn.sin()))]
        dx, dy = (to.flatten(0, 1) - start[:, None] for to, start in zip(edge, (x, y), strict=True))  # N+M M*S B
        square = (dx * dx + dy * dy).clamp_min(1e-6)
        blocked = torch.zeros_like(square, dtype=torch.bool)
        for along_x, along_y, radius in obstacle.permute(1, 2, 0).contiguous():  # all at once would fill the caches
            ox, oy = (along_x - x)[:, None], (along_y - y)[:, None]
            along = ox * dx + oy * dy
            part = (along / square).clamp(0, 1)
            # The squared distance of the obstacle from the way:
            gap = ox * ox + oy * oy + part * (part * square - 2 * along)
            blocked |= gap < radius * radius
        length = (square.sqrt() + self.approach).masked_fill(blocked, BLOCKED)
        return length.permute(2, 0, 1).reshape(len(pos), -1, self.columns, self.sectors)

    def completion(self, state: State) -> Float[Tensor, " B"]:
        """Return the share of targets that have all they need."""
        return self._count_done(state) / state.targets

    def congestion(self, state: State) -> Float[Tensor, " B"]:
        """Return the mean congestion of targets, see the class; that of empty slots is 0."""
        return self._crowd(state) / state.targets

    def _count_done(self, state: State) -> Float[Tensor, " B"]:
        return state.targets - (state.rest.amax(-1) > 0).sum(1)

    def _crowd(self, state: State) -> Float[Tensor, " B"]:
        return (state.served.sum(1) / state.ideal - 1).clamp(0, 1).sum(1)

    def _legal(self, way: Tensor, own: Tensor, rest: Tensor, left: Tensor) -> Bool[Tensor, "B N M S"]:
        gives = (own > 0).to(left.dtype) @ (rest > 0).to(left.dtype).transpose(1, 2) > 0  # B N M
        return way <= torch.where(gives, left[..., None], -1.0)[..., None]

    def _mark(self, number: Int[Tensor, "B 1"], slots: int) -> Bool[Tensor, "B slots"]:
        return torch.arange(slots, device=number.device) == number


def with_one(legal: Bool[Tensor, "B E"]) -> Bool[Tensor, "B E"]:
    """Return legal moves with the first one added where there is none: an ended task still has a move."""
    first = torch.arange(legal.shape[1], device=legal.device) == 0
    return legal | (first & ~legal.any(1, keepdim=True))


def _row(table: Float[Tensor, "B R C"], number: Int[Tensor, "B 1"]) -> Float[Tensor, "B 1 C"]:
    return table.gather(1, number[..., None].expand(-1, -1, table.shape[2]))


# Scenarios, drawn from uniform noise. Places are distinct cells of a grid with a jitter, so that all are at least
# ``spacing`` apart without a draw that has to be repeated. The sizes are those of the published generator, but for the
# radii of obstacles, which it does not publish.
SUPPLY, LEAST_SUPPLY = (50.0, 60.0), 10.0  # of a UAV, by kind of resource, before it varies; and at least
DEMAND, LEAST_DEMAND = (40.0, 50.0), 5.0  # of a target
CRUISE = (15.0, 35.0)  # m/s: mean of the published slowest and fastest cruise
MOST_NEAR = 16  # neighbours, unless ``near`` is more
RADIUS = 0.4  # smallest radius of an obstacle, relative to the largest


@tensors
class Scenario:
    """A batch of scenarios; slots beyond the numbers of UAVs and targets of a world have no supply and no demand."""

    pos: Float[Tensor, "B N+M 2"]  # m, of UAVs, then of targets
    obstacle: Float[Tensor, "B K 3"]  # m: x, y and radius; the radius of one that is not there is 0
    supply: Float[Tensor, "B N 2"]  # of each UAV, by kind
    demand: Float[Tensor, "B M 2"]  # of each target, by kind
    range: Float[Tensor, "B N"]  # m that each UAV can fly
    speed: Float[Tensor, "B N"]  # m/s; 0 in an empty slot
    near: Float[Tensor, "B 2"]  # nearest UAVs and targets that count as neighbours of a UAV, see ``neighbours``


def noise_count(env: Assignment) -> int:
    return sum(_parts(env))


def draw(env: Assignment, noise: Float[Tensor, "B K"]) -> Scenario:
    """Draw scenarios; ``noise`` holds ``noise_count`` uniform numbers for each."""
    parts = noise.split(_parts(env), 1)
    count, centre, first, second, jitter, supply, demand, reach, speed, radius, near = parts
    uavs, targets = env.rows, env.columns
    limits = (env.uavs, env.rows), (env.targets, env.columns), (env.obstacles, env.blocks)
    present = [first_slots(count[:, kind], *pair) for kind, pair in enumerate(limits)]
    pos = _places(env, centre, first, second)
    pos = (pos + 0.25 + 0.5 * jitter.view_as(pos)) * 2 * env.spacing
    supply = _amounts(supply.view(-1, uavs, 2), SUPPLY, LEAST_SUPPLY, env.variance) * present[0][..., None]
    demand = _amounts(demand.view(-1, targets, 2), DEMAND, LEAST_DEMAND, env.variance) * present[1][..., None]
    size = env.obstacle_radius * (RADIUS + (1 - RADIUS) * radius) * present[2]
    return Scenario(
        pos=pos[:, : uavs + targets],
        obstacle=torch.cat((pos[:, uavs + targets :], size[..., None]), -1),
        supply=supply * _scale(supply, demand, env.supply),
        demand=demand,
        range=env.side * (env.reach[0] + (env.reach[1] - env.reach[0]) * reach) * present[0],
        speed=(CRUISE[0] + (CRUISE[1] - CRUISE[0]) * speed) * present[0],
        near=neighbours(torch.stack([slots.sum(1) for slots in present[:2]], 1), near, env),
    )


def neighbours(count: Int[Tensor, "B 2"], unit: Float[Tensor, "B 2"], env: Assignment) -> Float[Tensor, "B 2"]:
    """Return how many of ``count`` things are neighbours: min(count, max(4, ceil(count / 4)), 16), jittered.

    With ``env.near`` they are as many in place of the formula. ``unit`` draws a change between -``env.jitter`` and
    ``env.jitter``; the result stays from 1 to ``count``, and to 16 or ``env.near`` if that is more.
    """
    whole = torch.full_like(count, env.near) if env.near else ((count + 3) // 4).clamp(4, MOST_NEAR)
    change = (unit * (2 * env.jitter + 1)).floor() - env.jitter
    return torch.minimum((whole + change).clamp_max(max(env.near, MOST_NEAR)), count.to(unit.dtype)).clamp_min(1)


def _parts(env: Assignment) -> list[int]:
    uavs, targets, obstacles = env.rows, env.columns, env.blocks
    things = uavs + targets + obstacles
    return [3, 2, env.cells**2, env.cells**2, 2 * things, 2 * uavs, 2 * targets, uavs, uavs, obstacles, 2]


def _places(
    env: Assignment, centre: Float[Tensor, "B 2"], first: Float[Tensor, "B C"], second: Float[Tensor, "B C"]
) -> Float[Tensor, "B N+M+K 2"]:
    """Return column and row of cells, all distinct: of UAVs, then of targets, then of obstacles.

    Targets are in the cells of the largest numbers of ``first``, less ``clustering`` times the distance to ``centre``.
    """
    cell = torch.arange(env.cells**2, device=first.device)
    place = torch.stack((cell % env.cells, cell // env.cells), -1).to(first.dtype)
    apart = (place - centre[:, None] * (env.cells - 1)).norm(dim=-1) / env.cells
    target = (first - env.clustering * apart).topk(env.columns, 1).indices
    free = second.scatter(1, target, 2.0).topk(env.rows + env.blocks, 1, largest=False).indices
    return place[torch.cat((free[:, : env.rows], target, free[:, env.rows :]), 1)]


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


# The reward of largesone/uav-task-path-planning, by the one definition of congestion here. Some terms have no
# counterpart: -75 for a move that does nothing, because such moves are masked; what an approach earns; the terms of
# collaboration and inefficiency, of which only ranges are known. Costs of distance and time grow in proportion up to
# the ends of their ranges.
SATISFIED, ALL, FIRST = 100.0, 200.0, 5.0  # a target, all targets, the first UAV at a target
MILESTONES = {0.25: 0.5, 0.5: 1.0, 0.75: 1.5, 0.9: 2.0}  # by completion; and at each decision
PROGRESS = 0.2  # times completion
DISTANCE, TIME = (0.03, 0.05), (0.02, 0.03)  # shares of what is gained that flying costs
CROWD, SURPLUS, NEIGHBOUR = 2.0, 1.5, 0.5  # for a UAV beyond ideal, for twice the UAVs needed, for a neighbour too many
APART, FEW = 200.0, 2  # m within which a UAV is a neighbour, and neighbours that cost nothing
LIMITS = (-10.0, 300.0)


def published_reward(env: Assignment, state: State, after: State) -> Float[Tensor, " B"]:
    """Return the published reward of a decision; 0 where nothing was given."""
    given = (state.rest - after.rest).sum(-1)  # B M
    ratio = (given / state.demand.sum(-1).clamp_min(1e-6)).sum(1)
    contribution = 10 + 40 * ratio + 15 * ratio.sqrt() + 10 * (ratio - 0.3).clamp_min(0)
    satisfied = ((after.rest.sum(-1) == 0) & (given > 0)).sum(1)
    first = ((given > 0) & ~state.served.any(1)).any(1)
    before, now = env.completion(state), env.completion(after)
    reached = sum(worth * ((before < mark) & (now >= mark)) for mark, worth in MILESTONES.items())
    gain = SATISFIED * satisfied + contribution + FIRST * first + reached + PROGRESS * now
    way = (state.left - after.left).sum(1) / env.side
    late = (after.time - state.time).sum(1) * SPEED / env.side
    share = sum(low + (high - low) * cost.clamp_max(1) for (low, high), cost in ((DISTANCE, way), (TIME, late)))
    active = (after.own.sum(-1) > 0).sum(1)
    total = gain * (1 - share) - _congestion(env, state, after, given > 0, active) / active.clamp_min(1)
    return torch.where(given.sum(1) > 0, (total + ALL * (now == 1)).clamp(*LIMITS), 0.0)


def _congestion(
    env: Assignment, state: State, after: State, here: Bool[Tensor, "B M"], active: Tensor
) -> Float[Tensor, " B"]:
    """Return the published cost of congestion at a target that a UAV just served."""
    beyond = ((after.served.sum(1) - after.ideal).clamp_min(0) * here).sum(1)
    surplus = (active / (2 * after.targets) - 1).clamp_min(0)
    mover = after.left < state.left  # B N
    apart = (after.at - (after.at * mover[..., None]).sum(1, keepdim=True)).norm(dim=-1)
    near = ((apart <= APART) & ~mover & (after.speed > 0)).sum(1)
    return CROWD * beyond + SURPLUS * surplus + NEIGHBOUR * (near - FEW).clamp_min(0)


def greedy(env: Assignment, state: State, noise: Float[Tensor, "B 1"]) -> Int[Tensor, "B 1"]:
    """Send each UAV in turn to the nearest target that it can give something, by the shortest sector.

    It is the turn of the UAV that has served the fewest targets so far, of those that have a legal move.
    """
    legal = state.legal
    length = state.way.masked_fill(~legal, torch.inf).flatten(2)  # B N M*S
    able = legal.any((2, 3))
    turn = state.served.sum(2).masked_fill(~able, env.columns + 1).argmin(1, keepdim=True)  # the first of several
    move = length.argmin(2).gather(1, turn)
    return turn * env.columns * env.sectors + move


def nearest(env: Assignment, state: State, noise: Float[Tensor, "B 1"]) -> Int[Tensor, "B 1"]:
    """Take the shortest legal way of all UAVs to all targets."""
    return state.way.masked_fill(~state.legal, torch.inf).flatten(1).argmin(1, keepdim=True)
