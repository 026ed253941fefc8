"""A collector whose replay is uniform and on the device, and whose policy needs no copy."""

import torch

from uavlab.collectors.off_policy import OffPolicyCollector, ReplayConfig, blank_row
from uavlab.core.protocols import Env, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import tree_map
from uavlab.envs.autoreset import start_worlds
from uavlab.replay.buffer import Returns, Uniform
from uavlab.runtime.runtime import Runtime


def collector(
    env: Env,
    policy: Policy,
    config: ReplayConfig,
    rng: Streams,
    rt: Runtime,
    kind: type[OffPolicyCollector] = OffPolicyCollector,
    returns: Returns | None = None,
) -> OffPolicyCollector:
    runs = len(rng.seeds)
    noise = torch.zeros(runs * config.worlds, env.spec.initial_noise, dtype=rng.dtype, device=rng.device)
    example = tree_map(lambda leaf: leaf.unflatten(0, (runs, -1)), blank_row(env, start_worlds(env, noise)))
    return kind(env, policy, config, rng, rt, Uniform(example, config.capacity), lambda: policy, returns)
