"""Agents tow a load on ropes to a goal: a continuous task in which forces of all add up.

``python -m tools.defaults.tow check tow`` checks it; ``evaluate tow --policy pull_ahead`` flies the plan.
"""

from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

import uavlab as ul

AGENTS = 3
RESPONSE = 0.15  # s: time constant of the plan's approach
NEAR = 0.03  # units from the goal at which the plan slackens the ropes


@ul.tensors
class State:
    """State of a batch of worlds."""

    pos: Float[Tensor, "B A 2"]  # units
    vel: Float[Tensor, "B A 2"]  # units/s
    load: Float[Tensor, "B 2"]  # units
    load_vel: Float[Tensor, "B 2"]  # units/s
    goal: Float[Tensor, "B 2"]  # units
    step: Int[Tensor, " B"]


@ul.env("tow")
class Tow:
    """Three agents tow a load to a goal, each by an elastic rope that pulls but does not push.

    An action is a force in x and y. The load drags along the ground: one agent tows it slowly, three that pull the same
    way faster, and it soon stops where they slacken the ropes. Load and goal are anywhere in the square from -1 to 1;
    agents start at rest no farther from the load than a slack rope allows. All may leave the square, and agents fly
    past each other. The reward of all is minus the distance from the load to the
    goal (units). An agent observes its velocity, the offsets to the load and the others, the velocity of the load, and
    the offset from the load to the goal.

    Attributes:
        force: Force of a full action in one direction, of an agent with mass 1 (units/s^2).
        drag: Share of an agent's velocity that is lost per second (1/s).
        rope: Length of a slack rope (units).
        stiffness: Pull of a rope per unit beyond its length (1/s^2).
        mass: Mass of the load, in those of an agent.
        friction: Pull that keeps the load at one unit/s (1/s).
        reach: Distance from the goal below which the load is delivered (units).
        horizon: Steps of an episode.
    """

    force: Annotated[float, Gt(0)] = 3.0
    drag: Annotated[float, Gt(0), Le(10)] = 2.0
    rope: Annotated[float, Gt(0)] = 0.3
    stiffness: Annotated[float, Gt(0), Le(100)] = 30.0
    mass: Annotated[float, Gt(0)] = 2.0
    friction: Annotated[float, Gt(0)] = 9.0
    reach: Annotated[float, Gt(0)] = 0.1
    horizon: Annotated[int, Gt(0)] = 50
    dt: ClassVar[float] = 0.1
    metrics: ClassVar = (ul.Metric("delivered", "outcome"),)
    score: ClassVar = {"return": 1.0}

    @property
    def spec(self) -> ul.EnvSpec:
        """Shapes, limits and noise."""
        return ul.EnvSpec(
            agents=AGENTS,
            obs=2 * AGENTS + 6,
            action=2,
            horizon=self.horizon,
            dt=self.dt,
            initial_noise=2 * AGENTS + 4,
            step_noise=0,
            groups=(0,) * AGENTS,
        )

    def initial(self, noise: Float[Tensor, "B K"]) -> State:
        """Draw the places of load and goal, then of each agent, evenly from the disc that its rope allows."""
        load, goal = (2 * noise[:, :4] - 1).split(2, 1)
        far, turn = noise[:, 4:].view(-1, AGENTS, 2).unbind(-1)
        angle = 2 * torch.pi * turn
        offset = self.rope * far.sqrt()[..., None] * torch.stack((angle.cos(), angle.sin()), -1)
        rest, step = torch.zeros_like(load), torch.zeros_like(noise[:, 0], dtype=torch.int64)
        return State(load[:, None] + offset, torch.zeros_like(offset), load, rest, goal, step)

    def transition(self, state: State, action: Float[Tensor, "B A 2"], noise: Float[Tensor, "B 0"]) -> State:
        """Change velocities by forces, ropes, drag and friction, then places by the new velocities."""
        pull = self.pull(state)
        force = self.force * action.clamp(-1, 1) - self.drag * state.vel - pull
        vel = state.vel + self.dt * force
        load_vel = state.load_vel + self.dt / self.mass * (pull.sum(1) - self.friction * state.load_vel)
        load = state.load + self.dt * load_vel
        return State(state.pos + self.dt * vel, vel, load, load_vel, state.goal, state.step + 1)

    def observe(self, state: State) -> Float[Tensor, "B A O"]:
        """Return what agents observe, see the class; the agent with the next number is the first of the others."""
        turn = torch.arange(AGENTS, device=state.pos.device)
        others = state.pos[:, (turn[:, None] + turn[1:]) % AGENTS] - state.pos[:, :, None]
        shared = torch.cat((state.load_vel, state.goal - state.load), -1)[:, None].expand(-1, AGENTS, -1)
        return torch.cat((state.vel, state.load[:, None] - state.pos, others.flatten(2), shared), -1)

    def reward(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> Float[Tensor, "B A"]:
        """Return minus the distance from the load to the goal, for every agent."""
        return -self.gap(after)[:, None].expand(-1, AGENTS)

    def terminated(self, state: State) -> Bool[Tensor, "B A"]:
        """Return that no task has ended."""
        return torch.zeros_like(state.pos[..., 0], dtype=torch.bool)

    def measure(self, state: State, action: Float[Tensor, "B A 2"], after: State) -> dict[str, Float[Tensor, " B"]]:
        """Return whether the load is at the goal."""
        return {"delivered": (self.gap(after) < self.reach).to(after.pos.dtype)}

    def gap(self, state: State) -> Float[Tensor, " B"]:
        """Return the distance from the load to the goal."""
        return (state.goal - state.load).norm(dim=-1)

    def pull(self, state: State) -> Float[Tensor, "B A 2"]:
        """Return the force of each rope on the load, zero where the rope is slack."""
        offset = state.pos - state.load[:, None]
        stretch = (offset.norm(dim=-1, keepdim=True) - self.rope).clamp_min(0)
        return self.stiffness * stretch * normalize(offset, dim=-1)


@ul.baseline("tow")
def pull_ahead(env: Tow, state: State, noise: Float[Tensor, "B A"]) -> Float[Tensor, "B A 2"]:
    """Fly to the end of the rope in the direction of the goal, and pull until the load slides there by itself."""
    left = state.goal - state.load - state.load_vel * env.mass / env.friction
    far = left.norm(dim=-1, keepdim=True)
    stretch = (far > NEAR) * env.force / env.stiffness
    target = state.load + (env.rope + stretch) * normalize(left, dim=-1)
    wanted = (target[:, None] - state.pos) / RESPONSE**2 + 2 * (state.load_vel[:, None] - state.vel) / RESPONSE
    return ((wanted + env.drag * state.vel + env.pull(state)) / env.force).clamp(-1, 1)


if __name__ == "__main__":
    ul.main()
