"""Actors and critics of a team for PPO: on vectors a network per agent or group, on maps one for all agents."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, EnvSpec, MapObs, Scale, features_of
from uavlab.learners.masac.networks import of_agents, per_agent
from uavlab.nets.cnn import StackedCNN
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.belief_maps import centre_maps


@dataclass(frozen=True)
class TeamOnVectors:
    """Base of the networks of a team that observes vectors, and acts by Gaussians or chooses moves.

    Attributes:
        obs: Observation features (O).
        outputs: Outputs of an actor (E): means and log standard deviations, or logits of moves.
        hidden: Width of the hidden layers.
        networks: Index of each agent's actor.
        critics: Index of each agent's critic.
        central: Whether critics observe all agents; otherwise one agent.
    """

    obs: int
    outputs: int
    hidden: int
    networks: tuple[int, ...]
    critics: tuple[int, ...]
    central: bool

    @property
    def evaluated(self) -> tuple[int, ...]:
        """Index of the critic of each evaluation: each critic of the team once, one of single agents for each agent."""
        return tuple(range(len(set(self.critics)))) if self.central else self.critics

    @property
    def actor_net(self) -> Any:
        """The network of an actor."""
        raise NotImplementedError

    @property
    def critic_net(self) -> Any:
        """The network of a critic."""
        raise NotImplementedError

    @property
    def seen(self) -> int:
        """Input features of a critic."""
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
        """Return what each evaluated critic observes."""
        seen = features_of(obs)
        if not self.central:
            return seen
        return seen.flatten(-2)[..., None, :].expand(*seen.shape[:-2], len(self.evaluated), -1)

    def by_agent(self, values: Float[Tensor, "R N C"]) -> Float[Tensor, "R N A"]:
        """Return the value of each agent from those of the evaluated critics."""
        if self.critics == self.evaluated:
            return values
        return of_agents(values.transpose(1, 2), self.critics).transpose(1, 2)


@dataclass(frozen=True)
class VectorTeam(TeamOnVectors):
    """Networks without memory of a team that observes vectors."""

    @property
    def actor_net(self) -> StackedMLP:
        """The network of an actor."""
        return StackedMLP(self.obs, self.hidden, self.outputs)

    @property
    def critic_net(self) -> StackedMLP:
        """The network of a critic."""
        return StackedMLP(self.seen, self.hidden, 1)

    def act(self, theta: Float[Tensor, "G P"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A E"]:
        """Evaluate the actor of each agent."""
        return self._evaluate(self.actor_net, theta, self.networks, features_of(obs))

    def act_in_turn(self, theta: Float[Tensor, "G P"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A E"]:
        """Evaluate the actor of one agent after the other."""
        agents = zip(features_of(obs).split(1, 2), self.networks, strict=True)
        return torch.cat([self._evaluate(self.actor_net, theta, (network,), own) for own, network in agents], 2)

    def value(self, theta: Float[Tensor, "G Q"], obs: Tensor | ChoiceObs) -> Float[Tensor, "R N A"]:
        """Evaluate the critic of each agent."""
        return self.by_agent(self._evaluate(self.critic_net, theta, self.evaluated, self.critic_inputs(obs))[..., 0])

    def _evaluate(self, net: StackedMLP, theta: Tensor, networks: tuple[int, ...], x: Tensor) -> Tensor:
        runs, rows, agents, _ = x.shape
        weights = per_agent(theta, runs, networks).flatten(0, 1)
        out = net(weights, x.transpose(1, 2).reshape(runs * agents, rows, -1))
        return out.view(runs, agents, rows, -1).transpose(1, 2)


@dataclass(frozen=True)
class MapTeam:
    """Networks of a team that observes maps and chooses moves; all agents share one actor and one critic.

    Attributes:
        spec: Maps and moves.
        width: Channels of each convolution.
        kernels: Side of each convolution's kernel (cells).
        hidden: Width of the hidden layer after the convolutions.
        central: Whether the critic also observes the team's maps.
    """

    spec: EnvSpec
    width: int
    kernels: tuple[int, ...]
    hidden: int
    central: bool

    @property
    def networks(self) -> tuple[int, ...]:
        """Index of each agent's actor."""
        return (0,) * self.spec.agents

    @property
    def critics(self) -> tuple[int, ...]:
        """Index of each agent's critic."""
        return self.networks

    @property
    def actor_net(self) -> StackedCNN:
        """The network of the actor, whose outputs are logits of moves."""
        spec = self.spec
        return StackedCNN(spec.obs, spec.side, self.width, self.kernels, self.hidden, spec.choices)

    @property
    def critic_net(self) -> StackedCNN:
        """The network of the critic."""
        channels = self.spec.obs + (self.spec.team if self.central else 0)
        return StackedCNN(channels, self.spec.side, self.width, self.kernels, self.hidden, 1)

    def initial(self, inputs: Any, rng: Streams) -> tuple[Float[Tensor, "R 1 P"], Float[Tensor, "R 1 Q"]]:
        """Draw the initial actor and critic of each run."""
        nets = {"actor": self.actor_net, "critic": self.critic_net}
        actor, critic = (net.initial(rng.uniform(name, net.count))[:, None] for name, net in nets.items())
        return actor, critic

    def act(self, theta: Float[Tensor, "R P"], obs: MapObs) -> Float[Tensor, "R N A E"]:
        """Evaluate the actor for each agent."""
        return self.actor_net(theta, obs.maps.flatten(1, 2)).view(*obs.place.shape, -1)

    def act_in_turn(self, theta: Float[Tensor, "R P"], obs: MapObs) -> Float[Tensor, "R N A E"]:
        """Evaluate the actor for one agent after the other."""
        return torch.stack([self.actor_net(theta, maps) for maps in obs.maps.unbind(2)], 2)

    def value(self, theta: Float[Tensor, "R Q"], obs: MapObs) -> Float[Tensor, "R N A"]:
        """Evaluate the critic for each agent."""
        maps = obs.maps
        if self.central:
            team = obs.team[:, :, None].expand(-1, -1, maps.shape[2], -1, -1, -1)
            maps = torch.cat((maps, centre_maps(team, obs.place) if self.spec.centred else team), 3)
        return self.critic_net(theta, maps.flatten(1, 2)).view(obs.place.shape)
