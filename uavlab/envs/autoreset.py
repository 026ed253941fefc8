"""Autoreset: a step of many worlds that replaces ended worlds without a host sync."""

from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.protocols import Env
from uavlab.core.types import Transition, select, tensors, tree_map

S = TypeVar("S")


@tensors
class Worlds(Generic[S]):
    """Running worlds, their current observations, and how often each was replaced."""

    state: S
    obs: Float[Tensor, "B A O"]
    replaced: Int[Tensor, " B"]


@tensors
class Pool(Generic[S]):
    """New worlds and their observations: P = depth x B, ``depth`` for each running world."""

    state: S
    obs: Float[Tensor, "P A O"]


def start_worlds(env: Env[S], noise: Float[Tensor, "B K"]) -> Worlds[S]:
    """Start worlds from uniform noise."""
    state = env.initial(noise)
    replaced = torch.zeros(len(noise), dtype=torch.int64, device=noise.device)
    return Worlds(state=state, obs=env.observe(state), replaced=replaced)


def make_pool(env: Env[S], noise: Float[Tensor, "depth B K"]) -> Pool[S]:
    """Fill a pool; world b takes entries b, b + B, b + 2 B, ... in turn, so no two worlds share an entry."""
    state = env.initial(noise.flatten(0, 1))
    return tree_map(Tensor.contiguous, Pool(state=state, obs=env.observe(state)))  # gathers from views are slow


def advance(
    env: Env[S], worlds: Worlds[S], action: Float[Tensor, "B A D"], noise: Float[Tensor, "B K"], pool: Pool[S]
) -> tuple[Worlds[S], Transition]:
    """Step every world, and replace ended worlds by new ones from the pool.

    The transition holds the successor's observation before any replacement. ``truncated`` marks worlds that reached
    the time limit before all agents' tasks ended.
    """
    after = env.transition(worlds.state, action, noise)
    next_obs = env.observe(after)
    terminated = env.terminated(after)
    ended = terminated.all(-1)
    truncated = (after.step >= env.spec.horizon) & ~ended  # type: ignore[attr-defined]
    row = Transition(
        obs=worlds.obs,
        action=action,
        reward=env.reward(worlds.state, action, after),
        next_obs=next_obs,
        terminated=terminated,
        truncated=truncated,
    )
    done = ended | truncated
    count = len(worlds.replaced)
    depth = pool.obs.shape[0] // count
    entry = worlds.replaced.remainder(depth) * count + torch.arange(count, device=done.device)
    spare = tree_map(lambda leaf: leaf.index_select(0, entry), pool)  # faster than indexing
    successors = Worlds(
        state=select(done, spare.state, after),
        obs=select(done, spare.obs, next_obs),
        replaced=worlds.replaced + done,
    )
    return successors, row
