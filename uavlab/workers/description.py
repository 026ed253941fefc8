"""What a worker and the process that starts it know of an environment: its agents, and the memory that both see."""

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

ALIGN = 64  # bytes
GOES_ON, TERMINATED, TRUNCATED = 0, 1, 2  # ends of an agent with a step


@dataclass(frozen=True)
class Agent:
    """One agent.

    Attributes:
        name: Its name in the environment.
        group: Name of the agents that observe and do the same.
        obs: Numbers that it observes.
        action: Dimensions of its actions; 0 where it chooses.
        choices: Moves among which it chooses; 0 where it acts continuously.
    """

    name: str
    group: str
    obs: int
    action: int
    choices: int


@dataclass(frozen=True)
class Description:
    """An environment.

    Attributes:
        agents: Its agents, those of a group one after the other.
        horizon: Steps after which it ends an episode, if it says so.
        single: Whether it is one of Gymnasium.
    """

    agents: tuple[Agent, ...]
    horizon: int | None
    single: bool

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Description":
        """Return the description that ``as_json`` wrote."""
        return cls(tuple(Agent(**each) for each in values["agents"]), values["horizon"], values["single"])

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
        for name in (field.name for field in fields(Agent)):
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
