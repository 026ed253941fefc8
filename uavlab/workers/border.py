"""Results of an environment at the border: what breaks the contract of Gymnasium or PettingZoo is refused by name."""

import inspect
from collections.abc import Mapping
from typing import Any

from uavlab.core.text import quote
from uavlab.workers.description import GOES_ON, TERMINATED, TRUNCATED
from uavlab.workers.spaces import Refusal, array_of

RESULTS = ("observation", "reward", "terminated", "truncated", "info")
Infos = Mapping[Any, Any]


def require_seed(env: Any) -> None:
    """Raise a ``Refusal`` if the reset of an environment, or of the one that it wraps, takes no seed."""
    for reset in (env.reset, getattr(env, "unwrapped", env).reset):
        names = inspect.signature(reset).parameters.values()
        if not any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in names):
            raise Refusal("reset takes no seed; expected reset(self, seed=None, options=None): draw all chance from it")


def reset_pair(result: Any) -> tuple[Any, Infos]:
    """Return observation and infos that a reset returned; raise a ``Refusal`` if it returned no pair of them."""
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise Refusal(
            f"reset returned {_kind(result)}; expected a pair, an observation and a dict of infos: return both, as "
            "gym did not before 0.26"
        )
    return result


def step_results(result: Any) -> tuple[Any, ...]:
    """Return the five results of a step; raise a ``Refusal`` if there are others, or the infos are no dict."""
    if not isinstance(result, tuple) or len(result) != len(RESULTS):
        old = ", as gym did before 0.26" if isinstance(result, tuple) and len(result) == 4 else ""
        raise Refusal(
            f"step returned {_kind(result)}{old}; expected a tuple of five: {', '.join(RESULTS)}: return what ended "
            "the task as terminated, and a limit of time as truncated"
        )
    return *result[:4], _dict(result[4], "info of step")


def by_agent(results: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
    """Return results of a parallel environment; raise a ``Refusal`` if one is no dict by agent."""
    return tuple(_dict(result, f"result {number} of {doing}") for number, result in enumerate(results, 1))


def info_of(infos: Infos, agent: Any) -> Infos:
    """Return the infos of an agent, empty without any; raise a ``Refusal`` if they are no dict."""
    return _dict(infos.get(agent, {}), f"info of {agent}")


def _dict(value: Any, what: str) -> Any:
    if not isinstance(value, Mapping):
        raise Refusal(f"the {what} is {_kind(value)}; expected a dict: return an empty one for nothing")
    return value


def reward_of(value: Any, agent: Any) -> float:
    """Return the reward of an agent, also of an array of one; raise a ``Refusal`` if it is not one number."""
    if type(value) is float:
        return value
    array = array_of(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise Refusal(
            f"step returned the reward {quote(value)} of {agent}; expected one number: return a float, such as the sum "
            "of its parts"
        )
    return float(array.item())


def end_of(terminated: Any, truncated: Any, agent: Any) -> int:
    """Return whether an agent goes on, or how it ended; raise a ``Refusal`` if one of both is not true or false."""
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        array = array_of(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            raise Refusal(f"step returned {name}={quote(value)} of {agent}; expected true or false: return a bool")
    return TERMINATED if terminated else TRUNCATED if truncated else GOES_ON


def _kind(value: Any) -> str:
    return f"{len(value)} results" if isinstance(value, tuple) else f"a {type(value).__name__}"
