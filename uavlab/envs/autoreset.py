"""Autoreset: a checked step of many worlds, of which those that ended are replaced without a host sync."""

import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.installation import program
from uavlab.core.protocols import Env
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import LiveTransition, Transition, select, tensors, tree_map
from uavlab.envs.staged import stage_numbers
from uavlab.envs.tally import Tally, add_step, live_at_start, may_lack_agents, start_tally

FUNCTIONS = {"spec", "initial", "transition", "observe", "reward", "terminated", "measure"}

S = TypeVar("S")


@tensors
class Worlds(Generic[S]):
    """Running worlds, their current observations, and how often each was replaced."""

    state: S
    obs: Any  # Float[Tensor, "B A O"] | ChoiceObs | MapObs
    replaced: Int[Tensor, " B"]
    stage_number: Int[Tensor, " B"] | None  # of a curriculum, at which each world started; None without one
    tally: Tally | None  # of figures of episodes; None where they are not logged
    live: Bool[Tensor, "B A"] | None = None  # agents that go on; None where all end together


@tensors
class Pool(Generic[S]):
    """New worlds and their observations: P = depth x B, ``depth`` for each running world.

    Of an environment whose worlds are costly to start (``initial_where``), ``state`` is their noise (P K), and ``obs``
    None: a world starts when it is taken.
    """

    state: S | Tensor
    obs: Any  # Float[Tensor, "P A O"] | ChoiceObs | MapObs
    stage_number: Int[Tensor, " P"] | None


def start_worlds(env: Env[S], noise: Float[Tensor, "B K"], deaths: bool = False, tally: bool = False) -> Worlds[S]:
    """Start worlds; with ``deaths`` they keep which agents go on, with ``tally`` figures of the episodes that end."""
    state = tree_map(Tensor.contiguous, env.initial(noise))  # as after a step, so that it is compiled once
    return Worlds(
        state=state,
        obs=env.observe(state),
        replaced=torch.zeros(len(noise), dtype=torch.int64, device=noise.device),
        stage_number=stage_numbers(env, noise),
        tally=start_tally(env, noise) if tally else None,
        live=live_at_start(env, state, len(noise), noise.device) if deaths else None,
    )


def make_pool(env: Env[S], noise: Float[Tensor, "depth B K"], worlds: Worlds[S] | None = None) -> Pool[S]:
    """Fill a pool; world b takes entries b, b + B, b + 2 B, ... in turn, so no two worlds share an entry."""
    noise = noise.flatten(0, 1)
    if hasattr(env, "initial_where"):
        return Pool(state=noise, obs=None, stage_number=stage_numbers(env, noise))
    state = env.initial(noise)
    pool = Pool(state=state, obs=env.observe(state), stage_number=stage_numbers(env, noise))
    if worlds is not None:
        require_like(env, "initial", state, worlds.state, len(noise))
        require_like(env, "observe", pool.obs, worlds.obs, len(noise))
    return tree_map(Tensor.contiguous, pool)  # gathers from views are slow


def take_spare(env: Env[S], pool: Pool[S], replaced: Int[Tensor, " B"], done: Bool[Tensor, " B"]) -> Pool[S]:
    """Return the next new world of each running one; those that are not started are blank unless it is ``done``."""
    count = len(replaced)
    depth = len(pool.state if isinstance(pool.state, Tensor) else pool.state.step) // count  # type: ignore[attr-defined]
    entry = replaced.remainder(depth) * count + torch.arange(count, device=done.device)
    spare = tree_map(lambda leaf: leaf.index_select(0, entry), pool)  # faster than indexing
    if not isinstance(spare.state, Tensor):
        return spare
    state = env.initial_where(spare.state, done)  # type: ignore[attr-defined]
    return Pool(state=state, obs=env.observe(state), stage_number=spare.stage_number)


def advance(
    env: Env[S], worlds: Worlds[S], action: Float[Tensor, "B A D"], noise: Float[Tensor, "B K"], pool: Pool[S]
) -> tuple[Worlds[S], Transition]:
    """Step every world, and replace ended worlds by new ones from the pool.

    The transition holds the successor's observation before any replacement. ``truncated`` marks worlds that reached
    the time limit before all agents' tasks ended. That of worlds with ``live`` agents is a ``LiveTransition``.
    """
    after, next_obs = move(env, worlds.state, action, noise, worlds.obs)
    reward, terminated = judge(env, worlds.state, action, after, noise)
    ended = terminated.all(-1)
    truncated = out_of_time(env, after) & ~ended
    done = ended | truncated
    row = worlds.obs, action, reward, next_obs, terminated, truncated
    spare, live, tally, stage = take_spare(env, pool, worlds.replaced, done), None, worlds.tally, worlds.stage_number
    if tally is not None:
        tally = add_step(env, tally, (worlds.state, action, after), reward, torch.stack((ended, truncated)))
    if worlds.live is None:
        transition = Transition(*row, stage_number=stage)
    else:
        transition = LiveTransition(*row, stage_number=stage, live=worlds.live)
        live = worlds.live & ~terminated
        if may_lack_agents(env):
            live = torch.where(done[:, None], env.takes_part(spare.state), live)  # type: ignore[attr-defined]
        else:
            live = live | done[:, None]
    successors = Worlds(
        state=select(done, cast(S, spare.state), after),
        obs=select(done, spare.obs, next_obs),
        replaced=worlds.replaced + done,
        stage_number=select(done, spare.stage_number, stage),
        tally=tally,
        live=live,
    )
    return successors, transition


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
        _refuse(env, function, *("None" if part is None else f"a {type(part).__name__}" for part in (result, like)))
    for field in fields(like) if like is not None else ():
        part, model = getattr(result, field.name), getattr(like, field.name)
        same = isinstance(part, Tensor) and isinstance(model, Tensor) and part.shape == model.shape
        if not same or part.dtype != model.dtype:
            require_like(env, f"{function}.{field.name}", part, model, count)


def require_tensor(env: Any, function: str, result: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(result, Tensor):
        _refuse(env, function, f"a {type(result).__name__}", f"a tensor of shape {tuple(shape)}")
    if result.shape != shape or result.dtype != dtype:
        _refuse(env, function, f"{result.dtype} of shape {tuple(result.shape)}", f"{dtype} of shape {tuple(shape)}")


def _refuse(env: Any, function: str, got: str, expected: str) -> NoReturn:
    name = type(env).__name__
    advice = f"Keep types and shapes at every step; see `{program()} check`."
    raise ConfigError(f"{name}.{function}: got {got}; expected {expected}. {advice}")


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
