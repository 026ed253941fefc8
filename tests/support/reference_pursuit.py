"""The reference of Pursuit: one world, plain Python numbers, one UAV at a time.

It shares no code with the package, and takes its parameters from any object with the attributes of Pursuit. One uniform
number is consumed for each cell, row by row from the south: cells are filled in the order of their numbers by pursuers,
evaders and obstacles.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

Cell = tuple[int, int]
STEPS = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1), 4: (-1, 0)}


class Twin:
    """One world that starts from ``noise``."""

    def __init__(self, p: Any, noise: Sequence[float]) -> None:
        self.p = p
        assert len(noise) == p.side * p.side, "one number for each cell"
        cells = [(x, y) for y in range(p.side) for x in range(p.side)]
        queue = iter([cell for _, cell in sorted(zip(noise, cells, strict=True))])
        self.pursuers: list[Cell] = [next(queue) for _ in range(p.pursuers)]
        self.evaders: list[Cell] = [next(queue) for _ in range(p.evaders)]
        self.obstacles = {next(queue) for _ in range(p.obstacles)}
        self.caught = [False] * p.evaders
        self.before = list(self.caught)
        self.step_count = 0

    @property
    def places(self) -> list[Cell]:
        return self.pursuers + self.evaders

    def free(self, cell: Cell) -> bool:
        return all(0 <= each < self.p.side for each in cell) and cell not in self.obstacles

    def around(self, cell: Cell) -> Iterator[Cell]:
        """Yield the neighbours of a cell: north, east, south, west."""
        x, y = cell
        yield from ((x, y + 1), (x + 1, y), (x, y - 1), (x - 1, y))

    def legal(self, i: int) -> list[bool]:
        if i >= self.p.pursuers and self.caught[i - self.p.pursuers]:
            return [True, False, False, False, False]
        return [True, *(self.free(cell) for cell in self.around(self.places[i]))]

    def step(self, moves: Sequence[int]) -> None:
        """Move every UAV, then look for catches."""
        old, new = self.places, []
        for i, (x, y) in enumerate(old):
            dx, dy = STEPS[moves[i]] if self.legal(i)[moves[i]] else (0, 0)
            new.append((x + dx, y + dy))
        self.before = list(self.caught)
        for v in range(self.p.evaders):
            j = self.p.pursuers + v
            for i in range(self.p.pursuers):
                if new[i] == new[j] or (new[i] == old[j] and new[j] == old[i]):
                    self.caught[v] = True
        self.pursuers, self.evaders = new[: self.p.pursuers], new[self.p.pursuers :]
        self.step_count += 1

    def observation(self, i: int) -> list[float]:
        side, (x, y) = self.p.side, self.places[i]
        seen = [(x + 0.5) / side, (y + 0.5) / side]
        seen += [0.0 if self.free(cell) else 1.0 for cell in self.around((x, y))]
        own = i < self.p.pursuers
        others = self.pursuers[i + 1 :] + self.pursuers[:i] + self.evaders if own else self.pursuers
        for a, b in others:
            seen += [(a - x) / side, (b - y) / side]
        if own:
            return seen + [float(each) for each in self.caught]
        return seen + [0.0] * (len(self.observation(0)) - len(seen))

    def nearest(self, i: int) -> int:
        """Return the distance of a pursuer to the nearest evader that is free; 0 if none is."""
        x, y = self.pursuers[i]
        pairs = zip(self.evaders, self.caught, strict=True)
        return min((abs(a - x) + abs(b - y) for (a, b), caught in pairs if not caught), default=0)

    def reward(self, i: int) -> float:
        if i < self.p.pursuers:
            if all(self.before):
                return 0.0
            catches = sum(self.caught) - sum(self.before)
            return self.p.catch_reward * catches - self.p.time_cost - self.p.distance_cost * self.nearest(i)
        v = i - self.p.pursuers
        if self.before[v]:
            return 0.0
        return -self.p.caught_cost if self.caught[v] else self.p.survival_reward

    def ended(self, i: int) -> bool:
        return all(self.caught) if i < self.p.pursuers else self.caught[i - self.p.pursuers]

    def share_caught(self) -> float:
        return sum(self.caught) / self.p.evaders

    def survival(self) -> float:
        return self.p.dt * self.before.count(False) / self.p.evaders

    def ways(self, start: Cell) -> dict[Cell, int]:
        """Return the number of moves to every cell that can be reached, by breadth-first search."""
        length, queue = {start: 0}, deque([start])
        while queue:
            here = queue.popleft()
            for cell in self.around(here):
                if self.free(cell) and cell not in length:
                    length[cell] = length[here] + 1
                    queue.append(cell)
        return length
