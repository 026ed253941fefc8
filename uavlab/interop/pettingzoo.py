"""One world as a ``ParallelEnv`` of PettingZoo, whose agents leave when their task has ended."""

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, require_known
from uavlab.interop.gymnasium import (
    agent_action_space,
    agent_arrays,
    agent_observation_space,
    arrays,
    begin,
    require_action,
    team_observation_space,
)
from uavlab.interop.simulator import Simulator, agent_names

Steps = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class TeamParallelEnv(ParallelEnv[str, Any, Any]):
    """One world of an environment, see ``uavlab.to_pettingzoo``."""

    render_mode = None

    def __init__(self, simulator: Simulator) -> None:
        spec, name = simulator.spec, type(simulator.env).__name__
        self.simulator = simulator
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": True}
        self.possible_agents = list(agent_names(spec))
        self.agents: list[str] = []
        numbers = {agent: number for number, agent in enumerate(self.possible_agents)}
        self.observation_spaces = {agent: agent_observation_space(spec, n) for agent, n in numbers.items()}
        self.action_spaces = {agent: agent_action_space(spec, n) for agent, n in numbers.items()}
        if spec.team:
            self.state_space = team_observation_space(spec)["state"]  # type: ignore[index]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        require_known("agent", agent, self.possible_agents, "observation_space: ")
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        require_known("agent", agent, self.possible_agents, "action_space: ")
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start a new world, with a seed from new random streams; ``options`` have no effect."""
        begin(self.simulator, seed)
        self.agents = self._live()
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Steps:
        """Step the world by an action of each agent in ``agents``; without any, return nothing."""
        acting = self.agents
        if not acting and not actions:
            return {}, {}, {}, {}, {}
        if set(actions) != set(acting):
            raise ConfigError(
                f"step: got actions of {quote(list(actions))}; expected one of each in agents, {quote(acting)}; after "
                "the end call reset."
            )
        spec = self.simulator.spec
        team = np.zeros((1, spec.agents, spec.action), np.int64 if spec.choices else np.float32)
        for agent, action in actions.items():
            array = require_action(f"step: {agent}", action, self.action_spaces[agent])
            team[0, self.possible_agents.index(agent), : array.size] = array
        chosen = torch.from_numpy(team)
        reward, _ = self.simulator.step(chosen[..., 0] if spec.choices else chosen)
        live, late = self._live(), bool(self.simulator.truncated)
        self.agents = [] if late else live
        return (
            self._observe(acting),
            {agent: float(reward[0, self.possible_agents.index(agent)]) for agent in acting},
            {agent: agent not in live for agent in acting},
            {agent: late and agent in live for agent in acting},
            {agent: {} for agent in acting},
        )

    def state(self) -> np.ndarray:
        """Return the maps of the team (K L L), which only a critic should see."""
        if not self.simulator.spec.team:
            return super().state()
        return arrays(self.simulator.spec, self.simulator.obs)["state"][0]

    def _live(self) -> list[str]:
        return list(compress(self.possible_agents, self.simulator.live[0].tolist()))

    def _observe(self, agents: list[str]) -> dict[str, Any]:
        spec, parts = self.simulator.spec, arrays(self.simulator.spec, self.simulator.obs)
        return {agent: agent_arrays(spec, parts, self.possible_agents.index(agent)) for agent in agents}
