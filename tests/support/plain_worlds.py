"""Worlds stepped one after the other, agent by agent, from the noise of a seed: the slow twin of ``interop``."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from uavlab import envs  # noqa: F401 - registers them
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.rng import Streams
from uavlab.core.types import ChoiceObs, EnvSpec, MapObs

SMALL = {"horizon": 6, "measurements": 4}  # parameters by which episodes are short
NAMES = sorted(name for name, entry in ENVIRONMENTS.items() if isinstance(entry.kind().spec, EnvSpec))
"""All registered environments in which agents act."""


def small(name: str) -> dict[str, Any]:
    """Return parameters by which the episodes of a registered environment are short, if it has such."""
    return {field.name: SMALL[field.name] for field in fields(ENVIRONMENTS[name].kind) if field.name in SMALL}


class PlainWorlds:
    """Worlds of an environment as lists; actions of agents that have ended are replaced as ``interop`` says."""

    def __init__(self, env: Any, worlds: int, seed: int) -> None:
        self.env, self.worlds, self.rng = env, worlds, Streams([seed])
        self.states: list[Any] = [None] * worlds
        self.live: list[list[bool]] = [[] for _ in range(worlds)]
        self.late = [False] * worlds
        self.begin(range(worlds))

    def begin(self, ended: Sequence[int]) -> None:
        """Start some worlds anew."""
        noise = self.rng.uniform("initial", self.worlds, self.env.spec.initial_noise)[0]
        for world in ended:
            state = self.states[world] = self.env.initial(noise[world : world + 1])
            takes_part = getattr(self.env, "takes_part", None) if self.env.spec.deaths else None
            self.live[world] = [True] * self.env.spec.agents if takes_part is None else takes_part(state)[0].tolist()
            self.late[world] = False

    def step(self, action: Tensor) -> list[list[float]]:
        """Step every world by actions (B A D) or moves (B A); return the rewards of all agents."""
        noise = self.rng.uniform("step", self.worlds, self.env.spec.step_noise)[0]
        return [self.step_world(world, action[world].clone(), noise[world : world + 1]) for world in range(self.worlds)]

    def step_world(self, world: int, action: Tensor, noise: Tensor) -> list[float]:
        """Step one world."""
        state = self.states[world]
        for agent, live in enumerate(self.live[world]):
            if not live:
                moves = self.seen(world, agent).get("action_mask")
                action[agent] = 0 if moves is None else moves.tolist().index(True)
            own = next((part.action for part in self.env.spec.parts if agent < self.last(part)), None)
            if own:
                action[agent, own:] = 0
        after = self.states[world] = self.env.transition(state, action[None], noise)
        ended = self.env.terminated(after)[0].tolist()
        self.live[world] = [live and not end for live, end in zip(self.live[world], ended, strict=True)]
        self.late[world] = any(self.live[world]) and int(after.step) >= self.env.spec.horizon
        return self.env.reward(state, action[None], after)[0].tolist()

    def over(self) -> list[int]:
        """Return the worlds whose episode has ended."""
        return [world for world in range(self.worlds) if self.late[world] or not any(self.live[world])]

    def seen(self, world: int, agent: int) -> dict[str, Tensor]:
        """Return what an agent observes, without padding."""
        obs, spec = self.env.observe(self.states[world]), self.env.spec
        if isinstance(obs, MapObs):
            parts = {"observation": obs.maps, "features": obs.features, "action_mask": obs.legal}
            return {name: part[0, agent] for name, part in parts.items() if part is not None}
        own = next((part for part in spec.parts if agent < self.last(part)), None)
        vector, moves = (spec.obs, spec.choices) if own is None else (own.obs, own.choices)
        if isinstance(obs, ChoiceObs):
            return {"observation": obs.features[0, agent, :vector], "action_mask": obs.legal[0, agent, :moves]}
        return {"observation": obs[0, agent, :vector]}

    def last(self, part: Any) -> int:
        """Return the number of the first agent behind a group."""
        count = 0
        for each in self.env.spec.parts:
            count += each.agents
            if each == part:
                break
        return count


def random_action(plain: PlainWorlds, generator: torch.Generator) -> Tensor:
    """Draw a legal action of every agent, and any of one that has ended; padding is drawn, too."""
    env, spec = plain.env, plain.env.spec
    if not spec.choices:
        return 2 * torch.rand(plain.worlds, spec.agents, spec.action, generator=generator) - 1
    action = torch.zeros(plain.worlds, spec.agents, dtype=torch.int64)
    for world in range(plain.worlds):
        for agent in range(env.spec.agents):
            moves = plain.seen(world, agent)["action_mask"]
            chance = (moves if plain.live[world][agent] else torch.ones_like(moves)).float()
            action[world, agent] = torch.multinomial(chance, 1, generator=generator)[0]
    return action
