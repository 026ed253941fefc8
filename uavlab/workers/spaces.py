"""Spaces of Gymnasium as numbers: what an agent observes as a vector, and its actions from [-1, 1] or as moves."""

import math
import textwrap
from typing import Any

import numpy as np

LARGEST = 20_000  # numbers that an agent may observe
MOST_MOVES = 10_000
MASK = "action_mask"


class Refusal(Exception):  # noqa: N818 - it is no fault of the program
    """What this package does not serve, or what breaks the contract of an environment; a whole sentence."""


class Codec:
    """One agent's observations as numbers, and numbers as its actions.

    Attributes:
        obs: Numbers that it observes.
        action: Dimensions of its actions; 0 where it chooses.
        choices: Moves; 0 where it acts continuously.
    """

    def __init__(self, agent: str, observation: Any, action: Any) -> None:
        """Read the spaces of an agent.

        Raises:
            Refusal: They are not served.
        """
        from gymnasium import spaces

        self.agent, self.space, self.masked = agent, observation, False
        if isinstance(observation, spaces.Dict) and {MASK, "observation"} == set(observation.keys()):
            self.space, self.masked = observation["observation"], True
        self.plain = isinstance(self.space, spaces.Box)
        try:
            self.obs = int(spaces.flatdim(self.space))
        except (NotImplementedError, ValueError, TypeError) as error:
            raise Refusal(
                f"{agent} observes {_text(self.space)}; expected a space that Gymnasium can flatten: wrap the "
                "environment so that it returns one of Box."
            ) from error
        if not 1 <= self.obs <= LARGEST:
            raise Refusal(
                f"{agent} observes {self.obs:,} numbers ({_text(self.space)}); expected 1 to {LARGEST:,}: wrap the "
                "environment so that it returns features of its images."
            )
        self.action = self.choices = 0
        if isinstance(action, spaces.Discrete):
            self.choices, self.first = int(action.n), int(action.start)
            if self.choices > MOST_MOVES:
                raise Refusal(
                    f"{agent} chooses among {self.choices:,} moves; expected at most {MOST_MOVES:,}: wrap the "
                    "environment so that a move stands for several, or its actions are continuous."
                )
        elif isinstance(action, spaces.Box) and math.prod(action.shape) > 0:
            low, high = action.low.astype(np.float64), action.high.astype(np.float64)
            if not (np.isfinite(low).all() and np.isfinite(high).all() and np.isfinite(high - low).all()):
                raise Refusal(
                    f"{agent} acts in {_text(action)}, which has no bounds; expected finite ones: wrap the "
                    "environment, for example by gymnasium.wrappers.RescaleAction, or clip its actions."
                )
            self.low, self.half, self.kind, self.shape = low, (high - low) / 2, action.dtype, action.shape
            self.action, self.top = math.prod(action.shape), high
        else:
            raise Refusal(
                f"{agent} acts in {_text(action)}; expected Discrete, or Box with bounds: wrap the environment so that "
                "each combination of its parts is one move."
            )

    def observe(self, seen: Any, info: Any) -> tuple[np.ndarray, Any]:
        """Return an observation as numbers (O), and a mask of moves (E), None without one.

        Raises:
            Refusal: They have another length than the spaces.
        """
        mask = info.get(MASK) if isinstance(info, dict) else None
        if self.masked:
            seen, mask = seen["observation"], seen[MASK]
        if self.plain:
            numbers = np.asarray(seen, np.float32).reshape(-1)
        else:
            from gymnasium.spaces import flatten

            numbers = np.asarray(flatten(self.space, seen), np.float32).reshape(-1)
        if len(numbers) != self.obs:
            raise Refusal(
                f"{self.agent} observed {len(numbers)} numbers; expected {self.obs}, as its space says: return the "
                "same shape at every step, or correct observation_space."
            )
        if mask is None or not self.choices:
            return numbers, None
        mask = np.asarray(mask).astype(bool).reshape(-1)
        if len(mask) != self.choices or not mask.any():
            raise Refusal(
                f"{MASK} of {self.agent} has {len(mask)} numbers, of which {mask.sum()} are not 0; expected "
                f"{self.choices}, not all 0: leave a move open in every state."
            )
        return numbers, mask

    def act(self, numbers: np.ndarray) -> Any:
        """Return an action from numbers in [-1, 1], by ``low + (high - low) (x + 1) / 2``, or from that of a move."""
        if self.choices:
            return self.first + int(numbers[0])
        unit = np.clip(numbers[: self.action].astype(np.float64), -1, 1).reshape(self.shape) + 1
        action = np.clip(self.low + self.half * unit, self.low, self.top)
        return (np.rint(action) if np.issubdtype(self.kind, np.integer) else action).astype(self.kind)


def _text(space: Any) -> str:
    """Return a space as one line."""
    return textwrap.shorten(str(space), 120, placeholder=" ...")
