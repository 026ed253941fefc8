"""Worlds that are stepped as one batch with random streams of their own, and what other libraries call their parts."""

import operator
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.rng import Streams
from uavlab.core.text import quote
from uavlab.core.types import EnvSpec, legal_of, own_actions, padded_actions, select
from uavlab.envs.autoreset import judge, move, out_of_time
from uavlab.envs.tally import live_at_start, mean_reward
from uavlab.ops.action_sampling import without_padding


class Simulator:
    """Worlds of an environment; the streams ``initial`` and ``step`` of one seed hold all their random numbers."""

    def __init__(self, env: Env[Any], worlds: int, device: torch.device) -> None:
        """Seed the streams from the operating system; no world starts yet."""
        self.env, self.spec, self.worlds, self.device = env, env.spec, worlds, device
        self.padding = padded_actions(env.spec, device)
        self.state: Any = None  # of the worlds; None before the first start
        self.obs: Any = None  # of their agents
        self.live = torch.zeros(worlds, env.spec.agents, dtype=torch.bool, device=device)  # agents with a task
        self.truncated = torch.zeros(worlds, dtype=torch.bool, device=device)  # worlds that the time limit has ended
        self.seed(None)

    def seed(self, seed: int | None) -> None:
        """Begin new random streams; those of None differ from call to call."""
        try:
            number = None if seed is None else operator.index(seed)
            entropy = np.random.SeedSequence(number).entropy
        except (TypeError, ValueError) as error:
            raise ConfigError(f"seed: got {quote(seed)}; expected a whole number from 0 up.") from error
        self.rng = Streams([entropy], self.device)  # type: ignore[list-item]  # of an int, the int

    @torch.no_grad()
    def start(self, ended: Bool[Tensor, " B"] | None = None) -> None:
        """Replace worlds that have ended by new ones, from as many random numbers as for all; None replaces all."""
        noise = self.rng.uniform("initial", self.worlds, self.spec.initial_noise)[0]
        if ended is None or not hasattr(self.env, "initial_where"):
            state = self.env.initial(noise)
        else:  # worlds that are costly to start
            state = self.env.initial_where(noise, ended)
        live = live_at_start(self.env, state, self.worlds, self.device)
        obs, truncated = self.env.observe(state), torch.zeros_like(live[:, 0])
        if ended is not None:
            state, obs = select(ended, state, self.state), select(ended, obs, self.obs)
            live, truncated = select(ended, live, self.live), select(ended, truncated, self.truncated)
        self.state, self.obs, self.live, self.truncated = state, obs, live, truncated

    @torch.no_grad()
    def step(self, action: Tensor) -> tuple[Float[Tensor, "B A"], Float[Tensor, " B"]]:
        """Step all worlds by actions (B A D) or moves (B A); return rewards of agents, and means of each team.

        Padding and actions of agents that are not live have no effect: 0 or the first legal move stands in for them.
        """
        if self.state is None:
            raise ConfigError("step: no world has started; call reset first.")
        noise = self.rng.uniform("step", self.worlds, self.spec.step_noise)[0]
        before, legal = self.state, legal_of(self.obs)
        if legal is None:
            action = without_padding(action.masked_fill(~self.live[..., None], 0.0), self.padding)
        else:
            action = torch.where(self.live, action, legal.to(torch.uint8).argmax(-1))
        self.state, self.obs = move(self.env, before, action, noise, self.obs)
        reward, terminated = judge(self.env, before, action, self.state, noise)
        self.live = self.live & ~terminated
        self.truncated = out_of_time(self.env, self.state) & self.live.any(-1)
        return reward, mean_reward(self.env, before, reward)

    @property
    def terminated(self) -> Bool[Tensor, " B"]:
        return ~self.live.any(-1)


T = TypeVar("T")

VECTORS = {"": "observation", "features": "observation", "legal": "action_mask"}
MAPS = {"maps": "observation", "features": "features", "legal": "action_mask", "team": "state"}
"""Names of the parts of observations; further parts are of use where agents choose one after the other."""


def named(spec: EnvSpec, parts: Mapping[str, T]) -> dict[str, T]:
    """Return what belongs to parts of observations by the names of other libraries."""
    names = MAPS if spec.side else VECTORS
    return {names[part]: value for part, value in parts.items() if part in names}


def agent_names(spec: EnvSpec) -> tuple[str, ...]:
    """Return the name of each agent: its group and its number there, or its number in the team."""
    of_parts = [f"{part.name}_{number}" for part in spec.parts for number in range(part.agents)]
    return tuple(of_parts or (f"agent_{number}" for number in range(spec.agents)))


def agent_groups(spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the agents of each group: the parts of a team, or agents that may share a network."""
    labels = [part.name for part in spec.parts for _ in range(part.agents)]
    if not labels:
        order = list(dict.fromkeys(spec.groups))
        labels = [f"group_{order.index(label)}" if len(order) > 1 else "agents" for label in spec.groups]
    return {name: tuple(n for n, label in enumerate(labels) if label == name) for name in dict.fromkeys(labels)}


def own_widths(spec: EnvSpec, agent: int) -> dict[str, int]:
    """Return the length of the last axis of what an agent observes, without padding, by name."""
    seen = [part.obs for part in spec.parts for _ in range(part.agents)] or [spec.obs] * spec.agents
    moves = {"action_mask": own_actions(spec)[agent]} if spec.choices else {}
    return moves if spec.side else {"observation": seen[agent], **moves}
