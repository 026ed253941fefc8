"""The agents of an environment as numbers: what they observe and do, and the memory that holds it for all processes.

A `Codec` makes what an agent observes a vector, and its actions numbers from [-1, 1] or moves.
"""

import math
import mmap
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np

from uavlab.core.text import quote

GOES_ON, TERMINATED, TRUNCATED, UNSEEN = 0, 1, 2, 3  # ends of an agent with a step; a cut without an observation


@dataclass(frozen=True)
class Agent:
    """One agent."""

    name: str  # in the environment
    group: str  # name of the agents that observe and do the same
    obs: int  # numbers that it observes
    action: int  # dimensions of its actions; 0 where it chooses
    choices: int  # moves; 0 where it acts continuously
    bounds: tuple[float, ...] = ()  # lowest and highest number of its actions; empty where it chooses
    masked: bool = field(default=False, compare=False)  # whether a mask says which moves are open

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
    """An environment."""

    agents: tuple[Agent, ...]  # those of a group one after the other
    horizon: int | None  # steps after which it ends an episode, if it says so
    single: bool  # whether it is one of Gymnasium with one agent
    limit: str = ""  # what says after how many steps
    notes: tuple[str, ...] = field(default=(), compare=False)  # what it seems to say, and is not used

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
    for agent, twin in zip(other.agents, expected.agents, strict=True):
        for name in (compared.name for compared in fields(Agent) if compared.compare):
            if (got := getattr(agent, name)) != (wanted := getattr(twin, name)):
                return f"{name}={got} of agent {agent.name}; expected {wanted}"
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


def row_type(description: Description) -> np.dtype[Any]:
    """Return the type of the numbers of one copy in ``Rows``."""
    agents, moves = len(description.agents), description.widest("choices")
    action = (
        ("action", np.int64, (agents, 1)) if moves else ("action", np.float32, (agents, description.widest("action")))
    )
    seen = [("obs", np.float32, (agents, description.widest("obs"))), ("legal", np.bool_, (agents, moves))]
    return np.dtype([action, *seen, ("reward", np.float32, (agents,)), ("end", np.uint8, (agents,))], align=True)


def memory_bytes(description: Description, copies: int) -> int:
    """Return the bytes of ``Rows``."""
    return row_type(description).itemsize * copies


def rows_in(memory: mmap.mmap, description: Description) -> Rows:
    """Return the arrays in memory that several processes see."""
    table = np.frombuffer(memory, row_type(description))
    return Rows(*(table[name] for name in Rows._fields))


LARGEST = 20_000  # numbers that an agent may observe
MOST_MOVES = 10_000
FARTHEST = 1e6  # a bound of actions that somebody means
MASK = "action_mask"
LIKE_MASKS = re.compile("avail|legal|valid", re.I)  # words of other libraries for moves that are open
OBSERVE = (
    "return gymnasium.wrappers.TransformObservation(env, FUNCTION, SPACE) from a function of yours, where FUNCTION "
    "makes an observation of SPACE, a smaller Box; a parallel environment returns such ones itself"
)
ACT = (
    "return gymnasium.wrappers.TransformAction(env, FUNCTION, SPACE) from a function of yours, where FUNCTION makes an "
    "action of the environment from one of SPACE, {}; a parallel environment has such an action_space itself"
)


class Refusal(Exception):  # noqa: N818 - it is no fault of the program
    """What this package does not serve, or what breaks the contract of an environment; a whole sentence."""


def array_of(value: Any) -> np.ndarray:
    """Return a value as an array; one of None if it is none."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError):  # of rows of several lengths, or of a tensor elsewhere
        return np.asarray(None)


class Codec:
    """One agent's observations as numbers, and numbers as its actions; sizes are those of an ``Agent``.

    ``mask`` holds the keys that lead to the mask of moves in an observation, ``unused`` other keys that seem to.
    """

    def __init__(self, agent: str, observation: Any, action: Any) -> None:
        from gymnasium import Space, spaces

        self.agent = agent
        for space, verb in ((observation, "observes"), (action, "acts in")):
            if not isinstance(space, Space):
                raise Refusal(
                    f"{agent} {verb} {_text(space)} of module {type(space).__module__}; expected a space of "
                    "gymnasium.spaces: make it of that package, which has the same names as gym."
                )
        self.bounds: tuple[float, ...] = ()
        self.action = self.choices = 0
        if isinstance(action, spaces.Discrete):
            self.choices, self.first = int(action.n), int(action.start)
            if self.choices > MOST_MOVES:
                step = ACT.format("such as a Discrete of moves that stand for several, or a Box from -1 to 1")
                raise Refusal(f"{agent} chooses among {self.choices:,} moves; expected at most {MOST_MOVES:,}: {step}.")
        elif isinstance(action, spaces.Box) and math.prod(action.shape) > 0:
            low, high = action.low.astype(np.float64), action.high.astype(np.float64)
            self.bounds = float(low.min()), float(high.max())
            if not np.abs(self.bounds).max() <= FARTHEST:
                step = ACT.format(f"such as gymnasium.spaces.Box(-1, 1, {action.shape})")
                raise Refusal(
                    f"{agent} acts in {_text(action)}, which has no bounds; expected finite ones, up to "
                    f"{FARTHEST:,.0f}: {step}."
                )
            self.low, self.half, self.kind, self.shape = low, (high - low) / 2, action.dtype, action.shape
            self.action, self.top = math.prod(action.shape), high
        else:
            step = ACT.format("a Discrete of their combinations, or a Box with bounds")
            raise Refusal(f"{agent} acts in {_text(action)}; expected Discrete, or Box with bounds: {step}.")
        self._read_observation(observation)

    def _read_observation(self, space: Any) -> None:
        """Take the mask of moves out of a space, and count the numbers of the rest."""
        from gymnasium import spaces

        self.space, self.mask = _split(space) if self.choices else (space, ())
        self.unused = [path[-1] for path, size in _entries(space) if path != self.mask and self._is_like(path, size)]
        self.entry = None
        if self.mask and len(self.space) == 1:
            self.entry, self.space = next(iter(self.space.items()))
        self.plain = isinstance(self.space, spaces.Box)
        try:
            self.obs = int(spaces.flatdim(self.space))
        except (NotImplementedError, ValueError, TypeError) as error:
            raise Refusal(
                f"{self.agent} observes {_text(self.space)}; expected a space that Gymnasium can flatten: {OBSERVE}."
            ) from error
        if not 1 <= self.obs <= LARGEST:
            raise Refusal(
                f"{self.agent} observes {self.obs:,} numbers ({_text(self.space)}); expected 1 to {LARGEST:,}: "
                f"{OBSERVE}."
            )

    def _is_like(self, path: tuple[Any, ...], size: int) -> bool:
        return "mask" in str(path[-1]).lower() or (size == self.choices > 0 and bool(LIKE_MASKS.search(str(path[-1]))))

    def reads_mask(self, info: Mapping[Any, Any]) -> bool:
        """Return whether a mask says which moves are open, in the observation or in infos."""
        return bool(self.mask or (self.choices and MASK in info))

    def notes(self, info: Mapping[Any, Any]) -> list[str]:
        """Return a sentence for each key of an observation, or of infos, that seems to hold a mask and holds none."""
        used = {MASK} if self.choices else set()
        keys = [key for key, value in info.items() if key not in used and self._is_like((key,), array_of(value).size)]
        step = f"call it {MASK}, with a 1 for each open move and a 0 for the others"
        if not self.choices:
            step = "actions are continuous; leave it out, or act by moves"
        return [
            *(f"key {quote(key)} is not used as a mask, but observed as numbers: {step}" for key in self.unused),
            *(f"key {quote(key)} of infos is not used as a mask: {step}" for key in keys),
        ]

    def observe(self, seen: Any, info: Mapping[Any, Any]) -> tuple[np.ndarray, Any]:
        """Return an observation as numbers (O), and a mask of moves (E), None without one."""
        mask = info.get(MASK)
        try:
            if self.mask:
                mask = reduce(getitem, self.mask, seen)
            numbers = self._flat(seen if self.entry is None else seen[self.entry])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Refusal(
                f"{self.agent} observed {quote(seen)}; expected one of {_text(self.space)}: return what its space "
                "says at every step, or correct observation_space."
            ) from error
        if len(numbers) != self.obs:
            raise Refusal(
                f"{self.agent} observed {len(numbers)} numbers; expected {self.obs}, as its space says: return the "
                "same shape at every step, or correct observation_space."
            )
        return numbers, None if mask is None or not self.choices else self._legal(mask)

    def _flat(self, seen: Any) -> np.ndarray:
        if self.plain:
            return np.asarray(seen, np.float32).reshape(-1)
        from gymnasium.spaces import flatten

        return np.asarray(flatten(self.space, seen), np.float32).reshape(-1)

    def _legal(self, mask: Any) -> np.ndarray:
        """Return a mask as booleans (E)."""
        numbers = array_of(mask).reshape(-1)
        if len(numbers) != self.choices or not np.isin(numbers, (0, 1)).all():
            raise Refusal(
                f"{MASK} of {self.agent} is {quote(mask)}; expected {self.choices} numbers, 1 for each move that is "
                "open and 0 for the others."
            )
        return numbers.astype(bool)

    def act(self, numbers: np.ndarray) -> Any:
        """Return an action from numbers in [-1, 1], by ``low + (high - low) (x + 1) / 2``, or from that of a move."""
        if self.choices:
            return self.first + int(numbers[0])
        unit = np.clip(numbers[: self.action].astype(np.float64), -1, 1).reshape(self.shape) + 1
        action = np.clip(self.low + self.half * unit, self.low, self.top)
        return (np.rint(action) if np.issubdtype(self.kind, np.integer) else action).astype(self.kind)


def _split(space: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a space without its mask of moves, and the keys that lead to the mask; a mask alone is observed, too."""
    from gymnasium.spaces import Dict

    if not isinstance(space, Dict):
        return space, ()
    if MASK in space.spaces:
        rest = {key: inner for key, inner in space.items() if key != MASK}
        return Dict(rest) if rest else space, (MASK,)
    for key, inner in space.items():
        rest, path = _split(inner)
        if path:
            return Dict({**space.spaces, key: rest}), (key, *path)
    return space, ()


def _entries(space: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the keys that lead to each entry of a dictionary of spaces, also of one in it, and its numbers."""
    from gymnasium import spaces

    for key, inner in space.items() if isinstance(space, spaces.Dict) else ():
        yield (*above, key), spaces.flatdim(inner) if inner.is_np_flattenable else 0
        yield from _entries(inner, (*above, key))


def _text(space: Any) -> str:
    """Return a space as one line."""
    return textwrap.shorten(str(space), 120, placeholder=" ...")
