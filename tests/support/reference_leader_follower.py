"""The reference of LeaderFollower: one world, plain Python floats, one agent at a time, as the task is published.

It shares no code with the package, and takes its parameters from any object with the attributes of LeaderFollower.
Uniform numbers are consumed in this order: x, y, speed, heading of every agent; x, y of the goal; x, y, course of every
obstacle. ``lagged`` is written as published: a step first looks at the world, then moves it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Facts of the published task: flight area, and per kind of agent (acceleration, turn rate, slowest, fastest).
LEFT, TOP, RIGHT, BOTTOM = 50.0, 50.0, 750.0, 650.0
LEADER, FOLLOWER = (0.3, 0.6, 10.0, 20.0), (0.6, 1.2, 10.0, 40.0)


@dataclass
class Agent:
    """One aircraft."""

    x: float
    y: float
    speed: float
    heading: float


@dataclass
class Obstacle:
    """One obstacle and its velocity."""

    x: float
    y: float
    vx: float
    vy: float


@dataclass
class Seen:
    """State, observations and results of one step."""

    agents: list[Agent]
    goal: tuple[float, float]
    obstacles: list[Obstacle]
    step: int
    obs: list[list[float]]
    reward: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    measures: dict[str, float] = field(default_factory=dict)


def whole(unit: float, low: int, high: int) -> float:
    """Draw a whole number, both ends included."""
    return float(low + int(unit * (high - low + 1)))


def apart(a: Agent, b: Agent | Obstacle) -> float:
    """Return the distance of two points."""
    return math.sqrt((a.x - b.x) ** 2 + (a.y - b.y) ** 2)


class Twin:
    """One world that starts from ``noise``."""

    def __init__(self, p: Any, noise: Sequence[float]) -> None:
        self.p = p
        numbers = iter(float(u) for u in noise)
        self.agents = []
        for i in range(p.followers + 1):
            x = whole(next(numbers), *((300, 400) if i == 0 else (400, 500)))
            y = whole(next(numbers), 500, 550)
            speed = whole(next(numbers), *((10, 20) if i == 0 else (20, 30)))
            self.agents.append(Agent(x, y, speed, next(numbers) * 2 * math.pi))
        self.goal = (whole(next(numbers), 300, 500), whole(next(numbers), 150, 200))
        self.obstacles = []
        for i in range(p.obstacles):
            x, y = next(numbers), next(numbers)
            course = next(numbers) * 2 * math.pi
            place = (350.0, whole(y, 400, 450)) if i == 0 else (whole(x, 200, 600), whole(y, 250, 450))
            velocity = (p.obstacle_speed * math.cos(course), p.obstacle_speed * math.sin(course))
            self.obstacles.append(Obstacle(*place, *velocity))
        assert next(numbers, None) is None, "noise left over"
        self.step_count = 0

    def look(self) -> Seen:
        """Return the present state and observations."""
        return Seen(
            agents=[Agent(a.x, a.y, a.speed, a.heading) for a in self.agents],
            goal=self.goal,
            obstacles=[Obstacle(o.x, o.y, o.vx, o.vy) for o in self.obstacles],
            step=self.step_count,
            obs=[self.observation(i) for i in range(len(self.agents))],
        )

    def step(self, action: Sequence[Sequence[float]]) -> Seen:
        """Take one step, in the published order if ``lagged``, else motion first."""
        self.step_count += 1
        action = [[min(1.0, max(-1.0, float(v))) for v in pair] for pair in action]
        if not self.p.lagged:
            self.move(action)
        seen = self.look()
        won, crashed = self.won(), self.crashed()
        seen.reward = [self.reward(i) for i in range(len(self.agents))]
        seen.terminated = won or crashed
        seen.truncated = self.step_count >= self.p.horizon and not seen.terminated
        inside = [apart(f, self.agents[0]) < self.p.formation_radius for f in self.agents[1:]]
        seen.measures = {
            "completion": float(won),
            "collision": float(crashed),
            "formation_strict": float(all(inside)),
            "formation_mean": 1 - (len(inside) - sum(inside)) / max(1, len(inside)),
            "path": self.agents[0].speed * self.p.dt,
            "energy": abs(action[0][0]) + abs(action[0][1]),
        }
        if self.p.lagged:
            self.move(action)
        return seen

    def move(self, action: Sequence[Sequence[float]]) -> None:
        dt = self.p.dt
        for i, agent in enumerate(self.agents):
            gain, turn, slowest, fastest = LEADER if i == 0 else FOLLOWER
            agent.speed = min(fastest, max(slowest, agent.speed + gain * action[i][0] * dt))
            agent.heading += turn * action[i][1] * dt
            if agent.heading >= 2 * math.pi:
                agent.heading -= 2 * math.pi
            if agent.heading < 0:
                agent.heading += 2 * math.pi
            agent.x = min(RIGHT, max(LEFT, agent.x + agent.speed * math.cos(agent.heading) * dt))
            agent.y = min(BOTTOM, max(TOP, agent.y - agent.speed * math.sin(agent.heading) * dt))
        for o in self.obstacles:
            o.x, o.y = o.x + o.vx * dt, o.y + o.vy * dt
            if not LEFT <= o.x <= RIGHT:
                o.x, o.vx = min(RIGHT, max(LEFT, o.x)), -o.vx
            if not TOP <= o.y <= BOTTOM:
                o.y, o.vy = min(BOTTOM, max(TOP, o.y)), -o.vy

    def to_goal(self, i: int) -> float:
        return math.sqrt((self.agents[i].x - self.goal[0]) ** 2 + (self.agents[i].y - self.goal[1]) ** 2)

    def clearance(self, i: int) -> float:
        return min(apart(self.agents[i], o) for o in self.obstacles)

    def won(self) -> bool:
        return self.to_goal(0) < 40

    def crashed(self) -> bool:
        return self.clearance(0) < self.p.crash_radius and not self.won()

    def observation(self, i: int) -> list[float]:
        me, leader = self.agents[i], self.agents[0]
        own = [me.x / 1000, me.y / 1000, me.speed / 30, me.heading * 57.3 / 360]
        if i == 0:
            rest = [self.goal[0] / 1000, self.goal[1] / 1000, 1.0 if self.clearance(0) < 40 else 0.0]
        else:
            rest = [leader.x / 1000, leader.y / 1000, leader.speed / 30]
        for o in sorted(self.obstacles, key=lambda o: apart(me, o))[: self.p.sight]:
            rest += [(o.x - me.x) / 1000, (o.y - me.y) / 1000]
        return own + rest

    def reward(self, i: int) -> float:
        p, me, leader, total = self.p, self.agents[i], self.agents[0], 0.0
        total -= p.time_cost
        if i == 0 or p.follower_costs:
            if self.clearance(i) < 40:
                total -= p.near_cost
            if me.x <= 100 or me.x >= 700 or me.y <= 100 or me.y >= 600:
                total -= p.border_cost
        followers = list(range(1, len(self.agents)))
        if i == 0:
            if self.won():
                total += p.goal_reward
            if self.crashed():
                total -= p.crash_cost
            total -= p.distance_cost * self.to_goal(0)
            for k in followers[:1] if p.first_follower_only else followers:
                total += self.formation(k)
            return total
        k = 1 if p.first_follower_only else i
        if p.trailing and not self.to_goal(0) < self.to_goal(k):
            return total - p.apart_cost * apart(self.agents[k], leader)
        return total + self.formation(k)

    def formation(self, k: int) -> float:
        """Return follower k's formation reward: the bonus inside the radius at matched speed, the cost outside."""
        gap = apart(self.agents[k], self.agents[0])
        if gap < self.p.formation_radius:
            return self.p.match_bonus if abs(self.agents[k].speed - self.agents[0].speed) < self.p.match_speed else 0.0
        return -self.p.apart_cost * gap
