"""What other libraries call the agents of a team, their groups and what they observe, and sizes without padding."""

from collections.abc import Mapping
from typing import TypeVar

from uavlab.core.types import EnvSpec, own_actions

T = TypeVar("T")

VECTORS = {"": "observation", "features": "observation", "legal": "action_mask"}
MAPS = {"maps": "observation", "features": "features", "legal": "action_mask", "team": "state"}
"""Names of the parts of observations; further parts are of use where agents choose one after the other."""


def named(spec: EnvSpec, parts: Mapping[str, T]) -> dict[str, T]:
    """Return what belongs to parts of observations by the names of other libraries.

    >>> named(tag, {"features": "what an agent sees", "legal": "its moves"})
    {'observation': 'what an agent sees', 'action_mask': 'its moves'}
    """
    names = MAPS if spec.side else VECTORS
    return {names[part]: value for part, value in parts.items() if part in names}


def agent_names(spec: EnvSpec) -> tuple[str, ...]:
    """Return the name of each agent: its group and its number there, or its number in the team.

    >>> agent_names(tag)
    ('hunters_0', 'hunters_1', 'hunters_2', 'prey_0')
    """
    of_parts = [f"{part.name}_{number}" for part in spec.parts for number in range(part.agents)]
    return tuple(of_parts or (f"agent_{number}" for number in range(spec.agents)))


def agent_groups(spec: EnvSpec) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the agents of each group: the parts of a team, or agents that may share a network.

    >>> agent_groups(tag)
    {'hunters': (0, 1, 2), 'prey': (3,)}
    """
    labels = [part.name for part in spec.parts for _ in range(part.agents)]
    if not labels:
        order = list(dict.fromkeys(spec.groups))
        labels = [f"group_{order.index(label)}" if len(order) > 1 else "agents" for label in spec.groups]
    return {name: tuple(n for n, own in enumerate(labels) if own == name) for name in dict.fromkeys(labels)}


def own_widths(spec: EnvSpec, agent: int) -> dict[str, int]:
    """Return the length of the last axis of what an agent observes, without padding, by name.

    >>> own_widths(tag, 3)
    {'observation': 10}
    """
    seen = [part.obs for part in spec.parts for _ in range(part.agents)] or [spec.obs] * spec.agents
    moves = {"action_mask": own_actions(spec)[agent]} if spec.choices else {}
    return moves if spec.side else {"observation": seen[agent], **moves}
