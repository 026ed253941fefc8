"""Actors and critics with memory: teams on vectors, sequences of steps to learn from, and the policy that acts.

The memory of an agent is a row of M numbers for its actor and one for its critic, or one for the critic that a group
shares; networks are rows of one matrix, as without memory, and all agents, worlds and runs take a step at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.types import ChoiceObs, Steps, features_of, tensors
from uavlab.learners.ppo.networks import TeamOnVectors
from uavlab.nets.assignment import per_agent
from uavlab.nets.sequences import StackedGRU


@tensors
class Memory:
    """What actors and critics remember before the first step of a batch."""

    actor: Float[Tensor, "R W A M"]
    critic: Float[Tensor, "R W C M"]


@tensors
class Sequences:
    """Observations of T steps of worlds, with the memory before the first."""

    obs: Any  # Float[Tensor, "R W T A O"] | ChoiceObs
    fresh: Bool[Tensor, "R W T"]  # the world was replaced before the step
    memory: Memory


def sequences_of(data: Steps, memory: Memory) -> Sequences:
    """Return the observations of steps with the axes R W T; a world is replaced where it ended for all agents."""
    ended = data.ended.all(-1)
    fresh = torch.cat((torch.zeros_like(ended[..., :1]), ended[..., :-1]), -1)
    return Sequences(obs=data.obs, fresh=fresh, memory=memory)


@dataclass(frozen=True)
class RecurrentTeam(TeamOnVectors):
    """Networks with memory of a team that observes vectors.

    Attributes:
        memory: Units of the memory of an actor, and of a critic (M).
    """

    memory: int

    @cached_property
    def actor_net(self) -> StackedGRU:
        """The network of an actor."""
        return StackedGRU(self.obs, self.hidden, self.memory, self.outputs)

    @cached_property
    def critic_net(self) -> StackedGRU:
        """The network of a critic."""
        return StackedGRU(self.seen, self.hidden, self.memory, 1)

    def act(self, theta: Float[Tensor, "G P"], steps: Sequences) -> Float[Tensor, "R N A E"]:
        """Evaluate the actor of each agent."""
        seen = features_of(steps.obs)
        out, _ = self._unroll(self.actor_net, theta, self.networks, seen, steps.memory.actor, steps.fresh)
        return out.flatten(1, 2)

    def value(self, theta: Float[Tensor, "G Q"], steps: Sequences) -> Float[Tensor, "R N A"]:
        """Evaluate the critic of each agent."""
        seen = self.critic_inputs(steps.obs)
        out, _ = self._unroll(self.critic_net, theta, self.evaluated, seen, steps.memory.critic, steps.fresh)
        return self.by_agent(out[..., 0].flatten(1, 2))

    def values(
        self, theta: Float[Tensor, "G Q"], steps: Sequences, next_obs: Any, ended: Bool[Tensor, "R W T A"]
    ) -> tuple[Float[Tensor, "R N A"], Float[Tensor, "R N A"], Float[Tensor, "R W C M"]]:
        """Return the values before and after each step, and what critics remember after the last one.

        The value after a step has the memory of that step, also where its world is replaced.
        """
        seen, ahead = (self.critic_inputs(obs) for obs in (steps.obs, next_obs))
        out, states = self._unroll(self.critic_net, theta, self.evaluated, seen, steps.memory.critic, steps.fresh)
        each = states.flatten(1, 2), None  # every step is a row, and takes one more
        later, _ = self._unroll(self.critic_net, theta, self.evaluated, ahead.flatten(1, 2)[:, :, None], *each)
        last = states[:, :, -1].masked_fill(ended[:, :, -1].all(-1)[..., None, None], 0.0)
        return self.by_agent(out[..., 0].flatten(1, 2)), self.by_agent(later[:, :, 0, :, 0]), last

    def act_once(
        self, theta: Float[Tensor, "G P"], obs: Tensor | ChoiceObs, memory: Float[Tensor, "R N A M"], in_turn: bool
    ) -> tuple[Float[Tensor, "R N A E"], Float[Tensor, "R N A M"]]:
        """Evaluate the actors for one step, all at once or one agent after the other; return their memory after it."""
        seen, size = features_of(obs)[:, :, None], 1 if in_turn else len(self.networks)
        parts = [
            self._unroll(self.actor_net, theta, self.networks[i : i + size], seen[..., i : i + size, :], own, None)
            for i, own in zip(range(0, len(self.networks), size), memory.split(size, 2), strict=True)
        ]
        out, after = (torch.cat(each, 3) for each in zip(*parts, strict=True))
        return out[:, :, 0], after[:, :, 0]

    def _unroll(
        self,
        net: StackedGRU,
        theta: Tensor,
        networks: tuple[int, ...],
        x: Float[Tensor, "R N T A I"],
        memory: Float[Tensor, "R N A M"],
        fresh: Bool[Tensor, "R N T"] | None,
    ) -> tuple[Float[Tensor, "R N T A out"], Float[Tensor, "R N T A M"]]:
        runs, rows, steps, agents, _ = x.shape
        weights = per_agent(theta, runs, networks).flatten(0, 1)
        x = x.permute(0, 3, 2, 1, 4).reshape(runs * agents, steps, rows, -1)
        if fresh is not None:
            fresh = fresh.transpose(1, 2)[:, None].expand(-1, agents, -1, -1).flatten(0, 1)
        out, states = net(weights, x, memory.transpose(1, 2).flatten(0, 1), fresh)
        out, states = (each.unflatten(0, (runs, agents)).permute(0, 3, 2, 1, 4) for each in (out, states))
        return out, states


@dataclass(frozen=True)
class TeamMemoryPolicy:
    """The policy of a team with memory.

    Attributes:
        function: (observations, noise, memory) -> actions and memory.
        theta: Parameters of its networks.
        agents: Agents (A).
        units: Units of an agent's memory (M).
    """

    function: Callable[[Any, Tensor | None, Tensor], tuple[Tensor, Tensor]]
    theta: Tensor
    agents: int
    units: int

    def initial(self, runs: int, worlds: int) -> Float[Tensor, "R W A M"]:
        """Return the memory at the start of an episode."""
        return self.theta.new_zeros(runs, worlds, self.agents, self.units)

    @torch.no_grad()
    def __call__(
        self, obs: Any, noise: Tensor | None, memory: Float[Tensor, "R W A M"]
    ) -> tuple[Tensor, Float[Tensor, "R W A M"]]:
        """Return the actions of all agents, and their memory after them."""
        return self.function(obs, noise, memory)
