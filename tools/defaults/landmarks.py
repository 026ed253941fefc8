"""Agents with inertia cover landmarks: a continuous task in which all share one goal.

``python -m tools.defaults.landmarks check landmarks`` checks it; ``evaluate landmarks --policy fly_to_own`` flies the
plan.
"""

import math
from itertools import permutations
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

import uavlab as ul

AGENTS = 4
ORDERS = tuple(permutations(range(AGENTS)))  # the landmark of each agent
NEXT = tuple(tuple((i + k) % AGENTS for k in range(1, AGENTS)) for i in range(AGENTS))  # others, in turn
RESPONSE = 0.25  # s: time constant of the plan's approach


@ul.tensors
class State:
    """State of a batch of worlds."""

    pos: Float[Tensor, "B A 2"]  # units
    vel: Float[Tensor, "B A 2"]  # units/s
    landmark: Float[Tensor, "B A 2"]  # units
    step: Int[Tensor, " B"]


@ul.env("landmarks")
class Landmarks:
    """Four agents cover four landmarks, none of which belongs to an agent.

    An action is a force in x and y. Agents start at rest, and like landmarks anywhere in the square from -1 to 1, which
    they may leave. The reward of all is minus the sum of the distances from landmarks to their nearest agents (units);
    an agent near another one pays in addition. An agent observes its velocity and place, and the offsets to all
    landmarks and to the others.

    Attributes:
        force: Acceleration by a full action (units/s^2).
        drag: Share of the velocity that is lost per second (1/s).
        reach: Distance below which a landmark is covered (units).
        size: Distance below which two agents collide (units).
        collision_cost: Per step, for an agent that collides.
        horizon: Steps of an episode.
    """

    force: Annotated[float, Gt(0)] = 4.0
    drag: Annotated[float, Gt(0), Le(10)] = 2.0
    reach: Annotated[float, Gt(0)] = 0.1
    size: Annotated[float, Gt(0)] = 0.1
    collision_cost: Annotated[float, Gt(0)] = 1.0
    horizon: Annotated[int, Gt(0)] = 40
    dt: ClassVar[float] = 0.1
    metrics: ClassVar = (
        ul.Metric("covered", "last", bounds=(0.0, 1.0)),
        ul.Metric("collisions", "sum", better="low", bounds=(0.0, math.inf)),
    )
    score: ClassVar = {"covered": 1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        """Shapes, limits and noise."""
        return ul.EnvSpec(
            agents=AGENTS,
            obs=4 * AGENTS + 2,
            action=2,
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=4 * AGENTS,
            step_noise=0,
            groups=(0,) * AGENTS,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw places of agents, then of landmarks."""
        pos, landmark = (2 * noise - 1).view(-1, 2, AGENTS, 2).unbind(1)
        return State(pos, torch.zeros_like(pos), landmark, torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Change velocities by force and drag, then places by the new velocities."""
        vel = state.vel * (1 - self.drag * self.dt) + self.force * self.dt * action.clamp(-1, 1)
        return State(state.pos + self.dt * vel, vel, state.landmark, state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B A O"]:
        """Return velocity, place, and offsets to landmarks and others."""
        here = state.pos[:, :, None]
        landmarks, others = state.landmark[:, None] - here, self.others(state) - here
        return torch.cat((state.vel, state.pos, landmarks.flatten(2), others.flatten(2)), -1)

    def reward(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> Float[Tensor, "B A"]:
        """Return the reward of each agent, see the class."""
        far = self.gap(after).amin(1).sum(1, keepdim=True)
        return -far - self.collision_cost * self.collides(after).to(far.dtype)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return that no task has ended."""
        return torch.zeros_like(state.pos[..., 0], dtype=torch.bool)

    def measure(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return the share of covered landmarks, and the number of agents that collide."""
        covered = (self.gap(after).amin(1) < self.reach).to(after.pos.dtype)
        return {"covered": covered.mean(1), "collisions": self.collides(after).to(covered.dtype).sum(1)}

    def gap(self, state: State) -> Float[Tensor, "B A A"]:
        """Return the distance from each agent to each landmark."""
        return (state.pos[:, :, None] - state.landmark[:, None]).norm(dim=-1)

    def others(self, state: State) -> Float[Tensor, "B A A-1 2"]:
        """Return the places of the others, the one with the next number first."""
        return state.pos[:, ul.constant(NEXT, state.pos.device, torch.int64)]

    def collides(self, state: State) -> Bool[Tensor, "B A"]:
        """Return which agents are near another one."""
        return ((self.others(state) - state.pos[:, :, None]).norm(dim=-1) < self.size).any(-1)


@ul.baseline("landmarks")
def fly_to_own(env: Landmarks, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly to the landmarks of the shortest assignment, by PD control that makes up for drag."""
    orders = ul.constant(ORDERS, state.pos.device, torch.int64)
    length = env.gap(state)[:, torch.arange(AGENTS, device=orders.device), orders].sum(-1)
    target = state.landmark.gather(1, orders[length.argmin(1)][..., None].expand(-1, -1, 2))
    wanted = (target - state.pos) / RESPONSE**2 - 2 * state.vel / RESPONSE
    return ((wanted + env.drag * state.vel) / env.force).clamp(-1, 1)


if __name__ == "__main__":
    ul.main()
