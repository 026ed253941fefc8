"""Actors and critics of a team for PPO: on vectors a network per agent or group, on maps one for all agents.

With memory, an agent has a row of M numbers for its actor and one for its critic, or one for the critic that a group
shares; networks are rows of one matrix, as without memory, and all agents, worlds and runs take a step at once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, Entities, EnvSpec, MapObs, Scale, Steps, features_of, tensors
from uavlab.nets.attention import StackedAttention
from uavlab.nets.cnn import StackedCNN
from uavlab.nets.mlp import StackedMLP, of_agents, per_agent
from uavlab.nets.sequences import StackedGRU
from uavlab.ops.belief_maps import centre_maps


def _create_networks(team: Any) -> None:
    """Create the networks of a team, because the compiler of torch 2.11 cannot create them in what it compiles."""
    for name in ("actor_net", "critic_net"):
        getattr(team, name)


@dataclass(frozen=True)
class TeamOnVectors:
    """Base of the networks of a team that observes vectors, and acts by Gaussians or chooses moves."""

    obs: int  # features (O)
    outputs: int  # of an actor (E): means and log standard deviations, or logits of moves
    hidden: int
    networks: tuple[int, ...]  # index of each agent's actor
    critics: tuple[int, ...]  # index of each agent's critic
    central: bool  # whether critics observe all agents; otherwise one agent

    def __post_init__(self) -> None:
        _create_networks(self)

    @property
    def evaluated(self) -> tuple[int, ...]:
        """Index of the critic of each evaluation: each critic of the team once, one of single agents for each agent."""
        return tuple(range(len(set(self.critics)))) if self.central else self.critics

    @cached_property
    def actor_net(self) -> Any:
        raise NotImplementedError

    @cached_property
    def critic_net(self) -> Any:
        raise NotImplementedError

    @property
    def seen(self) -> int:
        return self.obs * (len(self.networks) if self.central else 1)

    def initial(self, inputs: Scale, rng: Streams) -> tuple[Float[Tensor, "R K P"], Float[Tensor, "R C Q"]]:
        """Draw the initial actors and critics of each run; ``inputs`` describes observations (R A O)."""
        actors, critics = len(set(self.networks)), len(set(self.critics))
        first = [self.networks.index(network) for network in range(actors)]  # the first agent of each network
        own = seen = inputs.center[:, first], inputs.spread[:, first]
        if self.central:
            center, spread = (each.flatten(1)[:, None] for each in (inputs.center, inputs.spread))
            seen = center.expand(-1, critics, -1), spread.expand(-1, critics, -1)
        return (
            self.actor_net.initial_for(rng.uniform("actor", actors, self.actor_net.count), *own),
            self.critic_net.initial_for(rng.uniform("critic", critics, self.critic_net.count), *seen),
        )

    def critic_inputs(self, obs: Tensor | ChoiceObs) -> Float[Tensor, "*lead C I"]:
        seen = features_of(obs)
        if not self.central:
            return seen
        return seen.flatten(-2)[..., None, :].expand(*seen.shape[:-2], len(self.evaluated), -1)

    def by_agent(self, values: Float[Tensor, "R N C"]) -> Float[Tensor, "R N A"]:
        if self.critics == self.evaluated:
            return values
        return of_agents(values.transpose(1, 2), self.critics).transpose(1, 2)


@dataclass(frozen=True)
class VectorTeam(TeamOnVectors):
    """Networks without memory of a team that observes vectors."""

    @cached_property
    def actor_net(self) -> StackedMLP:
        return StackedMLP(self.obs, self.hidden, self.outputs)

    @cached_property
    def critic_net(self) -> StackedMLP:
        return StackedMLP(self.seen, self.hidden, 1)

    def act(self, theta: Float[Tensor, "G P"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A E"]:
        return self._evaluate(self.actor_net, theta, self.networks, features_of(obs))

    def act_in_turn(self, theta: Float[Tensor, "G P"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A E"]:
        agents = zip(features_of(obs).split(1, 2), self.networks, strict=True)
        return torch.cat([self._evaluate(self.actor_net, theta, (network,), own) for own, network in agents], 2)

    def value(self, theta: Float[Tensor, "G Q"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A"]:
        return self.by_agent(self._evaluate(self.critic_net, theta, self.evaluated, self.critic_inputs(obs))[..., 0])

    def _evaluate(self, net: StackedMLP, theta: Tensor, networks: tuple[int, ...], x: Tensor) -> Tensor:
        runs, rows, agents, _ = x.shape
        weights = per_agent(theta, runs, networks).flatten(0, 1)
        out = net(weights, x.transpose(1, 2).reshape(runs * agents, rows, -1))
        return out.view(runs, agents, rows, -1).transpose(1, 2)


@dataclass(frozen=True)
class EntityTeam(VectorTeam):
    """Networks of agents that observe entities and choose pairs of them."""

    entities: Entities
    heads: int
    layers: int
    positions: bool = True  # whether they see how entities lie from each other
    recompute: float = math.inf  # see ``StackedAttention``

    @cached_property
    def actor_net(self) -> StackedAttention:  # type: ignore[override]
        return self._net(pairs=True)

    @cached_property
    def critic_net(self) -> StackedAttention:  # type: ignore[override]
        return self._net(pairs=False)

    def _net(self, pairs: bool) -> StackedAttention:
        return StackedAttention(
            self.entities, self.hidden, self.heads, self.layers, pairs, self.positions, self.recompute
        )


@dataclass(frozen=True)
class MapTeam:
    """Networks of a team that observes maps, alone or beside features; all agents share one actor and one critic."""

    spec: EnvSpec
    width: int  # channels of each convolution
    kernels: tuple[int, ...]  # side of each convolution's kernel (cells)
    hidden: int  # width of the layer after the convolutions
    central: bool  # whether the critic also observes the team's maps, and the features of all agents

    def __post_init__(self) -> None:
        _create_networks(self)

    @property
    def networks(self) -> tuple[int, ...]:
        return (0,) * self.spec.agents

    @property
    def critics(self) -> tuple[int, ...]:
        return self.networks

    @cached_property
    def actor_net(self) -> StackedCNN:
        """The network of the actor; its outputs are logits of moves, or means and log standard deviations."""
        return self._net(self.spec.obs, self.spec.choices or 2 * self.spec.action, self.spec.features)

    @cached_property
    def critic_net(self) -> StackedCNN:
        spec, agents = self.spec, self.spec.agents if self.central else 1
        return self._net(spec.obs + (spec.team if self.central else 0), 1, agents * spec.features)

    def initial(self, inputs: Scale | None, rng: Streams) -> tuple[Float[Tensor, "R 1 P"], Float[Tensor, "R 1 Q"]]:
        """Draw the initial actor and critic of each run; ``inputs`` describes features (R A F), if agents have any."""
        actor, critic = (
            rng.uniform(name, net.count) for name, net in (("actor", self.actor_net), ("critic", self.critic_net))
        )
        if inputs is None:
            return self.actor_net.initial(actor)[:, None], self.critic_net.initial(critic)[:, None]
        parts = inputs.center, inputs.spread
        own = [each[:, 0] for each in parts]  # of the first agent
        seen = [each.flatten(1) for each in parts] if self.central else own
        return (
            self.actor_net.initial_for(actor, *own)[:, None],
            self.critic_net.initial_for(critic, *seen)[:, None],
        )

    def act(self, theta: Float[Tensor, "R P"], obs: MapObs) -> Float[Tensor, "R N A E"]:
        return self._evaluate(self.actor_net, theta, obs.maps, obs.features)

    def act_in_turn(self, theta: Float[Tensor, "R P"], obs: MapObs) -> Float[Tensor, "R N A E"]:
        maps = obs.maps.unbind(2)
        features = len(maps) * (None,) if obs.features is None else obs.features.unbind(2)
        return torch.stack([self.actor_net(theta, *own) for own in zip(maps, features, strict=True)], 2)

    def value(self, theta: Float[Tensor, "R Q"], obs: MapObs) -> Float[Tensor, "R N A"]:
        maps, features = obs.maps, obs.features
        if self.central and obs.team is not None:
            team = obs.team[:, :, None].expand(-1, -1, maps.shape[2], -1, -1, -1)
            if self.spec.centred and obs.place is not None:
                team = centre_maps(team, obs.place)
            maps = torch.cat((maps, team), 3)
        if self.central and features is not None:
            features = own_first(features)
        return self._evaluate(self.critic_net, theta, maps, features)[..., 0]

    def _net(self, channels: int, outputs: int, features: int) -> StackedCNN:
        return StackedCNN(channels, self.spec.side, self.width, self.kernels, self.hidden, outputs, features)

    def _evaluate(self, net: StackedCNN, theta: Tensor, maps: Tensor, features: Tensor | None) -> Tensor:
        flat = None if features is None else features.flatten(1, 2)
        return net(theta, maps.flatten(1, 2), flat).unflatten(1, maps.shape[1:3])


def own_first(features: Float[Tensor, "R N A F"]) -> Float[Tensor, "R N A A*F"]:
    """Return the features of all agents for each: its own, then those of the agents behind it, in a circle."""
    return torch.stack([features.roll(-agent, 2) for agent in range(features.shape[2])], 2).flatten(3)


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
    """Networks with memory of a team that observes vectors."""

    memory: int  # units of an actor, and of a critic (M)

    @cached_property
    def actor_net(self) -> StackedGRU:
        return StackedGRU(self.obs, self.hidden, self.memory, self.outputs)

    @cached_property
    def critic_net(self) -> StackedGRU:
        return StackedGRU(self.seen, self.hidden, self.memory, 1)

    def act(self, theta: Float[Tensor, "G P"], steps: Sequences) -> Float[Tensor, "R N A E"]:
        seen = features_of(steps.obs)
        out, _ = self._unroll(self.actor_net, theta, self.networks, seen, steps.memory.actor, steps.fresh)
        return out.flatten(1, 2)

    def value(self, theta: Float[Tensor, "G Q"], steps: Sequences) -> Float[Tensor, "R N A"]:
        seen = self.critic_inputs(steps.obs)
        out, _ = self._unroll(self.critic_net, theta, self.evaluated, seen, steps.memory.critic, steps.fresh)
        return self.by_agent(out[..., 0].flatten(1, 2))

    def values(
        self, theta: Float[Tensor, "G Q"], steps: Sequences, next_obs: Any, ended: Bool[Tensor, "R W T A"]
    ) -> tuple[Float[Tensor, "R N A"], Float[Tensor, "R N A"], Float[Tensor, "R W C M"]]:
        """Return values before and after each step, also where a world is replaced, and critics' memory at the end."""
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
    """The policy of a team with memory."""

    function: Callable[[Any, Tensor | None, Tensor], tuple[Tensor, Tensor]]
    theta: Tensor
    agents: int
    units: int  # of an agent's memory (M)

    def initial(self, runs: int, worlds: int) -> Float[Tensor, "R W A M"]:
        return self.theta.new_zeros(runs, worlds, self.agents, self.units)

    @torch.no_grad()
    def __call__(
        self, obs: Any, noise: Tensor | None, memory: Float[Tensor, "R W A M"]
    ) -> tuple[Tensor, Float[Tensor, "R W A M"]]:
        return self.function(obs, noise, memory)
