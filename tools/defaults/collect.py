"""Agents on a grid with walls collect items together: moves with masks.

``python -m tools.defaults.collect check collect`` checks it; ``evaluate collect --policy nearest_item`` flies the plan.
"""

from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

import uavlab as ul

MAP = (
    "..........",
    "....#.....",
    "....#..#..",
    "....#..#..",
    ".####..#..",
    ".......###",
    "..#.......",
    "..#..####.",
    "..#.......",
    "..........",
)  # the first row is the northernmost
SIDE = len(MAP)
AGENTS = 3
MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))  # x and y: stay, north, east, south, west


@lru_cache
def floor(device: torch.device) -> tuple[Int[Tensor, "F 2"], Bool[Tensor, "M M"]]:
    """Return x and y of the free cells, and by row y + 1 and column x + 1 what is free, with the edge around."""
    free = torch.tensor([[cell == "." for cell in row] for row in reversed(MAP)], device=device)
    return free.nonzero().flip(1), torch.nn.functional.pad(free, (1, 1, 1, 1))


@lru_cache
def ways(device: torch.device) -> Float[Tensor, "M^2 M^2"]:
    """Return the number of moves between any two cells with the edge around, infinite where there is no way."""
    free = floor(device)[1].flatten()
    cell = torch.arange(free.numel(), device=device)
    place = torch.stack((cell % (SIDE + 2), cell // (SIDE + 2)), -1).to(torch.float32)
    apart = (place[:, None] - place).abs().sum(-1)
    way = apart.masked_fill((apart > 1) | ~free | ~free[:, None], torch.inf)
    for _ in range(free.numel().bit_length()):  # each round doubles the moves that are considered
        way = torch.stack([(row[:, None] + way).amin(0) for row in way])
    return way


@ul.tensors
class State:
    """State of a batch of worlds."""

    pos: Float[Tensor, "B A 2"]  # cells, whole numbers: x to the east and y to the north
    item: Float[Tensor, "B I 2"]  # cells
    left: Bool[Tensor, "B I"]  # items that are not collected
    step: Int[Tensor, " B"]


@ul.env("collect")
class Collect:
    """Three agents collect items, each by a visit to its cell; a collected item rewards all of them.

    Agents and items start in free cells of their own. Several agents may be in one cell. Moves into walls and over the
    edge are not legal; an agent that makes one stays. An agent observes its place, which moves are legal, the offsets
    to the others, and of each item the offset and a 1, or zeros once it is collected; distances are in sides. The task
    ends when no item is left.

    Attributes:
        items: Items per world.
        item_reward: For every agent and each item that is collected.
        time_cost: For every agent, per step.
        horizon: Steps after which an episode is truncated.
    """

    items: Annotated[int, Ge(1), Le(40)] = 8
    item_reward: Annotated[float, Gt(0)] = 1.0
    time_cost: Annotated[float, Ge(0)] = 0.02
    horizon: Annotated[int, Gt(0)] = 25
    metrics: ClassVar = (ul.Metric("collected", "last", bounds=(0.0, 1.0)),)
    score: ClassVar = {"collected": 1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        """Shapes, limits and noise."""
        return ul.EnvSpec(
            agents=AGENTS,
            obs=2 + len(MOVES) + 2 * (AGENTS - 1) + 3 * self.items,
            action=1,
            choices=len(MOVES),
            horizon=self.horizon,
            dt=1.0,
            initial_noise="".join(MAP).count("."),
            step_noise=0,
            groups=(0,) * AGENTS,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw worlds from a number per free cell: agents start in the cells of the lowest, items follow."""
        cells = floor(noise.device)[0][noise.argsort(dim=1, stable=True)[:, : AGENTS + self.items]]
        pos, item = cells.to(noise.dtype).split((AGENTS, self.items), 1)
        left = torch.ones_like(item[..., 0], dtype=torch.bool)
        return State(pos, item, left, torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B 0"]) -> State:
        """Move all agents at once and collect."""
        legal = self.legal(state).gather(2, action[..., None])
        pos = state.pos + ul.constant(MOVES, action.device, torch.int64)[action] * legal
        here = (pos[:, :, None] == state.item[:, None]).all(-1).any(1)
        return State(pos, state.item, state.left & ~here, state.step + 1)

    def observe(self, state: State) -> ul.ChoiceObs:
        """Return observations and legal moves, see the class."""
        legal, turn = self.legal(state), torch.arange(AGENTS, device=state.pos.device)
        others = state.pos[:, (turn[:, None] + turn[1:]) % AGENTS] - state.pos[:, :, None]
        left = state.left[:, None, :, None].expand(-1, AGENTS, -1, -1)
        items = torch.cat(((state.item[:, None] - state.pos[:, :, None]) / SIDE * left, left), -1)
        parts = (state.pos / SIDE, legal, others.flatten(2) / SIDE, items.flatten(2))
        return ul.ChoiceObs(torch.cat(parts, -1), legal)

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        """Return the reward of each agent; 0 after the end."""
        taken = (state.left & ~after.left).to(after.pos.dtype).sum(1, keepdim=True)
        return (self.item_reward * taken - self.time_cost * state.left.any(1, keepdim=True)).expand(-1, AGENTS)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return for every agent whether no item is left."""
        return ~state.left.any(1, keepdim=True).expand(-1, AGENTS)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of items that are collected."""
        return {"collected": 1 - after.left.to(after.pos.dtype).mean(1)}

    def cells(self, state: State) -> Int[Tensor, "B A 5"]:
        """Return the number of the cell to which each move leads, with the edge around, row by row."""
        x, y = (state.pos[:, :, None] + ul.constant(MOVES, state.pos.device, torch.int64)).long().unbind(-1)
        return (y + 1) * (SIDE + 2) + x + 1

    def legal(self, state: State) -> Bool[Tensor, "B A 5"]:
        """Return which moves lead into free cells."""
        return floor(state.pos.device)[1].flatten()[self.cells(state)]


@ul.baseline("collect")
def nearest_item(env: Collect, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Go the shortest way to an item; the nearest pair of agent and item is assigned first, then that of the others."""
    way = ways(state.pos.device)
    each = torch.arange(AGENTS, device=way.device)
    x, y = (state.item.long() + 1).unbind(-1)
    item = (y * (SIDE + 2) + x)[:, None, None]
    after = way[env.cells(state)[..., None], item]  # B A 5 I: moves that are left to each item after each move
    here = after[:, :, 0].masked_fill(~state.left[:, None], torch.inf)
    goal = here.argmin(2)
    for _ in each:
        pair = here.flatten(1).argmin(1, keepdim=True)
        agent, chosen = each == pair // env.items, pair % env.items
        open_ = here.flatten(1).gather(1, pair) < torch.inf  # who gets no item of its own goes to the nearest one
        goal = torch.where(agent & open_, chosen, goal)
        done = agent[:, :, None] | (torch.arange(env.items, device=way.device) == chosen)[:, None]
        here = here.masked_fill(done, torch.inf)
    return after.gather(3, goal[:, :, None, None].expand(-1, -1, len(MOVES), 1))[..., 0].argmin(2)


if __name__ == "__main__":
    ul.main()
