"""What a worker and the process that starts it know of an environment: its agents, and the memory that both see."""

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

ALIGN = 64  # bytes
GOES_ON, TERMINATED, TRUNCATED, UNSEEN = 0, 1, 2, 3  # ends of an agent with a step; a cut without an observation


@dataclass(frozen=True)
class Agent:
    """One agent.

    Attributes:
        name: Its name in the environment.
        group: Name of the agents that observe and do the same.
        obs: Numbers that it observes.
        action: Dimensions of its actions; 0 where it chooses.
        choices: Moves among which it chooses; 0 where it acts continuously.
        bounds: Lowest and highest number of its actions; empty where it chooses.
        masked: Whether a mask says which moves are open.
    """

    name: str
    group: str
    obs: int
    action: int
    choices: int
    bounds: tuple[float, ...] = ()
    masked: bool = field(default=False, compare=False)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers that it observes, dimensions of its actions, and moves: equal ones where agents share a network."""
        return self.obs, self.action, self.choices

    def __str__(self) -> str:
        """Return what it observes and does as text."""
        low, high = self.bounds or (0, 0)
        moves = f"{self.choices} moves{', masked' * self.masked}"
        acts = f"{self.action} action{'s' * (self.action > 1)} in [{low:g}, {high:g}]"
        return f"{self.obs} number{'s' * (self.obs > 1)}, {moves if self.choices else acts}"


@dataclass(frozen=True)
class Description:
    """An environment.

    Attributes:
        agents: Its agents, those of a group one after the other.
        horizon: Steps after which it ends an episode, if it says so.
        single: Whether it is one of Gymnasium.
        limit: What says after how many steps.
        notes: What the environment seems to say, and is not used.
    """

    agents: tuple[Agent, ...]
    horizon: int | None
    single: bool
    limit: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Description":
        agents = tuple(Agent(**{**agent, "bounds": tuple(agent["bounds"])}) for agent in values["agents"])
        return cls(**{**values, "agents": agents, "notes": tuple(values["notes"])})

    @cached_property
    def text(self) -> str:
        """All of it as text, whose hash Python keeps."""
        return repr(self)

    def widest(self, what: str) -> int:
        """Return the largest number of the agents: of ``obs``, ``action`` or ``choices``."""
        return max(getattr(agent, what) for agent in self.agents)


def difference(other: Description, expected: Description) -> str:
    """Return the first value in which a description is another one than expected; empty if both are equal."""
    count, least = len(other.agents), len(expected.agents)
    if count != least:
        return f"{count} agents; expected {least}"
    for one, twin in zip(other.agents, expected.agents, strict=True):
        for name in (each.name for each in fields(Agent) if each.compare):
            if (got := getattr(one, name)) != (wanted := getattr(twin, name)):
                return f"{name}={got} of agent {one.name}; expected {wanted}"
    if other.horizon != expected.horizon:
        return f"episodes of {other.horizon} steps; expected {expected.horizon}"
    return "" if other == expected else "another kind of environment; expected the same"


class Rows(NamedTuple):
    """Arrays with a row for each copy of an environment: its next actions (S A D), and the results of its last step.

    Observations (S A O) and legal moves (S A E) of narrower agents are padded; ``end`` and ``reward`` are (S A).
    """

    action: np.ndarray
    obs: np.ndarray
    legal: np.ndarray
    reward: np.ndarray
    end: np.ndarray


def _forms(description: Description, copies: int) -> list[tuple[Any, tuple[int, ...]]]:
    lead, moves = (copies, len(description.agents)), description.widest("choices")
    action = (np.int64, (*lead, 1)) if moves else (np.float32, (*lead, description.widest("action")))
    obs = (np.float32, (*lead, description.widest("obs")))
    return [action, obs, (np.bool_, (*lead, moves)), (np.float32, lead), (np.uint8, lead)]


def _spans(forms: Sequence[tuple[Any, tuple[int, ...]]]) -> list[int]:
    """Return the bytes of each array, up to the next multiple of ``ALIGN``."""
    return [-(-np.dtype(kind).itemsize * math.prod(shape) // ALIGN) * ALIGN for kind, shape in forms]


def memory_bytes(description: Description, copies: int) -> int:
    """Return the bytes of ``Rows``."""
    return sum(_spans(_forms(description, copies)))


def rows_in(memory: mmap.mmap, description: Description, copies: int) -> Rows:
    """Return the arrays in memory that several processes see."""
    forms, start, arrays = _forms(description, copies), 0, []
    for (kind, shape), span in zip(forms, _spans(forms), strict=True):
        arrays.append(np.frombuffer(memory, kind, math.prod(shape), start).reshape(shape))
        start += span
    return Rows(*arrays)
