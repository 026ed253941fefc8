"""Leader and followers in the plane: the leader flies to a goal past obstacles, the followers keep formation.

Positions are pixels of the published 1000 x 800 screen (10 px stand for 1 km), x to the right and y downwards;
headings are counter-clockwise on the screen from x. Agent 0 is the leader.

Source:
    Fang, Yang, Pan 2024, SCIENTIA SINICA Informationis 54(8), doi 10.1360/SSI-2024-0050.
"""

import math
import os
import random
import time
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import Count, EnvSpec, Metric, Rule, first_slots, tensors, where_world
from uavlab.ops.geometry import constant, distance, nearest_offsets, wrap_angle

AREA = (50.0, 50.0, 750.0, 650.0)  # px: left, top, right, bottom; positions are clamped here
BORDER = 50.0  # px: closer to the edge of the area costs `border_cost`
GOAL_RADIUS = 40.0  # px
FAR = 5000.0  # px, where obstacles are that are not there
NEAR_RADIUS = 40.0  # px: an obstacle closer than this is observed and costs `near_cost`
LENGTH, SPEED, TURN = 1000.0, 30.0, 360 / 57.3  # units of observations: px, px/s, and the published turn in radians
LEADER_UNITS, FOLLOWER_UNITS = ((LENGTH, LENGTH, SPEED, TURN, LENGTH, LENGTH, last) for last in (1.0, SPEED))
LEADER_LIMITS, FOLLOWER_LIMITS = (0.3, 0.6, 10.0, 20.0), (0.6, 1.2, 10.0, 40.0)
"""Largest acceleration (px/s^2), largest turn rate (rad/s), lowest and highest speed (px/s)."""
LEADER_START, FOLLOWER_START = (300, 500, 10, 100, 50, 10), (400, 500, 20, 100, 50, 10)
"""Least x, y (px) and speed (px/s) of published starts, then their ranges; starts are integers, both ends included."""


@tensors
class State:
    """State of a batch of worlds, with the distances that several functions need."""

    pos: Float[Tensor, "B A 2"]  # px
    speed: Float[Tensor, "B A"]  # px/s
    heading: Float[Tensor, "B A"]  # rad in [0, 2 pi)
    action: Float[Tensor, "B A 2"]  # the last action
    goal: Float[Tensor, "B 2"]  # px
    obstacle: Float[Tensor, "B M 2"]  # px
    drift: Float[Tensor, "B M 2"]  # obstacles' velocity, px/s
    step: Int[Tensor, " B"]  # number of steps
    gap: Float[Tensor, "B F"]  # px from each follower to the leader
    to_goal: Float[Tensor, "B A"]  # px from each agent to the goal
    clearance: Float[Tensor, "B A"]  # px from each agent to its nearest obstacle


@dataclass(frozen=True)
class LeaderFollower:
    """The leader-follower task; the defaults are the corrected task, ``PUBLISHED`` is the published one.

    | observation | leader                                        | follower                | unit           |
    | ----------- | --------------------------------------------- | ----------------------- | -------------- |
    | 0, 1        | its x, y                                      | its x, y                | 1000 px        |
    | 2           | its speed                                     | its speed               | 30 px/s        |
    | 3           | its heading                                   | its heading             | 360 / 57.3 rad |
    | 4, 5        | x, y of the goal                              | x, y of the leader      | 1000 px        |
    | 6           | 1 within 40 px of an obstacle, else 0         | speed of the leader     | 30 px/s        |
    | 7, 8, ...   | x, y to the ``sight`` nearest obstacles       | as for the leader       | 1000 px        |

    | action      | leader at -1 and 1                            | follower at -1 and 1    | unit           |
    | ----------- | --------------------------------------------- | ----------------------- | -------------- |
    | 0           | acceleration of 0.3, speeds from 10 to 20     | 0.6, from 10 to 40      | px/s^2, px/s   |
    | 1           | turn rate of 0.6                              | 1.2                     | rad/s          |

    | reward of the state after a step                            | leader               | follower          |
    | ----------------------------------------------------------- | -------------------- | ----------------- |
    | leader within 40 px of the goal                             | ``goal_reward``      |                   |
    | leader within ``crash_radius`` of an obstacle               | -``crash_cost``      |                   |
    | each px from the leader to the goal                         | -``distance_cost``   |                   |
    | follower in formation at matched speed                      | ``match_bonus`` each | ``match_bonus``   |
    | each px from the leader to a follower out of formation      | -``apart_cost`` each | -``apart_cost``   |
    | within 40 px of an obstacle                                 | -``near_cost``       | -``near_cost``    |
    | within 50 px of the area's edge                             | -``border_cost``     | -``border_cost``  |
    | each step                                                   | -``time_cost``       | -``time_cost``    |

    End, for all agents: the leader is within 40 px of the goal, or within ``crash_radius`` of an obstacle.

    Attributes:
        followers: Followers per world (F); agents A = F + 1.
        present: Fewest and most followers that take part, drawn for each world; the others stay where they are, see
            zeros, get no reward and count in no figure. None for all.
        present_obstacles: Fewest and most obstacles that are there, drawn for each world; None for all.
        obstacles: Obstacles per world (M); the first starts where the published one stands, the others anywhere in
            200 to 600 px across and 250 to 450 px down, clear of every start and goal.
        sight: Nearest obstacles whose offset every agent observes; the published agents observe none.
        obstacle_speed: Speed of the obstacles (px/s); they bounce off the border. 0 is the published task.
        dt: Duration of one step (s).
        horizon: Steps after which an episode is truncated.
        formation_radius: Distance to the leader below which a follower is in formation (px).
        crash_radius: Distance to an obstacle below which the leader is lost (px); a value above the published 20 in
            training teaches it a margin.
        goal_reward: For a leader that comes within 40 px of the goal.
        crash_cost: For a leader that is lost.
        near_cost: Per step within 40 px of an obstacle.
        border_cost: Per step within 50 px of the area's edge.
        distance_cost: Per step and pixel of the leader's distance to the goal.
        match_bonus: Per step for a follower in formation with matched speed, paid to it and to the leader.
        match_speed: Largest speed difference that counts as matched (px/s).
        apart_cost: Per step and pixel of a follower out of formation, paid by it and by the leader.
        time_cost: Per step, for every agent.
        trailing: Quirk: a follower's formation counts for its own reward only while the leader is nearer to the goal.
        first_follower_only: Quirk: all formation terms of the reward look at the first follower alone.
        follower_costs: Whether followers pay for obstacles and borders; False is the published quirk.
        lagged: Quirk: reward, observation and end of an episode describe the world before the action, which is
            the same as an action that takes effect one step late.
    """

    followers: Annotated[int, Ge(0), Le(64)] = 1
    obstacles: Annotated[int, Ge(1), Le(64)] = 1
    sight: Annotated[int, Ge(0), Le(64)] = 0
    obstacle_speed: Annotated[float, Ge(0), Le(40)] = 0.0
    dt: Annotated[float, Gt(0), Le(1)] = 1.0
    horizon: Annotated[int, Ge(1), Le(100_000)] = 1000
    formation_radius: Annotated[float, Gt(0), Le(10_000)] = 50.0
    crash_radius: Annotated[float, Gt(0), Le(40)] = 20.0
    goal_reward: Annotated[float, Ge(0), Le(1e6)] = 1000.0
    crash_cost: Annotated[float, Ge(0), Le(1e6)] = 500.0
    near_cost: Annotated[float, Ge(0), Le(1e6)] = 2.0
    border_cost: Annotated[float, Ge(0), Le(1e6)] = 1.0
    distance_cost: Annotated[float, Ge(0), Le(1000)] = 0.001
    match_bonus: Annotated[float, Ge(0), Le(1e6)] = 1.0
    match_speed: Annotated[float, Gt(0), Le(10_000)] = 1.0
    apart_cost: Annotated[float, Ge(0), Le(1000)] = 0.001
    time_cost: Annotated[float, Ge(0), Le(1e6)] = 0.0
    trailing: bool = False
    first_follower_only: bool = False
    follower_costs: bool = True
    lagged: bool = False
    present: tuple[Count, Count] | None = None
    present_obstacles: tuple[Count, Count] | None = None

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("completion", "outcome"),
        Metric("formation_strict", "mean", bounds=(0.0, 1.0)),
        Metric("formation_mean", "mean", bounds=(0.0, 1.0)),
        Metric("collision", "outcome", better="low"),
        Metric("path", "sum", "px", "low", (0.0, math.inf)),
        Metric("energy", "sum", "", "low", (0.0, math.inf)),
    )
    labels: ClassVar[dict[str, str]] = {
        "formation_strict": "strict formation",
        "formation_mean": "mean formation",
        "collision": "collisions",
        "obstacle_speed": "speed of obstacles (px/s)",
        "dt": "time step (s)",
        "formation_radius": "formation radius (px)",
        "crash_radius": "crash radius (px)",
        "match_speed": "matched speeds differ by (px/s)",
    }
    sizes: ClassVar[tuple[str, ...]] = ("followers", "present")
    perception: ClassVar[tuple[str, ...]] = ("sight",)
    initial_settings: ClassVar[tuple[str, ...]] = ("obstacle_speed", "present", "present_obstacles")
    score: ClassVar[dict[str, float]] = {"completion": 3.0, "formation_strict": 1.0, "flight_time": -0.0005}
    rules: ClassVar[tuple[Rule, ...]] = (
        (
            ("sight", "obstacles"),
            lambda s, m: s <= m,
            "sight {0} > obstacles {1}: an agent cannot see more than there are",
        ),
        (
            ("sight", "eval_obstacles"),
            lambda s, m: m is None or s <= m,
            "sight {0} > eval_obstacles {1}: the policy would look for more than there are",
        ),
        (
            ("present", "followers"),
            lambda present, f: present is None or 0 <= present[0] <= present[1] <= f,
            "present {0}: expected fewest and most of the {1} followers",
        ),
        (
            ("present_obstacles", "obstacles"),
            lambda present, m: present is None or 0 <= present[0] <= present[1] <= m,
            "present_obstacles {0}: expected fewest and most of the {1} obstacles",
        ),
    )

    @cached_property
    def spec(self) -> EnvSpec:
        agents = self.followers + 1
        return EnvSpec(
            agents=agents,
            obs=7 + 2 * self.sight,
            action=2,
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=4 * agents + 2 + 3 * self.obstacles + 2 * self.varied,
            step_noise=0,
            groups=(0,) + (1,) * self.followers,
            deaths=self.varied,
        )

    @property
    def varied(self) -> bool:
        """Whether worlds differ in their numbers of followers or obstacles."""
        return self.present is not None or self.present_obstacles is not None

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw new worlds; ``noise`` holds ``spec.initial_noise`` uniform numbers per world."""
        worlds, agents = noise.shape[0], self.followers + 1
        unit, goal, obstacle, count = noise.split([4 * agents, 2, 3 * self.obstacles, 2 * self.varied], dim=1)
        unit = unit.view(worlds, agents, 4)
        start = start_agents(unit[..., :3])
        obstacle, drift = start_obstacles(obstacle.view(worlds, self.obstacles, 3), self.obstacle_speed)
        speed = start[..., 2]
        if self.varied:
            there = first_slots(count[:, 0], self.present or (self.followers,) * 2, self.followers)
            speed = torch.cat((speed[:, :1], speed[:, 1:] * there), 1)
            there = first_slots(count[:, 1], self.present_obstacles or (self.obstacles,) * 2, self.obstacles)
            obstacle = torch.where(there[..., None], obstacle, FAR)
        return self._with_distances(
            pos=start[..., :2],
            speed=speed,
            heading=unit[..., 3] * (2 * math.pi),
            action=noise.new_zeros(worlds, agents, 2),
            goal=whole_numbers(goal, (300, 150, 200, 50)),
            obstacle=obstacle,
            drift=drift,
            step=torch.zeros(worlds, dtype=torch.int64, device=noise.device),
        )

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Move agents and obstacles by one step; actions beyond [-1, 1] are clamped."""
        action = action.clamp(-1, 1)
        motion = self._move(state, state.action if self.lagged else action)
        if self.lagged:  # there is no action before the first step, so nothing moves in it
            first = state.step == 0
            motion = {k: where_world(first, getattr(state, k), v) for k, v in motion.items()}
        return self._with_distances(**motion, action=action, goal=state.goal, step=state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B A O"]:
        near = (state.clearance[:, :1] < NEAR_RADIUS).to(state.pos.dtype)
        leader = torch.cat((state.goal, near), -1)[:, None]
        follower = torch.cat((state.pos[:, 0], state.speed[:, :1]), -1)[:, None].expand(-1, self.followers, -1)
        other = torch.cat((leader, follower), 1)
        obs = torch.cat((state.pos, state.speed[..., None], state.heading[..., None], other), -1)
        obs = obs / units(self.followers, obs)
        if self.sight:
            obs = torch.cat((obs, nearest_offsets(state.pos, state.obstacle, self.sight).flatten(2) / LENGTH), -1)
        return obs * self.takes_part(state)[..., None] if self.varied else obs

    def takes_part(self, state: State) -> Bool[Tensor, "B A"]:
        return state.speed > 0

    def reward(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> Float[Tensor, "B A"]:
        dtype = after.gap.dtype  # a number times a bool would be float32 even in a float64 world
        won, crashed = (flag.to(dtype) for flag in self._outcome(after))
        leader = self.goal_reward * won - self.crash_cost * crashed - self.distance_cost * after.to_goal[:, 0]
        left, top, right, bottom = AREA
        x, y = after.pos.unbind(-1)
        edge = (x <= left + BORDER) | (x >= right - BORDER) | (y <= top + BORDER) | (y >= bottom - BORDER)
        near = after.clearance < NEAR_RADIUS
        costs = self.near_cost * near.to(dtype) + self.border_cost * edge.to(dtype) + self.time_cost
        shared, own = self._formation_reward(after)
        if not self.follower_costs:
            costs = torch.cat((costs[:, :1], torch.full_like(costs[:, 1:], self.time_cost)), 1)
        reward = torch.cat(((leader + shared)[:, None], own), 1) - costs
        return reward * self.takes_part(after) if self.varied else reward

    def terminated(self, state: State) -> Tensor:
        """Return whether the task of each agent has ended (B A), see the class."""
        won, crashed = self._outcome(state)
        ended = (won | crashed)[:, None].expand(-1, self.followers + 1)
        return ended | ~self.takes_part(state) if self.varied else ended

    def measure(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the published metrics of one step; ``metrics`` declares how they are aggregated over an episode."""
        won, crashed = self._outcome(after)
        inside = after.gap < self.formation_radius
        return {
            "completion": won.to(after.gap.dtype),
            "collision": crashed.to(after.gap.dtype),
            "formation_strict": inside.all(1).to(after.gap.dtype),
            "formation_mean": 1 - (~inside).to(after.gap.dtype).sum(1) / self._followers(after),
            "path": after.speed[:, 0] * self.dt,
            "energy": after.action[:, 0].abs().sum(-1),
        }

    def _followers(self, state: State) -> int | Tensor:
        return self.takes_part(state)[:, 1:].sum(1).clamp_min(1) if self.varied else max(1, self.followers)

    def _move(self, state: State, action: Tensor) -> dict[str, Tensor]:
        gain, low, high = limits(self.followers + 1, self.dt, state.pos.device, state.pos.dtype)
        change = action * gain
        speed = torch.clamp(state.speed + change[..., 0], low, high)
        if self.varied:
            speed = speed * self.takes_part(state)
        heading = wrap_angle(state.heading + change[..., 1])
        reach = speed * self.dt
        left, top, right, bottom = AREA
        x = (state.pos[..., 0] + reach * heading.cos()).clamp(left, right)
        y = (state.pos[..., 1] - reach * heading.sin()).clamp(top, bottom)
        obstacle, drift = (state.obstacle, state.drift) if self.obstacle_speed == 0 else self._move_obstacles(state)
        return {
            "pos": torch.stack((x, y), -1),
            "speed": speed,
            "heading": heading,
            "obstacle": obstacle,
            "drift": drift,
        }

    def _move_obstacles(self, state: State) -> tuple[Tensor, Tensor]:
        low, high = constant(AREA, state.pos.device, state.pos.dtype).view(2, 2)
        place = state.obstacle + state.drift * self.dt
        outside = (place < low) | (place > high)
        place, drift = place.clamp(low, high), torch.where(outside, -state.drift, state.drift)
        return (torch.where(state.obstacle < FAR, place, state.obstacle), drift) if self.varied else (place, drift)

    def _with_distances(self, **parts: Tensor) -> State:
        pos = parts["pos"]
        gap = distance(pos[:, 1:], pos[:, :1])
        return State(
            **parts,
            gap=gap * (parts["speed"][:, 1:] > 0) if self.varied else gap,
            to_goal=distance(pos, parts["goal"][:, None]),
            clearance=distance(pos[:, :, None], parts["obstacle"][:, None]).amin(-1),
        )

    def _outcome(self, state: State) -> tuple[Tensor, Tensor]:
        won = state.to_goal[:, 0] < GOAL_RADIUS
        return won, (state.clearance[:, 0] < self.crash_radius) & ~won

    def _formation_reward(self, after: State) -> tuple[Tensor, Tensor]:
        inside = after.gap < self.formation_radius
        matched = (after.speed[:, 1:] - after.speed[:, :1]).abs() < self.match_speed
        bonus = self.match_bonus * (inside & matched).to(after.gap.dtype)
        cost = self.apart_cost * after.gap
        if self.varied:
            bonus = bonus * self.takes_part(after)[:, 1:]
        shared = torch.where(inside, bonus, -cost)
        own = shared
        if self.trailing:
            behind = after.to_goal[:, :1] < after.to_goal[:, 1:]
            own = torch.where(inside & behind, bonus, -cost)
        if self.first_follower_only:
            return shared[:, :1].sum(1), own[:, :1].expand_as(own)
        return shared.sum(1), own


def whole_numbers(unit: Tensor, ranges: tuple) -> Tensor:
    """Turn uniform numbers into integers; ``ranges`` hold the least ones, then the largest minus the least."""
    low, width = constant(ranges, unit.device, unit.dtype).chunk(2, -1)
    return low + (unit * (width + 1)).floor()


def start_agents(unit: Float[Tensor, "B A 3"]) -> Float[Tensor, "B A 3"]:
    """Return x, y (px) and speed (px/s) of leader and followers."""
    return whole_numbers(unit, (LEADER_START, *[FOLLOWER_START] * (unit.shape[1] - 1)))


def start_obstacles(
    unit: Float[Tensor, "B M 3"], speed: float
) -> tuple[Float[Tensor, "B M 2"], Float[Tensor, "B M 2"]]:
    """Return places (px) and velocities (px/s) of obstacles; the first one is where the published one stands."""
    first = whole_numbers(unit[:, :1, :2], (350, 400, 0, 50))
    others = whole_numbers(unit[:, 1:, :2], (200, 250, 400, 200))
    angle = unit[..., 2] * (2 * math.pi)
    return torch.cat((first, others), 1), speed * torch.stack((angle.cos(), angle.sin()), -1)


def units(followers: int, like: Tensor) -> Float[Tensor, "A 7"]:
    return constant((LEADER_UNITS, *[FOLLOWER_UNITS] * followers), like.device, like.dtype)


@lru_cache
def limits(agents: int, dt: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gains of (acceleration, turn rate) per step, lowest and highest speed, by agent."""
    rows = torch.tensor([LEADER_LIMITS] + [FOLLOWER_LIMITS] * (agents - 1), device=device, dtype=dtype)
    return rows[:, :2] * dt, rows[:, 2], rows[:, 3]


PUBLISHED = LeaderFollower(
    followers=4, dt=0.1, lagged=True, trailing=True, first_follower_only=True, follower_costs=False
)
"""The published test: one leader, four followers, 0.1 s steps, with every quirk that affects results."""


SIGHT = 120.0  # px of its way that the leader checks for obstacles
MARGIN = 45.0  # px from an obstacle at which the way is clear
AHEAD = 20.0  # px before the leader at which followers aim, so that they turn with it
TURNS = (0.0, *(sign * n * math.pi / 12 for n in range(1, 8) for sign in (1, -1)))  # rad from the goal, least first


def steer(env: LeaderFollower, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly the leader to the goal as slowly as it can, around obstacles in its way, and followers to it.

    A follower's speed is such that it can slow down to the leader's speed by the time that it arrives.
    """
    heading = state.heading[:, :1]
    aim = state.pos[:, :1] + AHEAD * direction(heading) - state.pos[:, 1:]  # B F 2
    bearing = torch.cat((way(state)[:, None], torch.atan2(-aim[..., 1], aim[..., 0])), 1)
    away = wrap_angle(bearing - state.heading + math.pi) - math.pi
    (slow, turn, lowest, _), (brake, swing, _, _) = LEADER_LIMITS, FOLLOWER_LIMITS
    speed = state.speed[:, :1] + (2 * brake * state.gap).sqrt()
    change = torch.cat(((lowest - state.speed[:, :1]) / slow, (speed - state.speed[:, 1:]) / brake), 1)
    bend = torch.cat((away[:, :1] / turn, away[:, 1:] / swing), 1)
    return torch.stack((change, bend), -1).div(env.dt).clamp(-1, 1)


def way(state: State) -> Float[Tensor, " B"]:
    """Return the leader's heading (rad): of those that are clear the nearest to the goal's, else the clearest."""
    leader = state.pos[:, 0]
    goal = state.goal - leader
    bearing = torch.atan2(-goal[:, 1], goal[:, 0])[:, None] + constant(TURNS, goal.device, goal.dtype)  # B T
    reach = goal.norm(dim=-1, keepdim=True).clamp_max(SIGHT)
    along = direction(bearing)[:, :, None]  # B T 1 2
    offset = (state.obstacle - leader[:, None])[:, None]  # B 1 M 2
    passed = (offset * along).sum(-1).clamp_min(0).minimum(reach[..., None])  # B T M: where an obstacle is nearest
    clearance = (offset - passed[..., None] * along).norm(dim=-1).amin(-1)
    best = clearance.clamp_max(MARGIN).argmax(1, keepdim=True)  # the first one of several
    return bearing.gather(1, best)[:, 0]


def direction(heading: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead 2"]:
    """Return x and y of a heading; y points down."""
    return torch.stack((heading.cos(), -heading.sin()), -1)


# The task with a pause in each step, as a slow simulator has: constant, random, or by rank.
Pause = Annotated[float, Ge(0), Le(60_000)]


@dataclass(frozen=True)
class SlowLeaderFollower(LeaderFollower):
    """``LeaderFollower`` with a delay in each step, as from an external simulator; results do not depend on it.

    Attributes:
        step_ms: Time that the host waits in each step of the batch (ms).
        pause_ms: Mean of a random time that it waits besides, exponentially distributed (ms).
        rank_ms: Time that it waits besides on rank 1, twice as long on rank 2, and so on (ms).
    """

    step_ms: Pause = 1.0
    pause_ms: Pause = 0.0
    rank_ms: Pause = 0.0

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        if (wait_ms := self.step_ms + rank() * self.rank_ms + self.pause_ms * waits(rank()).expovariate(1.0)) > 0:
            if state.step.is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("step_ms keeps the host waiting, and a graph's replays run nothing on the host")
            time.sleep(wait_ms / 1e3)
        return super().transition(state, action, noise)


def rank() -> int:
    """Return the number of this process among those that ``torchrun`` starts; 0 without it."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


@cache
def waits(rank: int) -> random.Random:
    """Return the generator of a rank's random pauses, apart from all random streams of a run."""
    return random.Random(rank)
