"""The reference of Spread: one world, plain Python floats, one UAV at a time.

It shares no code with the package, and takes its parameters from any object with the attributes of Spread. Motion is
integrated in many small steps of its differential equation, not by its solution. Uniform numbers are consumed in this
order: x, y of every UAV, x, y of every landmark.
"""

import math
from collections.abc import Sequence
from typing import Any

Pair = tuple[float, float]
PARTS = 40  # of a step, each by the classical method of Runge and Kutta


class Twin:
    """One world that starts from ``noise``."""

    def __init__(self, p: Any, noise: Sequence[float]) -> None:
        self.p = p
        numbers = iter(noise)
        self.pos: list[Pair] = [(2 * next(numbers) - 1, 2 * next(numbers) - 1) for _ in range(p.uavs)]
        self.landmarks: list[Pair] = [(2 * next(numbers) - 1, 2 * next(numbers) - 1) for _ in range(p.uavs)]
        self.vel: list[Pair] = [(0.0, 0.0)] * p.uavs
        assert next(numbers, None) is None, "noise left over"
        self.step_count = 0

    def step(self, action: Sequence[Sequence[float]]) -> None:
        """Move every UAV, one axis after the other."""
        self.step_count += 1
        for i, command in enumerate(action):
            axes = [self.fly(*pair) for pair in zip(self.pos[i], self.vel[i], command, strict=True)]
            self.pos[i], self.vel[i] = (axes[0][0], axes[1][0]), (axes[0][1], axes[1][1])

    def fly(self, x: float, v: float, command: float) -> Pair:
        """Return place and velocity along one axis after a step."""
        aim, h = self.p.max_speed * max(-1.0, min(1.0, command)), self.p.dt / PARTS

        def pull(v: float) -> float:
            return (aim - v) / self.p.lag

        for _ in range(PARTS):
            v1, a1 = v, pull(v)
            v2, a2 = v + h / 2 * a1, pull(v + h / 2 * a1)
            v3, a3 = v + h / 2 * a2, pull(v + h / 2 * a2)
            v4, a4 = v + h * a3, pull(v + h * a3)
            x += h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
            v += h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        if x > 1:
            return 1.0, 0.0
        if x < -1:
            return -1.0, 0.0
        return x, v

    def observation(self, i: int) -> list[float]:
        x, y = self.pos[i]
        seen = [*self.vel[i], x, y]
        for a, b in self.landmarks:
            seen += [a - x, b - y]
        for a, b in self.pos[i + 1 :] + self.pos[:i]:
            seen += [a - x, b - y]
        return seen

    def nearest(self) -> list[float]:
        """Return the distance of each landmark to the UAV nearest to it."""
        return [min(math.dist(landmark, place) for place in self.pos) for landmark in self.landmarks]

    def covered(self) -> float:
        return sum(gap < self.p.cover_radius for gap in self.nearest()) / self.p.uavs

    def crashed(self, i: int) -> bool:
        others = self.pos[:i] + self.pos[i + 1 :]
        return any(math.dist(self.pos[i], place) < self.p.collision_radius for place in others)

    def reward(self, i: int) -> float:
        total = self.p.cover_reward * self.covered()
        total -= self.p.distance_cost * sum(self.nearest()) / self.p.uavs
        return total - (self.p.collision_cost if self.crashed(i) else 0.0)

    def collisions(self) -> int:
        pairs = [(i, j) for i in range(self.p.uavs) for j in range(i)]
        return sum(math.dist(self.pos[i], self.pos[j]) < self.p.collision_radius for i, j in pairs)
