"""Measures of claims about informative mapping: shares of a team step, the gain of each remedy, the work of a run.

The task on the host is always timed on the CPU.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.benchmarks.claims.measures import Bench, Estimate, Setting, measure, once
from uavlab.benchmarks.compare import prepare
from uavlab.benchmarks.suites.mapping import one_thread, profile_host, team_step
from uavlab.benchmarks.timing import median, ratio, time_call, time_in_turn
from uavlab.core.extras import require
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.numpy_reference import Array, HostMapping, area_resize
from uavlab.ops import belief_maps
from uavlab.runtime.runtime import Runtime

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
def host_share(bench: Bench, part: str) -> Estimate:
    """Measure the share of a team step on the host that one of its parts takes."""
    profile = profile_host(host(bench), bench.rounds)
    shares = {row["name"]: row["share"] for row in profile["parts"]}
    largest = max(set(shares) - {"all else"}, key=shares.__getitem__)
    note = f"most goes to {largest}, {shares[largest]:.0%}; by a profile that makes a step "
    return Estimate(shares[part], note=f"{note}{profile['profiled_over_plain']:.2f} times as long")


@measure
def process_pool(bench: Bench) -> Estimate:
    """Measure the speed-up of team steps of four missions by a pool of four processes over one process."""
    env = host(bench)
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=one_thread) as workers:
        return speedup(team_step(env, WORKERS, Runtime()), team_step(env, WORKERS, Runtime(), workers), bench.few)


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
    return speedup(plain, cached, bench.rounds)


def speedup(slow: Callable[[], Any], fast: Callable[[], Any], rounds: int) -> Estimate:
    """Measure how many times faster one call is than another."""
    seconds = time_in_turn({"slow": slow, "fast": fast}, rounds, CPU, warm_up=1)
    note = f"{1e3 * median(seconds['slow']):.3g} ms before, {1e3 * median(seconds['fast']):.3g} ms after"
    return Estimate(**ratio(seconds["slow"], seconds["fast"], "value"), note=note)


def compare_resizing(env: MappingEnv, steps: int = 3, seed: int = 0) -> dict[str, Float[Tensor, "L L"]]:
    """Resize the team's map of a random mission to the lattice.

    Returns:
        ``opencv`` by INTER_AREA, ``area`` by two matrices, and ``bilinear``, the default of image libraries on a GPU,
        which interpolates four cells and ignores all others.
    """
    dice = torch.Generator().manual_seed(seed)
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=dice))
    for _ in range(steps):
        action = torch.randint(env.spec.choices, (1, env.uavs), generator=dice)
        state = env.transition(state, action, torch.rand(1, env.spec.step_noise, generator=dice))
    belief = belief_maps.belief(state.logits[:, -1], torch.float32)
    rows = belief_maps.area_matrix(env.cells, env.lattice)
    size = env.lattice
    bilinear = torch.nn.functional.interpolate(belief[:, None], (size, size), mode="bilinear", align_corners=False)
    require("mapping", "resizing by OpenCV", "cv2")
    opencv = torch.from_numpy(area_resize(belief[0].numpy(), size))
    return {"opencv": opencv, "area": belief_maps.area_resize(belief, rows, rows)[0], "bilinear": bilinear[0, 0]}


@measure
def equal_resizing(bench: Bench) -> Estimate:
    """Return 1 if bilinear resizing gives the averages that resizing by area gives, to a thousandth, else 0."""
    maps = compare_resizing(bench.config({}, preset=FULL).env)
    most = (maps["area"] - maps["bilinear"]).abs().max().item()
    return Estimate(float(most < 1e-3), note=f"beliefs differ by up to {most:.2g}")


@measure
@once
def input_seconds(bench: Bench, worlds: int) -> Estimate:
    """Measure the time to compute the inputs of a training step on the host, mission by mission (s)."""
    env = host(bench)
    state = env.initial(torch.rand(1, env.spec.initial_noise))
    each = median(time_in_turn({"": lambda: env.observe(state)}, bench.rounds, CPU, warm_up=1)[""])
    count = worlds * env.measurements
    return Estimate(each * count, note=f"{1e3 * each:.3g} ms for a team's inputs, {count} times")


@once
def time_steps(bench: Bench, preset: str, setting: Setting) -> list[float]:
    """Time training steps (s): their missions, and learning from them."""
    one = prepare({"": bench.config(setting, preset=preset)}, "cycle")[""]
    return [time_call(one.call, one.rt.device) for _ in range(bench.few)]


@measure
def training_step(bench: Bench, preset: str, setting: Setting) -> Estimate:
    """Measure the seconds of a training step."""
    each = time_steps(bench, preset, setting)
    note = f"{_moves(bench, preset, setting)} moves; {min(each):.3g} to {max(each):.3g} s in {len(each)} repetitions"
    return Estimate(median(each), note=note)


def _moves(bench: Bench, preset: str, setting: Setting) -> int:
    config = bench.config(setting, preset=preset)
    return config.task.collector.pace(config)[0]


@measure
def input_share(bench: Bench, preset: str, setting: Setting) -> Estimate:
    """Measure the share of a training step in which the host computes inputs."""
    inputs, step = input_seconds(bench, worlds=setting["worlds"]), median(time_steps(bench, preset, setting))
    return Estimate(inputs.value / step, note=f"{inputs.value:.3g} of {step:.3g} s; on a CPU nothing is copied")


@measure
def training_hours(bench: Bench, preset: str, setting: Setting) -> Estimate:
    """Measure the hours of all training steps of a preset."""
    step, updates = median(time_steps(bench, preset, setting)), bench.config(setting, preset=preset).run.updates or 0
    return Estimate(updates * step / 3600, note=f"{updates:,} training steps of {step:.3g} s, scores left out")


@measure
def moves_per_second(bench: Bench) -> Estimate:
    """Measure the moves of UAVs in a second of training with maps on the device."""
    step, moves = median(time_steps(bench, FULL, {})), _moves(bench, FULL, {})
    return Estimate(moves / step, note=f"{moves} moves in a training step of {step:.3g} s, learning included")
