"""Networks of a team: their assignment to agents, initial parameters, and the forms in which a learner holds them."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale
from uavlab.nets.mlp import StackedMLP

Theta = Any
"""All networks of a kind: one matrix (G P), a list of stacked tensors by layer (G ...), or a list of tensors each."""


def actor_net(spec: EnvSpec, hidden: int) -> StackedMLP:
    """Return an actor without parameters; its outputs are means and log standard deviations, or logits of moves."""
    return StackedMLP(spec.obs, hidden, spec.choices or 2 * spec.action)


def critic_net(spec: EnvSpec, hidden: int, critic: str) -> StackedMLP:
    """Return a critic without parameters, of all observations and actions, or with ``own`` of one agent's.

    Its output is the value of an action, or of each own move, where moves of others are one-hot vectors.
    """
    if critic == "own":
        return StackedMLP(spec.obs + (0 if spec.choices else spec.action), hidden, spec.choices or 1)
    return StackedMLP(spec.agents * (spec.obs + (spec.choices or spec.action)), hidden, spec.choices or 1)


def assign_networks(trained: EnvSpec, team: EnvSpec, share: bool) -> tuple[int, ...]:
    """Return the index of each agent's network: that of its group if networks are shared, else its own.

    In a team of another size without shared networks, agents use the network of the first agent of their group.

    Raises:
        ConfigError: An agent has no network, or observations or actions differ.
    """
    tasks = [(spec.obs, spec.action, spec.choices) for spec in (trained, team)]
    if tasks[0] != tasks[1] or not set(team.groups) <= set(trained.groups):
        text = ["{} observations, {} actions and {} moves".format(*task) for task in tasks]
        raise ConfigError(
            f"policy: a team of groups {team.groups} with {text[1]} cannot fly networks of groups {trained.groups} "
            f"with {text[0]}; expected agents of trained groups that see and do the same."
        )
    if not share and team.agents == trained.agents:
        return tuple(range(team.agents))
    rows = sorted(set(trained.groups)) if share else list(trained.groups)
    return tuple(rows.index(group) for group in team.groups)


def assign_critics(spec: EnvSpec, critic: str) -> tuple[int, ...]:
    """Return the index of each agent's pair of critics: that of its group if critics are ``shared``, else its own.

    Raises:
        ConfigError: Critics are shared by agents that choose moves.
    """
    if critic == "shared" and spec.choices:
        raise ConfigError(
            "critic: got shared; a critic of moves has a value for each own move, given the moves of the others, so it "
            "must be evaluated for each agent; expected critic=central or critic=own where agents choose moves."
        )
    return assign_networks(spec, spec, critic == "shared")


def initial_parameters(
    actor: StackedMLP,
    critic: StackedMLP,
    networks: tuple[int, ...],
    pairs: int,
    inputs: Scale,
    rng: Streams,
    central: bool,
) -> tuple[Float[Tensor, "R K P"], Float[Tensor, "R C 2 Q"]]:
    """Draw the initial actors (one per network) and pairs of critics of each run."""
    first = [networks.index(network) for network in sorted(set(networks))]  # the first agent of each network
    actors = actor.initial_for(
        rng.uniform("actor", len(first), actor.count), inputs.center[:, first], inputs.spread[:, first]
    )
    seen = [each.flatten(1)[:, None] if central else each for each in (inputs.center, inputs.spread)]
    still = seen[0].new_zeros(*seen[0].shape[:2], critic.inputs - seen[0].shape[-1])  # actions: mean 0 and scale 1
    center, spread = (
        torch.cat(parts, -1)[:, :, None].expand(-1, pairs, 2, -1) for parts in ((seen[0], still), (seen[1], still + 1))
    )
    return actors, critic.initial_for(rng.uniform("critic", pairs, 2, critic.count), center, spread)


def per_agent(rows: Float[Tensor, "G ..."], runs: int, networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return the row of each agent's network, as a view if the rows are consecutive."""
    return of_agents(rows.unflatten(0, (runs, -1)), networks)


def of_agents(table: Float[Tensor, "R K ..."], networks: tuple[int, ...]) -> Float[Tensor, "R A ..."]:
    """Return for each agent what its network has, as a view if the networks are consecutive.

    An index that is a tensor would come from the host, for which a GPU waits.
    """
    if networks == tuple(range(table.shape[1])):
        return table
    first = networks[0]
    if networks == tuple(range(first, first + len(networks))):
        return table[:, first : first + len(networks)]
    return torch.cat([table[:, n : n + 1] for n in networks], 1)


def by_network(
    reduce: Callable[[Tensor, int], Tensor], x: Float[Tensor, "R A ..."], networks: tuple[int, ...]
) -> Float[Tensor, "R K ..."]:
    """Return for each network the sum or mean (``reduce``) over its agents; ``x`` itself if each agent has its own."""
    if networks == tuple(range(len(networks))):
        return x
    return torch.stack([reduce(of_agents(x, members(networks, n)), 1) for n in range(len(set(networks)))], 1)


def members(networks: tuple[int, ...], network: int) -> tuple[int, ...]:
    """Return the agents that have a network."""
    return tuple(agent for agent, own in enumerate(networks) if own == network)


def map_tensors(fn: Callable[[Tensor], Any], theta: Theta) -> Theta:
    """Apply ``fn`` to every tensor; keep the form."""
    return fn(theta) if isinstance(theta, Tensor) else [map_tensors(fn, part) for part in theta]


def list_tensors(theta: Theta) -> list[Tensor]:
    """List all tensors."""
    return [theta] if isinstance(theta, Tensor) else [tensor for part in theta for tensor in list_tensors(part)]
