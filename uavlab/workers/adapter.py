"""Environments of Gymnasium with the functions of a parallel environment of PettingZoo."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from uavlab.workers.border import RESULTS, reset_pair, step_results
from uavlab.workers.grouping import ALONE
from uavlab.workers.spaces import MASK, Refusal


class Adapter:
    """A Gymnasium environment: of one agent, or of several, whose observations and actions are tuples of one length.

    Attributes:
        single: Whether it has one agent.
    """

    def __init__(self, env: Any) -> None:
        from gymnasium.spaces import Tuple

        self.env, self.unwrapped = env, getattr(env, "unwrapped", env)
        seen, action = env.observation_space, env.action_space
        self.single = not (isinstance(seen, Tuple) and isinstance(action, Tuple) and len(seen) == len(action) > 0)
        pairs = [(seen, action)] if self.single else [*zip(seen, action, strict=True)]
        self.spaces = {ALONE if self.single else f"{ALONE}_{number}": pair for number, pair in enumerate(pairs)}
        self.possible_agents = tuple(self.spaces)

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observations."""
        return self.spaces[agent][0]

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self.spaces[agent][1]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def reset(self, seed: int) -> tuple[dict[str, Any], ...]:
        """Start an episode."""
        obs, info = reset_pair(self.env.reset(seed=seed))
        return self._split(obs, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment; an agent that has ended does its first move, or what is nearest to no action."""
        joint = tuple(actions[name] if name in actions else _rest(self.action_space(name)) for name in self.spaces)
        *results, info = step_results(self.env.step(joint[0] if self.single else joint))
        parts = [self._split(result, what) for result, what in zip(results, RESULTS, strict=False)]
        return (*parts, self._infos(info))

    def _split(self, values: Any, what: str) -> dict[str, Any]:
        """Return a result of each agent; a number is that of all."""
        if self.single or (what != "observation" and not isinstance(values, (list, tuple)) and np.ndim(values) == 0):
            return dict.fromkeys(self.spaces, values)
        if values is None or len(values) != len(self.spaces):
            got = "None" if values is None else len(values)
            raise Refusal(f"{what} has {got} parts; expected {len(self.spaces)}: return one for each agent")
        return dict(zip(self.spaces, values, strict=True))

    def _infos(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the infos of each agent: those of all, with the agent's own mask."""
        masks = self._split(info[MASK], MASK) if MASK in info else {}
        return {name: {**info, **({MASK: masks[name]} if masks else {})} for name in self.spaces}


def _rest(space: Any) -> Any:
    return space.start if hasattr(space, "start") else np.clip(np.zeros_like(space.low), space.low, space.high)
