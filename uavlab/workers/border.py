"""Results of an environment at the border: what breaks the contract of Gymnasium or PettingZoo is refused by name."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from uavlab.core.text import quote
from uavlab.workers.description import GOES_ON, TERMINATED, TRUNCATED
from uavlab.workers.spaces import Refusal

RESULTS = ("observation", "reward", "terminated", "truncated", "info")


def require_seed(env: Any) -> None:
    """Raise a ``Refusal`` if the reset of an environment, or of the one that it wraps, takes no seed."""
    for reset in (env.reset, getattr(env, "unwrapped", env).reset):
        names = inspect.signature(reset).parameters.values()
        if not any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in names):
            raise Refusal("reset takes no seed; expected reset(self, seed=None, options=None): draw all chance from it")


def reset_pair(result: Any) -> tuple[Any, Mapping[Any, Any]]:
    """Return observation and infos that a reset returned.

    Raises:
        Refusal: It returned no pair of them.
    """
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise Refusal(
            f"reset returned {_kind(result)}; expected a pair, an observation and a dict of infos: return both, as "
            "gym did not before 0.26"
        )
    return result


def step_results(result: Any) -> tuple[Any, ...]:
    """Return the five results of a step.

    Raises:
        Refusal: There are others, or the infos are no dict.
    """
    if not isinstance(result, tuple) or len(result) != len(RESULTS):
        old = ", as gym did before 0.26" if isinstance(result, tuple) and len(result) == 4 else ""
        raise Refusal(
            f"step returned {_kind(result)}{old}; expected a tuple of five: {', '.join(RESULTS)}: return what ended "
            "the task as terminated, and a limit of time as truncated"
        )
    if not isinstance(result[4], Mapping):
        raise Refusal(f"step returned {_kind(result[4])} as info; expected a dict: return an empty one for nothing")
    return result


def by_agent(results: tuple[Any, ...], doing: str, names: tuple[str, ...]) -> None:
    """Raise a ``Refusal`` if a result of a parallel environment is no dict by agent."""
    for name, result in zip(names, results, strict=True):
        if not isinstance(result, Mapping):
            raise Refusal(
                f"{doing} returned {_kind(result)} as {name}; expected a dict by agent: name each agent in it"
            )


def info_of(infos: Mapping[Any, Any], agent: Any) -> Mapping[Any, Any]:
    """Return the infos of an agent; empty without any.

    Raises:
        Refusal: They are no dict.
    """
    info = infos.get(agent, {})
    if not isinstance(info, Mapping):
        raise Refusal(f"{_kind(info)} is the info of {agent}; expected a dict: return an empty one for nothing")
    return info


def reward_of(value: Any, agent: Any) -> float:
    """Return the reward of an agent, also of an array of one.

    Raises:
        Refusal: It is not one number.
    """
    if type(value) is float:
        return value
    array = _array(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise Refusal(
            f"step returned the reward {quote(value)} of {agent}; expected one number: return a float, such as the sum "
            "of its parts"
        )
    return float(array.item())


def end_of(terminated: Any, truncated: Any, agent: Any) -> int:
    """Return whether an agent goes on, or how it ended.

    Raises:
        Refusal: One of both is not true or false.
    """
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        array = _array(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            raise Refusal(f"step returned {name}={quote(value)} of {agent}; expected true or false: return a bool")
    return TERMINATED if terminated else TRUNCATED if truncated else GOES_ON


def _array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError):  # of rows of several lengths, or of a tensor elsewhere
        return np.asarray(None)


def _kind(value: Any) -> str:
    """Return what a result is, in a few words."""
    if isinstance(value, tuple):
        return f"{len(value)} results"
    return f"a {type(value).__name__}"
