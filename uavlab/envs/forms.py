"""A step of an environment whose results are checked for their types and shapes, without a host sync."""

import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.installation import program
from uavlab.core.protocols import Env
from uavlab.core.registry import ENVIRONMENTS

FUNCTIONS = {"spec", "initial", "transition", "observe", "reward", "terminated", "measure"}

S = TypeVar("S")


def move(env: Env[S], state: S, action: Tensor, noise: Float[Tensor, "B K"], obs: Any = None) -> tuple[S, Any]:
    """Step every world once; return states, and observations of the same types and shapes as ``obs``, if given."""
    after = env.transition(state, action, noise)
    require_like(env, "transition", after, state, len(noise))
    next_obs = env.observe(after)
    if obs is not None:
        require_like(env, "observe", next_obs, obs, len(noise))
    return after, next_obs


def judge(
    env: Env[S], state: S, action: Tensor, after: S, noise: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B A"], Bool[Tensor, "B A"]]:
    """Return rewards and terminations of a step."""
    shape = (len(noise), env.spec.agents)
    terminated = env.terminated(after)
    require_tensor(env, "terminated", terminated, shape, torch.bool)
    reward = env.reward(state, action, after)
    require_tensor(env, "reward", reward, shape, noise.dtype)
    return reward, terminated


def out_of_time(env: Env[S], state: S) -> Bool[Tensor, " B"]:
    """Return which worlds are at the horizon, or are truncated by the environment itself (``truncated``)."""
    late = state.step >= env.spec.horizon  # type: ignore[attr-defined]
    return late | env.truncated(state) if hasattr(env, "truncated") else late


def require_like(env: Any, function: str, result: Any, like: Any, count: int) -> None:
    """Check that a result has the types and shapes of ``like``, for ``count`` worlds."""
    if isinstance(like, Tensor):
        shape = like.shape if len(like) == count else (count, *like.shape[1:])
        require_tensor(env, function, result, shape, like.dtype)
        return
    if type(result) is not type(like):
        _refuse(env, function, *("None" if each is None else f"a {type(each).__name__}" for each in (result, like)))
    for field in fields(like) if like is not None else ():
        name = field.name
        require_like(env, f"{function}.{name}", getattr(result, name), getattr(like, name), count)


def require_tensor(env: Any, function: str, result: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check that a result is a tensor of this shape and type."""
    if not isinstance(result, Tensor):
        _refuse(env, function, f"a {type(result).__name__}", f"a tensor of shape {tuple(shape)}")
    if result.shape != shape or result.dtype != dtype:
        _refuse(env, function, f"{result.dtype} of shape {tuple(result.shape)}", f"{dtype} of shape {tuple(shape)}")


def describe_error(error: Exception) -> str:
    """Return which function of a user's environment raised an error and where; empty if none did."""
    kinds = tuple(entry.kind for entry in ENVIRONMENTS.values() if not entry.kind.__module__.startswith("uavlab."))
    for frame, line in traceback.walk_tb(error.__traceback__):
        env, code = frame.f_locals.get("self"), frame.f_code
        if isinstance(env, kinds) and code.co_name in FUNCTIONS:
            text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"  # torch adds frames of C++
            what = f"{text} at {Path(code.co_filename).name}:{line}"
            return f"{type(env).__name__}.{code.co_name}: raised {what}; expected a result. See `{program()} check`."
    return ""


def _refuse(env: Any, function: str, got: str, expected: str) -> NoReturn:
    name = type(env).__name__
    advice = f"Keep types and shapes at every step; see `{program()} check`."
    raise ConfigError(f"{name}.{function}: got {got}; expected {expected}. {advice}")
