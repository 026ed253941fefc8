"""Spaces of Gymnasium for what a team or an agent observes and does, and arrays of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec, leaves, observation_shapes, own_actions
from uavlab.interop.agents import named, own_widths

LARGEST = float(np.finfo(np.float32).max)  # observations are finite, and a check of Gymnasium warns of infinite bounds


def team_observation_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the space of what all agents observe, with the axis of agents first, and of the team's maps."""
    return _observation_space(named(spec, observation_shapes(spec)))


def team_action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the space of the actions (A D) or moves (A) of all agents; padding has no effect."""
    if spec.choices:
        return spaces.MultiDiscrete([*own_actions(spec)])
    return spaces.Box(-1, 1, (spec.agents, spec.action), np.float32)


def agent_observation_space(spec: EnvSpec, agent: int) -> spaces.Space[Any]:
    """Return the space of what one agent observes, without padding."""
    shapes, widths = named(spec, observation_shapes(spec)), own_widths(spec, agent)
    own = {name: shape[1:] for name, shape in shapes.items() if name != "state"}
    return _observation_space({n: (*shape[:-1], widths.get(n, shape[-1])) for n, shape in own.items()})


def agent_action_space(spec: EnvSpec, agent: int) -> spaces.Space[Any]:
    """Return the space of what one agent does, without padding."""
    own = own_actions(spec)[agent]
    return spaces.Discrete(own) if spec.choices else spaces.Box(-1, 1, (own,), np.float32)


def arrays(spec: EnvSpec, obs: Any) -> dict[str, np.ndarray]:
    """Return observations as arrays with the axis of worlds first, by name."""
    return {name: _array(value) for name, value in named(spec, dict(leaves(obs))).items()}


def agent_arrays(spec: EnvSpec, parts: Mapping[str, np.ndarray], agent: int) -> Any:
    """Return what one agent observes in the first world, in its space."""
    widths = own_widths(spec, agent)
    return bare({n: part[0, agent][..., : widths.get(n)] for n, part in parts.items() if n != "state"})


def bare(parts: Mapping[str, Any]) -> Any:
    """Return the observation alone where nothing stands beside it, otherwise all parts by name."""
    return dict(parts) if len(parts) > 1 else parts["observation"]


def require_action(where: str, action: Any, space: spaces.Space[Any]) -> np.ndarray:
    """Return an action as an array."""
    try:
        array = np.asarray(action).astype(space.dtype, casting="same_kind", copy=False)
    except (TypeError, ValueError, RuntimeError):  # such as lists of different lengths, or a tensor with a gradient
        array = None
    if array is None or not space.contains(array):
        raise ConfigError(f"{where}: got the action {quote(action)}; expected one in {' '.join(str(space).split())}.")
    return array


def _observation_space(shapes: Mapping[str, tuple[int, ...]]) -> spaces.Space[Any]:
    parts: dict[str, spaces.Space[Any]] = {
        name: spaces.Box(0, 1, shape, np.int8)
        if name == "action_mask"
        else spaces.Box(-LARGEST, LARGEST, shape, np.float32)
        for name, shape in shapes.items()
    }
    return parts["observation"] if len(parts) == 1 else spaces.Dict(parts)


def _array(value: Tensor) -> np.ndarray:
    return (value.to(torch.int8) if value.dtype == torch.bool else value).cpu().numpy()
