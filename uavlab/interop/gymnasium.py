"""Teams as single agents of Gymnasium: worlds as a ``VectorEnv``, or one world as an ``Env``."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from uavlab.core.errors import ConfigError
from uavlab.interop.simulator import Simulator
from uavlab.interop.spaces import arrays, bare, require_action, team_action_space, team_observation_space


class TeamVectorEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """Worlds of an environment, see ``uavlab.to_gymnasium``.

    Attributes:
        simulator: The worlds.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}  # noqa: RUF012 - as in its base

    def __init__(self, simulator: Simulator) -> None:
        """Describe the team; worlds start with ``reset``."""
        self.simulator, self.num_envs = simulator, simulator.worlds
        self.single_observation_space = team_observation_space(simulator.spec)
        self.single_action_space = team_action_space(simulator.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all worlds anew, with a seed from new random streams; ``options`` have no effect.

        Raises:
            ConfigError: The seed is no whole number from 0 up.
        """
        begin(self.simulator, seed)
        super().reset(seed=seed)
        return bare(arrays(self.simulator.spec, self.simulator.obs)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all worlds, and replace those that end.

        Raises:
            ConfigError: The actions are not in ``action_space``, or no world has started.
        """
        chosen = require_action("step", actions, self.action_space)
        obs, reward, terminated, truncated = step_team(self.simulator, chosen)
        ended = terminated | truncated
        if not ended.any():
            return bare(obs), reward, terminated, truncated, {}
        final = np.full(self.num_envs, None, dtype=object)
        for world in np.flatnonzero(ended):
            final[world] = bare({name: part[world] for name, part in obs.items()})
        self.simulator.start(torch.from_numpy(ended).to(self.simulator.device))
        infos = {"final_obs": final, "_final_obs": ended.copy(), "final_info": {}, "_final_info": ended.copy()}
        return bare(arrays(self.simulator.spec, self.simulator.obs)), reward, terminated, truncated, infos


class TeamEnv(gymnasium.Env[Any, np.ndarray]):
    """One world of an environment, see ``uavlab.to_gymnasium``.

    Attributes:
        simulator: The world.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as in its base

    def __init__(self, simulator: Simulator) -> None:
        """Describe the team; the world starts with ``reset``."""
        self.simulator = simulator
        self.observation_space = team_observation_space(simulator.spec)
        self.action_space = team_action_space(simulator.spec)
        self.ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new world, with a seed from new random streams; ``options`` have no effect.

        Raises:
            ConfigError: The seed is no whole number from 0 up.
        """
        begin(self.simulator, seed)
        super().reset(seed=seed)
        self.ended = False
        return first_world(arrays(self.simulator.spec, self.simulator.obs)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the world.

        Raises:
            ConfigError: The action is not in ``action_space``, or the world has ended or not started.
        """
        if self.ended:
            raise ConfigError("step: the world has ended or not started; call reset first.")
        chosen = require_action("step", action, self.action_space)[None]
        obs, reward, terminated, truncated = step_team(self.simulator, chosen)
        self.ended = bool(terminated | truncated)
        return first_world(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def begin(simulator: Simulator, seed: int | None) -> None:
    """Start all worlds anew, with a seed from new random streams."""
    if seed is not None:
        simulator.seed(seed)
    simulator.start()


def step_team(
    simulator: Simulator, actions: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Step all worlds; return observations, mean rewards of teams, and which worlds terminated or were truncated."""
    _, reward = simulator.step(torch.from_numpy(np.ascontiguousarray(actions)).to(simulator.device))
    terminated, truncated = (each.cpu().numpy() for each in (simulator.terminated, simulator.truncated))
    return arrays(simulator.spec, simulator.obs), reward.double().cpu().numpy(), terminated, truncated


def first_world(obs: dict[str, np.ndarray]) -> Any:
    """Return the observation of the first world."""
    return bare({name: part[0] for name, part in obs.items()})
