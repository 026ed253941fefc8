"""Environments of Gymnasium with the functions of a parallel environment of PettingZoo."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from uavlab.workers.border import RESULTS, reset_pair, step_results
from uavlab.workers.grouping import ALONE
from uavlab.workers.spaces import MASK, Refusal


class Alone:
    """A Gymnasium environment with the functions of a parallel environment of PettingZoo."""

    possible_agents = (ALONE,)

    def __init__(self, env: Any) -> None:
        self.env, self.unwrapped = env, getattr(env, "unwrapped", env)

    def observation_space(self, agent: str) -> Any:
        """Return the space of observations."""
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        """Return the space of actions."""
        return self.env.action_space

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        obs, info = reset_pair(self.env.reset(seed=seed))
        return {ALONE: obs}, {ALONE: info}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment."""
        return tuple({ALONE: result} for result in step_results(self.env.step(actions[ALONE])))


class Crew:
    """A Gymnasium environment of several agents, whose spaces are tuples of one length, as a parallel environment."""

    def __init__(self, env: Any) -> None:
        self.env, self.unwrapped = env, getattr(env, "unwrapped", env)
        self.possible_agents = tuple(f"{ALONE}_{number}" for number in range(len(env.action_space)))

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observations."""
        return self.env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self.env.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int) -> tuple[dict[str, Any], ...]:
        """Start an episode."""
        obs, info = reset_pair(self.env.reset(seed=seed))
        return self._split(obs, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment; an agent that has ended does its first move, or an action of zeros."""
        own = tuple(actions[name] if name in actions else self._rest(name) for name in self.possible_agents)
        *results, info = step_results(self.env.step(own))
        return (*(self._split(each, what) for each, what in zip(results, RESULTS, strict=False)), self._infos(info))

    def _rest(self, agent: str) -> Any:
        space = self.action_space(agent)
        return space.start if hasattr(space, "start") else np.clip(np.zeros_like(space.low), space.low, space.high)

    def _split(self, values: Any, what: str) -> dict[str, Any]:
        """Return a result of each agent; a number is that of all."""
        if what != "observation" and np.ndim(values) == 0:
            return dict.fromkeys(self.possible_agents, values)
        if values is None or len(values) != len(self.possible_agents):
            got = "None" if values is None else str(len(values))
            raise Refusal(f"{what} has {got} parts; expected {len(self.possible_agents)}: return one for each agent")
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the infos of each agent: those of all, with the agent's own mask."""
        masks = self._split(info[MASK], MASK) if MASK in info else {}
        return {name: {**info, **({MASK: masks[name]} if masks else {})} for name in self.possible_agents}


def is_crew(env: Any) -> bool:
    """Return whether observations and actions of an environment are tuples of one length, one part for each agent."""
    from gymnasium.spaces import Tuple

    seen, action = env.observation_space, env.action_space
    return isinstance(seen, Tuple) and isinstance(action, Tuple) and len(seen) == len(action) > 0
