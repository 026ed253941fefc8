"""Actions before anything is learned."""

from typing import Any

from torch import Tensor

from uavlab.core.groups import padded_actions
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, leaves
from uavlab.ops.action_sampling import random_moves, without_padding


def random_actions(spec: EnvSpec, rng: Streams, name: str, obs: Any) -> Tensor:
    """Draw uniformly random actions (B A D), or legal moves (B A), for worlds with observations ``obs`` (B ...)."""
    count = len(next(leaves(obs))[1]) // len(rng.seeds)
    if spec.choices:
        return random_moves(obs, rng.uniform(name, count, spec.agents).flatten(0, 1))
    action = 2 * rng.uniform(name, count, spec.agents, spec.action).flatten(0, 1) - 1
    return without_padding(action, padded_actions(spec, action.device))
