"""Measures of claims about informative mapping: the missions of a run, and remedies on the host, timed on a CPU."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import lru_cache
from multiprocessing import get_context

import numpy as np
import torch

from uavlab.envs.mapping.numpy_reference import Array, HostMapping
from uavlab.runtime.runtime import Runtime
from uavlab.storage.machine import usable_cores
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable, measure, speedup
from uavlab_lab.suites.mapping import one_thread, team_step

CPU = torch.device("cpu")
FULL = "mapping_full"
WORKERS = 4


def count_missions(updates: int, batch: int, minibatches: int, budget: int, uavs: int = 4) -> float:
    """Count the missions of a run of the published program, by its own formula.

    ``updates`` are training steps, there called episodes; ``batch`` is in moves; ``budget`` counts the measurements of
    each UAV after its first.
    """
    return updates * batch * minibatches / ((budget + 1) * uavs)


@measure
def missions(bench: Bench, updates: int, batch: int, minibatches: int, budget: int) -> Estimate:
    """Count the missions of a run of the published program with four UAVs."""
    note = f"{updates:,} x {batch} x {minibatches} moves, {4 * (budget + 1)} in a mission"
    return Estimate(count_missions(updates, batch, minibatches, budget), note=note)


def host(bench: Bench, kind: type[HostMapping] = HostMapping) -> HostMapping:
    """Build the task of the claims in its implementation on the host."""
    env = bench.config({}, preset=FULL).env
    return kind(**{f.name: getattr(env, f.name) for f in fields(env)})


@measure
def observation_pool(bench: Bench) -> Estimate:
    """Measure the speed-up of preparing the inputs of four missions by a pool of four processes over one process."""
    env = host(bench)
    states = [env.initial(torch.rand(1, env.spec.initial_noise)) for _ in range(WORKERS)]
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=one_thread) as workers:
        one, pool = (lambda: [env.observe(state) for state in states]), (lambda: list(workers.map(env.observe, states)))
        result = speedup(one, pool, bench.rounds, CPU)
    if usable_cores() < WORKERS:
        raise NotTestable(f"needs {WORKERS} cores; with {usable_cores()} it is {result.value:.2f}x, {result.note}")
    return result


class CachedConstants(HostMapping):
    """The task on the host with its constant channels cached."""

    def _constant(self, value: float) -> Array:
        return _constant_channel(self.lattice, value)


@lru_cache
def _constant_channel(size: int, value: float) -> Array:
    return np.full((size, size), value)


@measure
def cached_constants(bench: Bench) -> Estimate:
    """Measure the speed-up of team steps on the host by caching constant channels."""
    plain, cached = (team_step(host(bench, kind), 1, Runtime()) for kind in (HostMapping, CachedConstants))
    return speedup(plain, cached, bench.rounds, CPU)
