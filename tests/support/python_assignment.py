"""The reference of Assignment: one world, plain Python floats, one UAV and one target at a time.

It shares no code with the package, and takes its parameters from any object with the attributes of ``Assignment``.
Uniform numbers are consumed in this order: counts of UAVs, targets and obstacles; centre of targets (x, y); a number
for each cell, by which targets choose; another one, by which the others choose; jitter (x, y) of all places, UAVs
first, then targets and obstacles; supplies and demands by kind; ranges; speeds; radii; jitter of neighbours.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

Pair = tuple[float, float]
SUPPLY, DEMAND = ((50.0, 60.0), 10.0), ((40.0, 50.0), 5.0)  # means, and the least
NOMINAL = 25.0  # m/s


class World:
    """One world."""

    def __init__(self, p: Any, noise: Sequence[float]) -> None:
        """Start it; ``noise`` holds as many uniform numbers as the environment's ``spec.initial_noise``."""
        self.p = p
        numbers = iter(noise)
        self.slots = max(p.slots[0], p.uavs[1]), max(p.slots[1], p.targets[1])
        self.blocks = max(p.slots[2], p.obstacles[1])
        limits = (p.uavs, p.targets, p.obstacles)
        counts = [low + int(next(numbers) * (high - low + 1)) for low, high in limits]
        self.place(counts, numbers)
        self.uavs, self.targets = counts[:2]
        supply = self.amounts(numbers, self.slots[0], *SUPPLY)[: self.uavs]
        demand = self.amounts(numbers, self.slots[1], *DEMAND)[: self.targets]
        ratio = sum(map(sum, supply)) / sum(map(sum, demand))
        scale = min(max(ratio, p.supply[0]), p.supply[1]) / ratio
        self.own = [[scale * amount for amount in each] for each in supply]
        self.demand, self.rest = [list(each) for each in demand], [list(each) for each in demand]
        short, long = p.reach
        self.left = [p.side * (short + (long - short) * next(numbers)) for _ in range(self.slots[0])][: self.uavs]
        self.speed = [15 + 20 * next(numbers) for _ in range(self.slots[0])][: self.uavs]
        sizes = [p.obstacle_radius * (0.4 + 0.6 * next(numbers)) for _ in range(self.blocks)]
        self.obstacles = list(zip(self.obstacle_places, sizes, strict=True))[: counts[2]]
        self.near = [self.neighbours(count, next(numbers)) for count in counts[:2]]
        self.at, self.time = self.starts[: self.uavs], [0.0] * self.uavs
        self.served: set[tuple[int, int]] = set()
        self.legal_moves: dict[int, list[bool]] = {}
        self.legs: dict[tuple[Pair, int, int], float] = {}
        self.step_count, self.distance = 0, 0.0

    def place(self, counts: Sequence[int], numbers: Any) -> None:
        """Choose cells: targets by the first number less a share of the distance to a centre, others by the second."""
        p, side = self.p, int(self.p.side / (2 * self.p.spacing))
        centre = [next(numbers) * (side - 1) for _ in range(2)]
        cells = [(column, row) for row in range(side) for column in range(side)]
        first, second = ([next(numbers) for _ in cells] for _ in range(2))
        liking = [
            number - p.clustering * math.hypot(cell[0] - centre[0], cell[1] - centre[1]) / side
            for number, cell in zip(first, cells, strict=True)
        ]
        targets = sorted(range(len(cells)), key=lambda n: -liking[n])[: self.slots[1]]
        others = sorted((n for n in range(len(cells)) if n not in targets), key=lambda n: second[n])
        uavs, obstacles = others[: self.slots[0]], others[self.slots[0] : self.slots[0] + self.blocks]
        spots = []
        for n in (*uavs, *targets, *obstacles):
            x, y = (next(numbers) for _ in range(2))
            size = 2 * p.spacing
            spots.append(((cells[n][0] + 0.25 + x / 2) * size, (cells[n][1] + 0.25 + y / 2) * size))
        self.starts, rest = spots[: self.slots[0]], spots[self.slots[0] :]
        self.target_places, self.obstacle_places = rest[: self.slots[1]], rest[self.slots[1] :]

    def amounts(self, numbers: Any, slots: int, means: Pair, least: float) -> list[list[float]]:
        """Return supplies or demands of all slots, by kind of resource."""
        spread = self.p.variance
        return [[max(mean * (1 + spread * (2 * next(numbers) - 1)), least) for mean in means] for _ in range(slots)]

    def neighbours(self, count: int, number: float) -> int:
        """Return how many of ``count`` things are neighbours."""
        jitter = self.p.jitter
        change = math.floor(number * (2 * jitter + 1)) - jitter
        whole = self.p.near or max(4, min(16, math.ceil(count / 4)))
        return max(1, min(count, max(self.p.near, 16), whole + change))

    def leg(self, uav: int, target: int, sector: int) -> float:
        """Return the length of a way; inf where an obstacle is in it."""
        key = (self.at[uav], target, sector)
        if key not in self.legs:
            self.legs[key] = self.way(*key)
        return self.legs[key]

    def way(self, start: Pair, target: int, sector: int) -> float:
        """Return the length of the way from a place to a target by a sector; inf where an obstacle is in it."""
        a, b = self.target_places[target]
        turn = 2 * math.pi * sector / self.p.sectors
        edge = a + self.p.approach * math.cos(turn), b + self.p.approach * math.sin(turn)
        length = math.dist(start, edge)
        for (x, y), radius in self.obstacles:
            one, other = math.dist(start, (x, y)), math.dist(edge, (x, y))
            gap = min(one, other)
            if abs(one**2 - other**2) < length**2:  # the nearest point is between the ends, by Heron's formula
                half = (one + other + length) / 2
                gap = 2 * math.sqrt(max(half * (half - one) * (half - other) * (half - length), 0)) / length
            if gap < radius:
                return math.inf
        return length + self.p.approach

    def gives(self, uav: int, target: int) -> list[float]:
        """Return what a UAV would give a target, by kind of resource."""
        return [min(own, rest) for own, rest in zip(self.own[uav], self.rest[target], strict=True)]

    def legal(self, uav: int, target: int, sector: int) -> bool:
        """Return whether a UAV can make a move, and would give something."""
        if uav >= self.uavs or target >= self.targets:
            return False
        return sum(self.gives(uav, target)) > 0 and self.leg(uav, target, sector) <= self.left[uav]

    def moves(self) -> list[bool]:
        """Return which moves are legal, in their order; they stay until the next step."""
        if self.step_count not in self.legal_moves:
            n, m, s = *map(range, self.slots), range(self.p.sectors)
            self.legal_moves = {self.step_count: [self.legal(*each) for each in product(n, m, s)]}
        return self.legal_moves[self.step_count]

    def step(self, move: int) -> float:
        """Decide, and return the reward."""
        p, before = self.p, self.figures()
        share = distance = published = 0.0
        pair, sector = divmod(move, p.sectors)
        uav, target = divmod(pair, self.slots[1])
        if self.legal(uav, target, sector):
            distance, given = self.leg(uav, target, sector), self.gives(uav, target)
            first = self.visits(target) == 0
            self.left[uav] -= distance
            self.time[uav] += distance / self.speed[uav]
            self.at[uav] = self.target_places[target]
            self.served.add((uav, target))
            for kind, amount in enumerate(given):
                self.own[uav][kind] -= amount
                self.rest[target][kind] -= amount
                share += amount / self.demand[target][kind] / len(given)
            self.distance += distance
            done = before["completion"], self.figures()["completion"]
            costs = self.costs(distance, distance / self.speed[uav])
            published = self.gain(target, sum(given), done, first) * (1 - costs) - self.crowding(uav, target)
            published = min(max(published + 200 * (done[1] == 1), -10), 300)
        self.step_count += 1
        after = self.figures()
        if p.rewards == "published":
            return published
        return (
            p.contribution_reward * share / self.targets
            + p.completion_reward * (after["completion"] - before["completion"])
            - p.congestion_cost * (after["congestion"] - before["congestion"])
            - p.distance_cost * distance / (p.side * self.targets)
        )

    def gain(self, target: int, given: float, done: Pair, first: bool) -> float:
        """Return what the published reward counts as gains of a visit."""
        ratio = given / sum(self.demand[target])
        gain = 10 + 40 * ratio + 15 * math.sqrt(ratio) + (10 * (ratio - 0.3) if ratio > 0.3 else 0)
        gain += 100 * (max(self.rest[target]) == 0) + 5 * first + 0.2 * done[1]
        for mark, worth in ((0.25, 0.5), (0.5, 1), (0.75, 1.5), (0.9, 2)):
            if done[0] < mark <= done[1]:
                gain += worth
        return gain

    def costs(self, way: float, time: float) -> float:
        """Return the share of gains that a flight costs: 3 to 5 % for its way, 2 to 3 % for its time."""
        side = self.p.side
        return 0.03 + 0.02 * min(way / side, 1) + 0.02 + 0.01 * min(time / (side / NOMINAL), 1)

    def crowding(self, uav: int, target: int) -> float:
        """Return the published cost of congestion after a UAV has served a target."""
        cost = 2.0 * max(self.visits(target) - self.ideal(target), 0)
        active = sum(1 for own in self.own if sum(own) > 0)
        if active > 2 * self.targets:
            cost += 1.5 * (active / (2 * self.targets) - 1)
        near = sum(1 for n, at in enumerate(self.at) if n != uav and math.dist(at, self.at[uav]) <= 200)
        return (cost + 0.5 * max(near - 2, 0)) / max(active, 1)

    def ideal(self, target: int) -> int:
        """Return the number of UAVs that would ideally serve a target."""
        return min(max(1, math.ceil(max(self.demand[target]) / self.p.load)), self.p.ideal_limit)

    def visits(self, target: int) -> int:
        """Return the number of UAVs that served a target."""
        return sum(1 for _, other in self.served if other == target)

    def figures(self) -> dict[str, float]:
        """Return the figures of the world as it is now."""
        done = sum(1 for rest in self.rest if max(rest) == 0) / self.targets
        crowds = [min(max(self.visits(t) / self.ideal(t) - 1, 0), 1) for t in range(self.targets)]
        crowd = sum(crowds) / self.targets
        return {
            "completion": done,
            "congestion": crowd,
            "normalized_score": done * (1 - crowd),
            "makespan": max(self.time),
            "efficiency": 1000 * done * self.targets / self.distance if self.distance else 0.0,
        }

    def ended(self) -> bool:
        """Return whether no move is legal."""
        return not any(self.moves())

    def observation(self) -> list[float]:
        """Return what the team observes."""
        seen: list[float] = []
        p = self.p
        per_uav = self.slots[1] * p.sectors
        moves = self.moves()
        for u in range(self.slots[0]):
            if u >= self.uavs:
                seen += [0.0] * 8
                continue
            active = any(moves[u * per_uav : (u + 1) * per_uav])
            seen += [float(active), *(each / p.side for each in self.at[u]), *(each / p.load for each in self.own[u])]
            seen += [self.left[u] / p.side, self.time[u] * NOMINAL / p.side, self.speed[u] / NOMINAL]
        for t in range(self.slots[1]):
            if t >= self.targets:
                seen += [0.0] * 8
                continue
            seen += [float(sum(self.rest[t]) > 0), *(each / p.side for each in self.target_places[t])]
            seen += [each / p.load for each in self.rest[t]]
            seen += [rest / all_ for rest, all_ in zip(self.rest[t], self.demand[t], strict=True)]
            seen.append(self.visits(t) / self.ideal(t))
        return [*seen, *map(float, self.near)]
