"""Assignment: which UAV serves which target next, and from which side, until all targets have what they need.

Source:
    Task and scenarios follow largesone/uav-task-path-planning, with these corrections: a leg is what the UAV flies, not
    the straight line from its start; moves that would do nothing are masked, not punished; the score that counts is
    the published one, completion times one minus congestion, with one definition of congestion; and a UAV cannot fly
    farther than its range.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import ChoiceObs, Count, Entities, EnvSpec, Metric, Rule, tensors
from uavlab.envs.target_assignment.scenarios import RULES, draw, noise_count

FEATURES = 8  # of a UAV, and of a target
SPEED = 25.0  # m/s: that of observations


def observe(env: "Assignment", state: "State") -> ChoiceObs:
    """Return the observation of the team and its legal moves."""
    legal, dtype = state.legal, state.own.dtype
    real = (state.speed > 0).to(dtype)[..., None]
    at = state.at / env.side * real
    active = legal.any((2, 3)).to(dtype)[..., None]
    uav = torch.cat(
        (
            active,
            at,
            state.own / env.load,
            (state.left / env.side)[..., None],
            (state.time * SPEED / env.side)[..., None],
            (state.speed / SPEED)[..., None],
        ),
        -1,
    )
    there = (state.demand[..., :1] > 0).to(dtype)
    target = torch.cat(
        (
            (state.rest.amax(-1, keepdim=True) > 0).to(dtype),
            state.pos[:, env.rows :] / env.side * there,
            state.rest / env.load,
            state.rest / state.demand.clamp_min(1e-6),
            (state.served.sum(1) / state.ideal)[..., None].to(dtype),
        ),
        -1,
    )
    features = torch.cat((uav.flatten(1), target.flatten(1), state.near), -1)[:, None]
    return ChoiceObs(features, with_one(legal.flatten(1))[:, None])


def with_one(legal: Bool[Tensor, "B E"]) -> Bool[Tensor, "B E"]:
    """Return legal moves with the first one added where there is none: an ended task still has a move."""
    first = torch.arange(legal.shape[1], device=legal.device) == 0
    return legal | (first & ~legal.any(1, keepdim=True))


# The reward of largesone/uav-task-path-planning, by the one definition of congestion here. Some terms have no
# counterpart: -75 for a move that does nothing, because such moves are masked; what an approach earns; the terms of
# collaboration and inefficiency, of which only ranges are known. Costs of distance and time grow in proportion up to
# the ends of their ranges.
SATISFIED, ALL, FIRST = 100.0, 200.0, 5.0  # a target, all targets, the first UAV at a target
MILESTONES = {0.25: 0.5, 0.5: 1.0, 0.75: 1.5, 0.9: 2.0}  # by completion; and at each decision
PROGRESS = 0.2  # times completion
DISTANCE, TIME = (0.03, 0.05), (0.02, 0.03)  # shares of what is gained that flying costs
NOMINAL = 25.0  # m/s
CROWD, SURPLUS, NEIGHBOUR = 2.0, 1.5, 0.5  # for a UAV beyond ideal, for twice the UAVs needed, for a neighbour too many
APART, FEW = 200.0, 2  # m within which a UAV is a neighbour, and neighbours that cost nothing
LIMITS = (-10.0, 300.0)


def published_reward(env: "Assignment", state: "State", after: "State") -> Float[Tensor, " B"]:
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
    late = (after.time - state.time).sum(1) * NOMINAL / env.side
    share = sum(low + (high - low) * each.clamp_max(1) for (low, high), each in ((DISTANCE, way), (TIME, late)))
    active = (after.own.sum(-1) > 0).sum(1)
    total = gain * (1 - share) - _congestion(env, state, after, given > 0, active) / active.clamp_min(1)
    return torch.where(given.sum(1) > 0, (total + ALL * (now == 1)).clamp(*LIMITS), 0.0)


def _congestion(
    env: "Assignment", state: "State", after: "State", here: Bool[Tensor, "B M"], active: Tensor
) -> Float[Tensor, " B"]:
    """Return the published cost of congestion at a target that a UAV just served."""
    beyond = ((after.served.sum(1) - after.ideal).clamp_min(0) * here).sum(1)
    surplus = (active / (2 * after.targets) - 1).clamp_min(0)
    mover = after.left < state.left  # B N
    apart = (after.at - (after.at * mover[..., None]).sum(1, keepdim=True)).norm(dim=-1)
    near = ((apart <= APART) & ~mover & (after.speed > 0)).sum(1)
    return CROWD * beyond + SURPLUS * surplus + NEIGHBOUR * (near - FEW).clamp_min(0)


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
        """Shapes, limits and noise of this task."""
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
        """Draw new worlds, see ``scenarios.draw``; no tensors share memory, because a CUDA graph writes over each."""
        drawn = draw(self, noise)
        leg = self.legs(drawn.pos, drawn.obstacle)
        nobody = torch.zeros(len(noise), self.rows, self.columns, dtype=torch.bool, device=noise.device)
        return self._with_legal(
            leg=leg[:, self.rows :].clone(),
            way=leg[:, : self.rows].clone(),
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
        after = _row(state.leg.flatten(2), to)  # B 1 M*S
        return self._with_legal(
            leg=state.leg,
            way=torch.where(mover, after, state.way.flatten(2)).view_as(state.way),
            pos=state.pos,
            obstacle=state.obstacle,
            demand=state.demand,
            own=state.own - given * mover,
            rest=state.rest - given * served,
            at=torch.where(mover, _row(state.pos, self.rows + to), state.at),
            left=state.left - distance,
            speed=state.speed,
            time=state.time + distance / state.speed.clamp_min(1e-6),
            ideal=state.ideal,
            targets=state.targets,
            near=state.near,
            served=state.served | (mover & target[:, None]),
            step=state.step + 1,
        )

    def observe(self, state: State) -> ChoiceObs:
        """Return the observation of the team and its legal moves, see ``observation``."""
        return observe(self, state)

    def reward(self, state: State, action: Int[Tensor, "B 1"], after: State) -> Float[Tensor, "B 1"]:
        """Return what the decision brought, see the class."""
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
        """Return whether no move is legal."""
        return ~state.legal.flatten(1).any(1, keepdim=True)

    def measure(self, state: State, action: Int[Tensor, "B 1"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the figures of ``metrics``, see the class."""
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
        edge = [each[self.rows :, None] + self.approach * part for each, part in ((x, turn.cos()), (y, turn.sin()))]
        dx, dy = (to.flatten(0, 1) - start[:, None] for to, start in zip(edge, (x, y), strict=True))  # N+M M*S B
        square = (dx * dx + dy * dy).clamp_min(1e-6)
        blocked = torch.zeros_like(square, dtype=torch.bool)
        for along_x, along_y, radius in obstacle.permute(1, 2, 0).contiguous():  # all at once would fill the caches
            ox, oy = (along_x - x)[:, None], (along_y - y)[:, None]
            along = ox * dx + oy * dy
            part = (along / square).clamp(0, 1)
            gap = (
                ox * ox + oy * oy + part * (part * square - 2 * along)
            )  # squared distance of the obstacle from the way
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
        """Return the number of targets that have all they need."""
        return state.targets - (state.rest.amax(-1) > 0).sum(1)

    def _crowd(self, state: State) -> Float[Tensor, " B"]:
        """Return the sum of the congestion of all targets."""
        return (state.served.sum(1) / state.ideal - 1).clamp(0, 1).sum(1)

    def _with_legal(self, **parts: Tensor) -> State:
        own, rest = ((parts[name] > 0).to(parts["left"].dtype) for name in ("own", "rest"))
        gives = own @ rest.transpose(1, 2) > 0  # B N M
        reach = torch.where(gives, parts["left"][..., None], -1.0)
        return State(**parts, legal=parts["way"] <= reach[..., None])

    def _mark(self, number: Int[Tensor, "B 1"], slots: int) -> Bool[Tensor, "B slots"]:
        return torch.arange(slots, device=number.device) == number


def _row(table: Float[Tensor, "B R C"], number: Int[Tensor, "B 1"]) -> Float[Tensor, "B 1 C"]:
    return table.gather(1, number[..., None].expand(-1, -1, table.shape[2]))


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
