"""Autoreset: a step of many worlds that replaces ended worlds without a host sync."""

from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.protocols import Env
from uavlab.core.types import LiveTransition, Transition, select, tensors, tree_map
from uavlab.envs.forms import judge, move, out_of_time, require_like
from uavlab.envs.staged import stage_numbers
from uavlab.envs.tally import Tally, add_step, live_at_start, may_lack_agents, start_tally

S = TypeVar("S")


@tensors
class Worlds(Generic[S]):
    """Running worlds, their current observations, and how often each was replaced."""

    state: S
    obs: Any  # Float[Tensor, "B A O"] | ChoiceObs | MapObs
    replaced: Int[Tensor, " B"]
    stage_number: Int[Tensor, " B"] | None  # of a curriculum, at which each world started; None without one
    tally: Tally | None  # of figures of episodes; None where they are not logged


@tensors
class LiveWorlds(Worlds[S]):
    """Running worlds of agents that may end before the others, and which of them go on."""

    live: Bool[Tensor, "B A"]


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
    """Start worlds from uniform noise.

    With ``deaths`` they keep which agents go on, with ``tally`` figures of the episodes that end.
    """
    state = tree_map(Tensor.contiguous, env.initial(noise))  # as after a step, so that it is compiled once
    replaced = torch.zeros(len(noise), dtype=torch.int64, device=noise.device)
    parts = {"state": state, "obs": env.observe(state), "replaced": replaced}
    parts["stage_number"] = stage_numbers(env, noise)
    parts["tally"] = start_tally(env, noise) if tally else None
    if not deaths:
        return Worlds(**parts)
    return LiveWorlds(**parts, live=live_at_start(env, state, len(noise), noise.device))


def make_pool(env: Env[S], noise: Float[Tensor, "depth B K"], worlds: Worlds[S] | None = None) -> Pool[S]:
    """Fill a pool; world b takes entries b, b + B, b + 2 B, ... in turn, so no two worlds share an entry."""
    if hasattr(env, "initial_where"):
        return Pool(state=noise.flatten(0, 1), obs=None, stage_number=stage_numbers(env, noise.flatten(0, 1)))
    state = env.initial(noise.flatten(0, 1))
    pool = Pool(state=state, obs=env.observe(state), stage_number=stage_numbers(env, noise.flatten(0, 1)))
    if worlds is not None:
        require_like(env, "initial", state, worlds.state, noise.shape[:2].numel())
        require_like(env, "observe", pool.obs, worlds.obs, noise.shape[:2].numel())
    return tree_map(Tensor.contiguous, pool)  # gathers from views are slow


def begin(env: Env[S], noise: Pool[S], needed: Bool[Tensor, " B"]) -> Pool[S]:
    """Start the worlds that are needed from their noise; the others are blank."""
    state = env.initial_where(noise.state, needed)  # type: ignore[attr-defined]
    return Pool(state=state, obs=env.observe(state), stage_number=noise.stage_number)


def advance(
    env: Env[S], worlds: Worlds[S], action: Float[Tensor, "B A D"], noise: Float[Tensor, "B K"], pool: Pool[S]
) -> tuple[Worlds[S], Transition]:
    """Step every world, and replace ended worlds by new ones from the pool.

    The transition holds the successor's observation before any replacement. ``truncated`` marks worlds that reached
    the time limit before all agents' tasks ended. That of ``LiveWorlds`` is a ``LiveTransition``.
    """
    after, next_obs = move(env, worlds.state, action, noise, worlds.obs)
    reward, terminated = judge(env, worlds.state, action, after, noise)
    ended = terminated.all(-1)
    truncated = out_of_time(env, after) & ~ended
    row = {
        "obs": worlds.obs,
        "action": action,
        "reward": reward,
        "next_obs": next_obs,
        "terminated": terminated,
        "truncated": truncated,
        "stage_number": worlds.stage_number,
    }
    done = ended | truncated
    count = len(worlds.replaced)
    depth = len(pool.state if isinstance(pool.state, Tensor) else pool.state.step) // count  # type: ignore[attr-defined]
    entry = worlds.replaced.remainder(depth) * count + torch.arange(count, device=done.device)
    spare = tree_map(lambda leaf: leaf.index_select(0, entry), pool)  # faster than indexing
    if isinstance(spare.state, Tensor):
        spare = begin(env, spare, done)
    successors = {
        "state": select(done, spare.state, after),
        "obs": select(done, spare.obs, next_obs),
        "replaced": worlds.replaced + done,
        "stage_number": select(done, spare.stage_number, worlds.stage_number),
        "tally": worlds.tally,
    }
    if worlds.tally is not None:
        ends = torch.stack((ended, truncated))
        successors["tally"] = add_step(env, worlds.tally, (worlds.state, action, after), reward, ends)
    if not isinstance(worlds, LiveWorlds):
        return Worlds(**successors), Transition(**row)
    live = worlds.live & ~terminated
    if may_lack_agents(env):
        live = torch.where(done[:, None], env.takes_part(spare.state), live)  # type: ignore[attr-defined]
    else:
        live = live | done[:, None]
    return LiveWorlds(**successors, live=live), LiveTransition(**row, live=worlds.live)
