"""Rows of replay: their shapes and types, and how much memory they take."""

import torch

from uavlab.collectors.off_policy import ReplayConfig
from uavlab.core.protocols import Env
from uavlab.core.types import LiveTransition, Transition, features_of, tree_map
from uavlab.envs.autoreset import Worlds, start_worlds
from uavlab.replay.ring import row_bytes


def blank_row(env: Env, worlds: Worlds) -> Transition:
    """Return one transition per world, for its shapes and types."""
    spec, seen = env.spec, features_of(worlds.obs)
    zero = seen.new_zeros(len(worlds.replaced), spec.agents)
    row = {
        "obs": worlds.obs,
        "action": zero.long() if spec.choices else zero[..., None].expand(-1, -1, spec.action),
        "reward": zero,
        "next_obs": worlds.obs,
        "terminated": zero.bool(),
        "truncated": zero[:, 0].bool(),
        "stage_number": worlds.stage_number,
    }
    return LiveTransition(**row, live=zero.bool()) if spec.deaths else Transition(**row)


def replay_bytes(env: Env, config: ReplayConfig, runs: int) -> int:
    """Return the size of replay (bytes)."""
    row = blank_row(env, start_worlds(env, torch.zeros(1, env.spec.initial_noise)))
    return row_bytes(tree_map(lambda leaf: leaf[None], row)) * config.capacity * runs
