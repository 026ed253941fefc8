"""Fire engines guard the houses of a town together: moves with masks, and fires that break out by chance.

``python -m tools.defaults.brigade check brigade`` checks it; ``evaluate brigade --policy nearest_fire`` runs the plan.
"""

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

import uavlab as ul

SIDE = 8  # cells
AGENTS = 4
STEPS = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (0, 0))  # x and y: stay, north, east, south, west, spray
SPRAY = len(STEPS) - 1
DOWN = 4  # level of a house that has burned down; fires have the levels below, and 0 is no fire


@ul.tensors
class State:
    """State of a batch of worlds."""

    pos: Float[Tensor, "B A 2"]  # cells, whole numbers from 0: x to the east and y to the north
    house: Float[Tensor, "B H 2"]  # cells
    level: Int[Tensor, "B H"]  # from 0 to DOWN
    step: Int[Tensor, " B"]


@ul.env("brigade")
class Brigade:
    """Four fire engines put out fires in the houses of a town, which break out at random and grow.

    Engines and houses start in cells of their own; an engine drives anywhere in the town, also where others are. One
    that sprays lowers the fires of all houses in its reach by a level. It may spray where it reaches a fire, and may
    not leave the town; a move that is not legal has no effect. Then fires that are left grow by chance, and houses
    that were safe catch fire by chance. A house that has burned down stays so, and the task ends when all have. Every
    agent is rewarded alike. An agent observes its place, which moves are legal, the offsets to the others, and of each
    house the offset, the level of its fire as a share of DOWN, and whether it stands; distances are in sides.

    Attributes:
        houses: Houses per world.
        fires: Houses that burn at the start, at level 1.
        outbreak: Probability per step that a safe house catches fire.
        growth: Probability per step that a fire grows by a level.
        reach: Cells that an engine can spray, north or south plus east or west.
        loss_cost: For every agent and each house that burns down.
        fire_cost: For every agent and each house that burns, per step.
        horizon: Steps after which an episode is truncated.
    """

    houses: Annotated[int, Ge(1), Le(SIDE**2 - AGENTS)] = 10
    fires: Annotated[int, Ge(0)] = 3
    outbreak: Annotated[float, Ge(0), Le(1)] = 0.04
    growth: Annotated[float, Ge(0), Le(1)] = 0.25
    reach: Annotated[int, Ge(0)] = 1
    loss_cost: Annotated[float, Gt(0)] = 1.0
    fire_cost: Annotated[float, Ge(0)] = 0.02
    horizon: Annotated[int, Gt(0)] = 40
    metrics: ClassVar = (ul.Metric("saved", "last", bounds=(0.0, 1.0)),)
    score: ClassVar = {"saved": 1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        """Shapes, limits and noise."""
        return ul.EnvSpec(
            agents=AGENTS,
            obs=2 + len(STEPS) + 2 * (AGENTS - 1) + 4 * self.houses,
            action=1,
            choices=len(STEPS),
            horizon=self.horizon,
            dt=1.0,
            initial_noise=SIDE**2,
            step_noise=self.houses,
            groups=(0,) * AGENTS,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw worlds from a number per cell: engines start in the cells of the lowest, then burning houses, others."""
        order = noise.argsort(dim=1, stable=True)[:, : AGENTS + self.houses]
        cells = torch.stack((order % SIDE, order // SIDE), -1).to(noise.dtype)
        pos, house = cells.split((AGENTS, self.houses), 1)
        level = (torch.arange(self.houses, device=noise.device) < self.fires).long().expand(len(noise), -1)
        return State(pos, house, level.clone(), torch.zeros_like(order[:, 0]))

    def transition(self, state: State, action: Int[Tensor, "B A"], noise: Float[Tensor, "B H"]) -> State:
        """Drive and spray at once, then let fires grow and break out."""
        step = ul.constant(STEPS, action.device, torch.int64)[action]
        pos = state.pos + step * self.legal(state).gather(2, action[..., None])
        sprayed = (self.far(state)[:, :, 0] <= self.reach) & (action == SPRAY)[..., None]
        wet = (state.level - sprayed.sum(1)).clamp_min(0)
        chance = torch.where(state.level > 0, self.growth * (wet > 0), self.outbreak)
        level = torch.where(state.level < DOWN, wet + (noise < chance), DOWN)
        return State(pos, state.house, level, state.step + 1)

    def observe(self, state: State) -> ul.ChoiceObs:
        """Return observations and legal moves, see the class; the agent with the next number is the first other."""
        legal, turn = self.legal(state), torch.arange(AGENTS, device=state.pos.device)
        others = state.pos[:, (turn[:, None] + turn[1:]) % AGENTS] - state.pos[:, :, None]
        offset = (state.house[:, None] - state.pos[:, :, None]) / SIDE
        fire = torch.stack((state.level * self.burning(state) / DOWN, state.level < DOWN), -1)
        houses = torch.cat((offset, fire[:, None].expand(-1, AGENTS, -1, -1)), -1)
        parts = (state.pos / SIDE, legal, others.flatten(2) / SIDE, houses.flatten(2))
        return ul.ChoiceObs(torch.cat(parts, -1), legal)

    def reward(self, state: State, action: Int[Tensor, "B A"], after: State) -> Float[Tensor, "B A"]:
        """Return the reward of each agent; 0 after the end."""
        lost = ((after.level == DOWN) & (state.level < DOWN)).sum(1, keepdim=True)
        cost = self.loss_cost * lost + self.fire_cost * self.burning(after).sum(1, keepdim=True)
        return -cost.to(after.pos.dtype).expand(-1, AGENTS)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return for every agent whether all houses have burned down."""
        return (state.level == DOWN).all(1, keepdim=True).expand(-1, AGENTS)

    def measure(self, state: State, action: Int[Tensor, "B A"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of houses that stand."""
        return {"saved": (after.level < DOWN).to(after.pos.dtype).mean(1)}

    def burning(self, state: State) -> Bool[Tensor, "B H"]:
        """Return which houses burn."""
        return (state.level > 0) & (state.level < DOWN)

    def far(self, state: State) -> Float[Tensor, "B A E H"]:
        """Return how many cells each move leaves to each house, north or south plus east or west."""
        place = state.pos[:, :, None] + ul.constant(STEPS, state.pos.device, torch.int64)
        return (state.house[:, None, None] - place[:, :, :, None]).abs().sum(-1)

    def legal(self, state: State) -> Bool[Tensor, "B A E"]:
        """Return which moves stay in the town, and whether there is a fire to spray."""
        place = state.pos[:, :, None] + ul.constant(STEPS[:SPRAY], state.pos.device, torch.int64)
        inside = ((place >= 0) & (place < SIDE)).all(-1)
        fire = (self.far(state)[:, :, 0] <= self.reach) & self.burning(state)[:, None]
        return torch.cat((inside, fire.any(2, keepdim=True)), 2)


@ul.baseline("brigade")
def nearest_fire(env: Brigade, state: State, noise: Float[Tensor, "B A"]) -> Int[Tensor, "B A"]:
    """Spray what is in reach; else drive to the nearest fire of those to which no other engine is nearer, or of all."""
    far, legal, burning = env.far(state), env.legal(state), env.burning(state)
    here = far[:, :, 0].masked_fill(~burning[:, None], torch.inf)
    own = here.argmin(1, keepdim=True) == torch.arange(AGENTS, device=here.device)[:, None]
    goal = torch.where(own, here, here + 2 * SIDE).argmin(2)  # no fire of its own is farther than two sides
    after = far.gather(3, goal[:, :, None, None].expand(-1, -1, len(STEPS), 1))[..., 0].masked_fill(~legal, torch.inf)
    drive = torch.where(burning.any(1, keepdim=True), after.argmin(2), 0)
    return torch.where(legal[..., SPRAY], SPRAY, drive)


if __name__ == "__main__":
    ul.main()
