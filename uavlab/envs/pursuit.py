"""Pursuit: UAVs of one group catch those of the other on a grid with obstacles.

The unit of length is a cell; x counts cells to the east and y cells to the north, both from 0.

Source:
    The task is our own; a similar one is in Gupta, Egorov, Kochenderfer 2017, "Cooperative Multi-agent Control Using
    Deep Reinforcement Learning", where only pursuers learn and several must surround an evader.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.core.types import ChoiceObs, EnvSpec, Group, Metric, Rule, join_groups, split_groups, team_spec, tensors
from uavlab.ops.action_sampling import sample_categorical
from uavlab.ops.geometry import constant

MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))  # cells in x and y: stay, north, east, south, west


@tensors
class State:
    """State of a batch of worlds; pursuers (P) have the first numbers, evaders (V) the others."""

    pos: Float[Tensor, "B A 2"]  # cells, whole numbers
    blocked: Bool[Tensor, "B N N"]  # obstacles by row y + 1 and column x + 1, with the wall around: N = side + 2
    caught: Bool[Tensor, "B V"]  # evaders
    step: Int[Tensor, " B"]  # number of steps


@dataclass(frozen=True)
class Pursuit:
    """The pursuit task: a group of UAVs catches another group, which flees.

    UAVs start in cells of their own, and obstacles fill further cells; free cells need not be connected. All UAVs move
    at once, and several may be in one cell. An evader is caught if a pursuer is in its cell after a step, or if the
    two exchanged cells; then it stays where it is. What one group wins is not what the other loses.

    | observation | of a pursuer                                                           | of an evader          |
    | ----------- | ---------------------------------------------------------------------- | --------------------- |
    | 0, 1        | x, y of the centre of its cell, in sides from the south-western corner | the same              |
    | 2 to 5      | 1 if an obstacle or the wall is in the north, east, south, west, or 0  | the same              |
    | 6, 7, ...   | x, y from it to each other pursuer, in sides: the next number is first | to each pursuer       |
    | ...         | x, y from it to each evader, in sides                                  | 0, up to equal length |
    | ...         | 1 for each evader that is caught, or 0                                 | 0, up to equal length |

    | move       | of any UAV                                       | legal                                       |
    | ---------- | ------------------------------------------------ | ------------------------------------------- |
    | 0          | stays                                            | always                                      |
    | 1, 2, 3, 4 | to the next cell in the north, east, south, west | into a free cell, unless the UAV is caught  |

    | reward of a step                         | every pursuer                | an evader that was free            |
    | ---------------------------------------- | ---------------------------- | ---------------------------------- |
    | an evader is caught                      | ``catch_reward`` for each    | -``caught_cost``, if it is the one |
    | an evader is still free                  |                              | ``survival_reward``, if it is one  |
    | an evader was free before the step       | -``time_cost``               |                                    |
    | cells to the nearest evader that is free | -``distance_cost`` for each  |                                    |

    End: for an evader, when it is caught; for pursuers, when all are. Rewards are 0 from then on.

    Attributes:
        pursuers: UAVs that pursue (P).
        evaders: UAVs that flee (V).
        side: Cells along each side of the grid.
        obstacles: Cells that are blocked.
        dt: Duration of one step (s); nothing but the time of flights depends on it.
        horizon: Steps after which an episode is truncated.
        catch_reward: For every pursuer and each evader that is caught.
        time_cost: For every pursuer, per step, until all evaders are caught.
        distance_cost: For every pursuer, per step and cell (in x plus in y) to the nearest evader that is free.
        survival_reward: For an evader, per step after which it is free.
        caught_cost: For an evader that is caught.
    """

    pursuers: Annotated[int, Ge(1), Le(32)] = 4
    evaders: Annotated[int, Ge(1), Le(32)] = 2
    side: Annotated[int, Ge(2), Le(32)] = 10
    obstacles: Annotated[int, Ge(0), Le(1000)] = 12
    dt: Annotated[float, Gt(0), Le(100)] = 1.0
    horizon: Annotated[int, Ge(1), Le(100_000)] = 40
    catch_reward: Annotated[float, Ge(0), Le(1e6)] = 1.0
    time_cost: Annotated[float, Ge(0), Le(1e6)] = 0.01
    distance_cost: Annotated[float, Ge(0), Le(1e6)] = 0.005
    survival_reward: Annotated[float, Ge(0), Le(1e6)] = 0.02
    caught_cost: Annotated[float, Ge(0), Le(1e6)] = 1.0

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("caught", "last", bounds=(0.0, 1.0)),
        Metric("survival", "sum", "s", "low", (0.0, math.inf)),
    )
    labels: ClassVar[dict[str, str]] = {
        "caught": "caught evaders",
        "survival": "time that an evader is free",
        "side": "cells along a side",
        "dt": "time step (s)",
    }
    score: ClassVar[dict[str, float]] = {"caught": 1.0}
    group_scores: ClassVar[dict[str, dict[str, float]]] = {"pursuers": {"caught": 1.0}, "evaders": {"survival": 1.0}}
    rules: ClassVar[tuple[Rule, ...]] = (
        (
            ("pursuers", "evaders", "obstacles", "side"),
            lambda pursuers, evaders, obstacles, side: pursuers + evaders + obstacles <= side**2,
            "pursuers {0} + evaders {1} + obstacles {2} > side {3} squared: each needs a cell of its own at the start",
        ),
    )

    @cached_property
    def spec(self) -> EnvSpec:
        seen, moves = 2 * self.pursuers + 3 * self.evaders + 4, len(MOVES)
        return team_spec(
            Group("pursuers", self.pursuers, obs=seen, choices=moves),
            Group("evaders", self.evaders, obs=2 * self.pursuers + 6, choices=moves),
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=self.side**2,
            deaths=self.evaders > 1,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw new worlds; ``noise`` holds a number per cell, row by row: pursuers start in the cells of the lowest."""
        order = noise.argsort(dim=1, stable=True)
        cell = order[:, : self.spec.agents]
        obstacle = order[:, self.spec.agents : self.spec.agents + self.obstacles]
        blocked = torch.zeros_like(order, dtype=torch.bool).scatter(1, obstacle, True).view(-1, self.side, self.side)
        return State(
            pos=torch.stack((cell % self.side, cell // self.side), -1).to(noise.dtype),
            blocked=F.pad(blocked, (1, 1, 1, 1), value=True),
            caught=torch.zeros_like(order[:, : self.evaders], dtype=torch.bool),
            step=torch.zeros_like(order[:, 0]),
        )

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B 0"]) -> State:
        """Move all UAVs at once and catch evaders; a UAV whose move is not legal stays."""
        legal = self.legal(state).gather(2, action[..., None])
        pos = state.pos + constant(MOVES, action.device, state.pos.dtype)[action] * legal
        caught = state.caught | self.meets(state.pos, pos).any(1)
        return State(pos=pos, blocked=state.blocked, caught=caught, step=state.step + 1)

    def observe(self, state: State) -> ChoiceObs:
        own = torch.cat(((state.pos + 0.5) / self.side, self.obstructed(state)[..., 1:].to(state.pos.dtype)), -1)
        pursuer, evader = self.groups(state.pos)
        turn = torch.arange(self.pursuers, device=pursuer.device)
        others = pursuer[:, (turn[:, None] + turn[1:]) % self.pursuers] - pursuer[:, :, None]
        caught = state.caught[:, None].expand(-1, self.pursuers, -1).to(pursuer.dtype)
        away = evader[:, None] - pursuer[:, :, None]  # B P V 2
        of_pursuers, of_evaders = self.groups(own)
        seen = (of_pursuers, others.flatten(2) / self.side, away.flatten(2) / self.side, caught)
        by_evaders = torch.cat((of_evaders, -away.transpose(1, 2).flatten(2) / self.side), -1)
        features = join_groups(self.spec, {"pursuers": torch.cat(seen, -1), "evaders": by_evaders})
        return ChoiceObs(features, self.legal(state))

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        dtype, free = after.pos.dtype, ~state.caught
        new = (after.caught & free).to(dtype)
        price = self.time_cost + self.distance_cost * self.nearest(after)
        pursuer = self.catch_reward * new.sum(1, keepdim=True) - price * free.any(1, keepdim=True)
        evader = self.survival_reward * (~after.caught).to(dtype) - self.caught_cost * new
        return torch.cat((pursuer, evader), 1)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return which evaders are caught, and of every pursuer whether all are."""
        return torch.cat((state.caught.all(1, keepdim=True).expand(-1, self.pursuers), state.caught), 1)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of evaders that are caught, and the seconds of the step times the share that was free."""
        dtype = after.pos.dtype
        free = (~state.caught).to(dtype).mean(1)
        return {"caught": after.caught.to(dtype).mean(1), "survival": self.dt * free}

    def legal(self, state: State) -> Bool[Tensor, "B A 5"]:
        """Return which of ``MOVES`` each UAV may choose."""
        free = torch.cat((torch.ones_like(state.pos[:, : self.pursuers, 0], dtype=torch.bool), ~state.caught), 1)
        stay = constant((True, *[False] * 4), state.pos.device, torch.bool)
        return stay | (free[..., None] & ~self.obstructed(state))

    def meets(self, before: Float[Tensor, "B A 2"], after: Float[Tensor, "B A 2"]) -> Bool[Tensor, "B P V"]:
        """Return which pursuers are in the cell of which evaders after a step, or exchanged cells with them."""
        (old_pursuer, old_evader), (pursuer, evader) = self.groups(before), self.groups(after)

        def same(a: Tensor, b: Tensor) -> Tensor:
            return (a[:, :, None] == b[:, None]).all(-1)

        return same(pursuer, evader) | (same(pursuer, old_evader) & same(old_pursuer, evader))

    def nearest(self, state: State) -> Float[Tensor, "B P"]:
        """Return the cells in x plus in y from each pursuer to the nearest evader that is free; 0 if none is."""
        pursuer, evader = self.groups(state.pos)
        apart = (pursuer[:, :, None] - evader[:, None]).abs().sum(-1)
        nearest = apart.masked_fill(state.caught[:, None], torch.inf).amin(-1)
        return nearest.masked_fill(state.caught.all(1, keepdim=True), 0)

    def groups(self, each: Tensor) -> tuple[Tensor, Tensor]:
        """Split values of UAVs (B A ...) into those of pursuers and those of evaders."""
        pursuer, evader = split_groups(self.spec, each).values()
        return pursuer, evader

    def cells(self, state: State) -> Int[Tensor, "B A 5"]:
        """Return the number of the cell to which each move leads, in ``state.blocked`` row by row."""
        x, y = (state.pos[:, :, None] + constant(MOVES, state.pos.device, state.pos.dtype)).long().unbind(-1)
        return (y + 1) * (self.side + 2) + x + 1

    def obstructed(self, state: State) -> Bool[Tensor, "B A 5"]:
        """Return which moves lead into an obstacle or the wall."""
        cells = self.cells(state)
        return state.blocked.flatten(1).gather(1, cells.flatten(1)).view_as(cells)


def chase(env: Pursuit, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Move every pursuer towards the free evader with the shortest way, and every evader to the safest cell.

    The safest cell has the longest way to the nearest pursuer. Pursuers do not agree on who goes where, and head for
    where evaders are; ``noise`` chooses among moves that are equally good.
    """
    way, (pursuers, evaders) = ways(env, state), env.groups(env.cells(state))
    of_pursuers, of_evaders = env.groups(way)
    length = after_moves(of_evaders, pursuers)  # B V P 5
    distance = length[..., 0].masked_fill(state.caught[..., None], torch.inf)
    nearest = distance.argmin(1)[:, None, :, None].expand(-1, 1, -1, length.shape[-1])
    good = torch.cat((-length.gather(1, nearest)[:, 0], after_moves(of_pursuers, evaders).amin(1)), 1)
    good = good.masked_fill(~env.legal(state), -torch.inf)
    best = good == good.amax(-1, keepdim=True)
    return sample_categorical(best.to(noise.dtype), noise)


def after_moves(way: Float[Tensor, "B I M"], cells: Int[Tensor, "B J 5"]) -> Float[Tensor, "B I J 5"]:
    """Return the length of the way from each UAV of one group to the cells that moves of the other group lead to."""
    return way.gather(2, cells.flatten(1)[:, None].expand(-1, way.shape[1], -1)).unflatten(2, cells.shape[1:])


def ways(env: Pursuit, state: State) -> Float[Tensor, "B A M"]:
    """Return the number of moves from each UAV to each cell, the wall included, numbered as by ``env.cells``.

    Walls, obstacles, and cells that are more than two sides away count as one move more than two sides.
    """
    size, steps = env.side + 2, 2 * env.side
    here = env.cells(state)[..., :1]
    way = state.pos.new_full((*here.shape[:2], size**2), steps + 1.0).scatter(2, here, 0.0).unflatten(2, (size, size))
    for _ in range(steps):
        around = way.roll(1, 2), way.roll(-1, 2), way.roll(1, 3), way.roll(-1, 3)
        nearest = torch.stack((way, *(each + 1 for each in around))).amin(0)
        way = nearest.masked_fill(state.blocked[:, None], steps + 1.0)
    return way.flatten(2)


ENVIRONMENTS.register("pursuit", Environment(Pursuit, learner="mappo", baselines={"chase": chase}))
