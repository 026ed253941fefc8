"""Teams as single agents of Gymnasium, worlds as a ``VectorEnv`` or one as an ``Env``; spaces and arrays of agents."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, require_known
from uavlab.core.types import EnvSpec, leaves, observation_shapes, own_actions
from uavlab.interop.simulator import Simulator, named, own_widths

LARGEST = float(np.finfo(np.float32).max)  # observations are finite, and a check of Gymnasium warns of infinite bounds
MODES = tuple(mode.value for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP))


class TeamVectorEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """Worlds of an environment, see ``uavlab.to_gymnasium``."""

    def __init__(self, simulator: Simulator, autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP) -> None:
        name = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        require_known("autoreset_mode", name, MODES, "to_gymnasium: ")
        self.metadata = {"autoreset_mode": AutoresetMode(name), "render_modes": []}
        self.simulator, self.num_envs = simulator, simulator.worlds
        self.single_observation_space = team_observation_space(simulator.spec)
        self.single_action_space = team_action_space(simulator.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.ended = np.zeros(self.num_envs, bool)  # worlds that ended with the last step, and start with the next one

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all worlds anew, with a seed from new random streams; ``options`` have no effect."""
        begin(self.simulator, seed)
        super().reset(seed=seed)
        self.ended = np.zeros(self.num_envs, bool)
        return bare(observed(self.simulator)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all worlds, and replace those that end, at once or by the next step."""
        simulator, chosen = self.simulator, require_action("step", actions, self.action_space)
        reward = np.zeros(self.num_envs) if self.ended.all() else step_team(simulator, chosen)
        if self.ended.any():
            self._replace(self.ended)
            reward = np.where(self.ended, 0.0, reward)
        terminated, truncated = ends(simulator)
        ended = terminated | truncated
        if self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            self.ended = ended
            return bare(observed(simulator)), reward, terminated, truncated, {}
        obs, infos = observed(simulator), {}
        if ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for world in np.flatnonzero(ended):
                final[world] = bare({name: part[world] for name, part in obs.items()})
            infos = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
            self._replace(ended)
            obs = observed(simulator)
        return bare(obs), reward, terminated, truncated, infos

    def _replace(self, ended: np.ndarray) -> None:
        self.simulator.start(torch.from_numpy(ended).to(self.simulator.device))


class TeamEnv(gymnasium.Env[Any, np.ndarray]):
    """One world of an environment, see ``uavlab.to_gymnasium``."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as in its base

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.observation_space = team_observation_space(simulator.spec)
        self.action_space = team_action_space(simulator.spec)
        self.ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new world, with a seed from new random streams; ``options`` have no effect."""
        begin(self.simulator, seed)
        super().reset(seed=seed)
        self.ended = False
        return first_world(observed(self.simulator)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.ended:
            raise ConfigError("step: the world has ended or not started; call reset first.")
        chosen = require_action("step", action, self.action_space)[None]
        reward, (terminated, truncated) = step_team(self.simulator, chosen), ends(self.simulator)
        self.ended = bool(terminated | truncated)
        return first_world(observed(self.simulator)), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def begin(simulator: Simulator, seed: int | None) -> None:
    if seed is not None:
        simulator.seed(seed)
    simulator.start()


def step_team(simulator: Simulator, actions: np.ndarray) -> np.ndarray:
    """Step all worlds; return the mean rewards of their teams."""
    _, reward = simulator.step(torch.from_numpy(np.ascontiguousarray(actions)).to(simulator.device))
    return reward.double().cpu().numpy()


def ends(simulator: Simulator) -> tuple[np.ndarray, np.ndarray]:
    return simulator.terminated.cpu().numpy(), simulator.truncated.cpu().numpy()


def observed(simulator: Simulator) -> dict[str, np.ndarray]:
    return arrays(simulator.spec, simulator.obs)


def first_world(obs: dict[str, np.ndarray]) -> Any:
    return bare({name: part[0] for name, part in obs.items()})


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
    per_agent = {name: shape[1:] for name, shape in shapes.items() if name != "state"}
    return _observation_space({n: (*shape[:-1], widths.get(n, shape[-1])) for n, shape in per_agent.items()})


def agent_action_space(spec: EnvSpec, agent: int) -> spaces.Space[Any]:
    count = own_actions(spec)[agent]
    return spaces.Discrete(count) if spec.choices else spaces.Box(-1, 1, (count,), np.float32)


def arrays(spec: EnvSpec, obs: Any) -> dict[str, np.ndarray]:
    """Return observations as arrays with the axis of worlds first, by name."""
    parts = named(spec, dict(leaves(obs)))
    return {name: (x.to(torch.int8) if x.dtype == torch.bool else x).cpu().numpy() for name, x in parts.items()}


def agent_arrays(spec: EnvSpec, parts: Mapping[str, np.ndarray], agent: int) -> Any:
    """Return what one agent observes in the first world, in its space."""
    widths = own_widths(spec, agent)
    return bare({n: part[0, agent][..., : widths.get(n)] for n, part in parts.items() if n != "state"})


def bare(parts: Mapping[str, Any]) -> Any:
    """Return the observation alone where nothing stands beside it, otherwise all parts by name."""
    return dict(parts) if len(parts) > 1 else parts["observation"]


def require_action(where: str, action: Any, space: spaces.Space[Any]) -> np.ndarray:
    try:
        array = np.asarray(action).astype(space.dtype, casting="same_kind", copy=False)
    except (TypeError, ValueError, RuntimeError):  # such as lists of different lengths, or a tensor with a gradient
        array = None
    if array is None or not space.contains(array):
        raise ConfigError(f"{where}: got the action {quote(action)}; expected one in {' '.join(str(space).split())}.")
    return array


def _observation_space(shapes: Mapping[str, tuple[int, ...]]) -> spaces.Space[Any]:
    parts: dict[str, spaces.Space[Any]] = {}
    for name, shape in shapes.items():
        box = (0, 1, shape, np.int8) if name == "action_mask" else (-LARGEST, LARGEST, shape, np.float32)
        parts[name] = spaces.Box(*box)
    return parts["observation"] if len(parts) == 1 else spaces.Dict(parts)
