"""Networks of a team: actors and critics, initial parameters, and the forms in which a learner holds them."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale
from uavlab.nets.assignment import assign_networks
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


def assign_critics(spec: EnvSpec, critic: str) -> tuple[int, ...]:
    """Return the index of each agent's pair of critics: that of its group if critics are ``shared``, else its own."""
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


def map_tensors(fn: Callable[[Tensor], Any], theta: Theta) -> Theta:
    """Apply ``fn`` to every tensor; keep the form."""
    return fn(theta) if isinstance(theta, Tensor) else [map_tensors(fn, part) for part in theta]


def list_tensors(theta: Theta) -> list[Tensor]:
    return [theta] if isinstance(theta, Tensor) else [tensor for part in theta for tensor in list_tensors(part)]
