"""Measures of claims about informative mapping: shares of a team step, what each remedy is worth, the work of a run.

The path on the host is always timed on the CPU, for it knows no other device.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.bench.claims.measures import Bench, Measured, Setting, measure, times_note
from uavlab.bench.compare import cycle_call, prepare, update_call
from uavlab.bench.suites.mapping import one_thread, pooled, profile_host, stepping
from uavlab.bench.timing import interleaved, median, ratio, timed
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.numpy_reference import Array, HostMapping
from uavlab.experiment.config import Config
from uavlab.ops import belief_maps
from uavlab.runtime.runtime import Runtime

CPU = torch.device("cpu")
FULL = "mapping_full"
WORKERS = 4


def count_missions(updates: int, batch: int, minibatches: int, budget: int, uavs: int = 4) -> float:
    """Count the missions of a run of the published program, by its own formula.

    Args:
        updates: Training steps, there called episodes.
        batch: Moves of a minibatch.
        minibatches: Minibatches of a training step.
        budget: Measurements of each UAV after its first.
        uavs: UAVs.
    """
    return updates * batch * minibatches / ((budget + 1) * uavs)


@measure
def missions(bench: Bench, updates: int, batch: int, minibatches: int, budget: int) -> Measured:
    """Count the missions of a run of the published program with four UAVs."""
    note = f"{updates:,} x {batch} x {minibatches} moves, {4 * (budget + 1)} in a mission"
    return Measured(count_missions(updates, batch, minibatches, budget), note=note)


def task(bench: Bench) -> Any:
    """Return the task of the claims."""
    return bench.preset(FULL).env


def host(bench: Bench, kind: type[HostMapping] = HostMapping) -> HostMapping:
    """Return the task as it is computed on the host."""
    env = task(bench)
    return kind(**{f.name: getattr(env, f.name) for f in fields(env)})


@measure
def host_share(bench: Bench, part: str) -> Measured:
    """Measure the share of a team step on the host that one of its parts takes."""
    profile = bench.once("host", lambda: profile_host(host(bench), bench.rounds))
    shares = {row["name"]: row["share"] for row in profile["parts"]}
    largest = max(set(shares) - {"all else"}, key=shares.__getitem__)
    note = f"most goes to {largest}, {shares[largest]:.0%}; by a profile that makes a step "
    return Measured(shares[part], note=f"{note}{profile['profiled_over_plain']:.2f} times as long")


@measure
def process_pool(bench: Bench) -> Measured:
    """Measure team steps of four missions in a pool of four processes over one process."""
    env = host(bench)
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=one_thread) as workers:
        return speedup(stepping(env, WORKERS, Runtime()), pooled(env, workers, WORKERS), bench.few)


class CachedConstants(HostMapping):
    """The task on the host with its constant channels cached."""

    def _constant(self, value: float) -> Array:
        return _constant_channel(self.lattice, value)


@lru_cache
def _constant_channel(size: int, value: float) -> Array:
    return np.full((size, size), value)


@measure
def cached_constants(bench: Bench) -> Measured:
    """Measure team steps on the host with constant channels cached over those that make them anew."""
    plain, cached = (stepping(host(bench, kind), 1, Runtime()) for kind in (HostMapping, CachedConstants))
    return speedup(plain, cached, bench.rounds)


def speedup(slow: Callable[[], Any], fast: Callable[[], Any], rounds: int) -> Measured:
    """Measure how many times faster one call is than another."""
    seconds = interleaved({"slow": slow, "fast": fast}, rounds, CPU, warm_up=1)
    over = ratio(seconds["slow"], seconds["fast"])
    note = times_note(1e3 * median(seconds["slow"]), 1e3 * median(seconds["fast"]))
    return Measured(over["median"], over["low"], over["high"], note)


def compare_resizing(env: MappingEnv, steps: int = 3, seed: int = 0) -> dict[str, Float[Tensor, "L L"]]:
    """Resize the team's map of a random mission to the lattice.

    Returns:
        ``opencv`` by INTER_AREA, ``area`` by two matrices, and ``bilinear``, the default of image libraries on a GPU:
        four cells decide, whatever lies between them.
    """
    dice = torch.Generator().manual_seed(seed)
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=dice))
    for _ in range(steps):
        action = torch.randint(env.spec.choices, (1, env.uavs), generator=dice)
        state = env.transition(state, action, torch.rand(1, env.spec.step_noise, generator=dice))
    belief = belief_maps.belief(state.logits[:, -1], torch.float32)
    rows = belief_maps.area_matrix(env.cells, env.lattice)
    size = (env.lattice, env.lattice)
    bilinear = torch.nn.functional.interpolate(belief[:, None], size, mode="bilinear", align_corners=False)
    opencv = torch.from_numpy(cv2.resize(belief[0].numpy(), size, interpolation=cv2.INTER_AREA))
    return {"opencv": opencv, "area": belief_maps.area_resize(belief, rows, rows)[0], "bilinear": bilinear[0, 0]}


@measure
def equal_resizing(bench: Bench) -> Measured:
    """Return 1 if bilinear resizing gives the averages that resizing by area gives, to a thousandth, else 0."""
    maps = compare_resizing(task(bench))
    most = (maps["area"] - maps["bilinear"]).abs().max().item()
    return Measured(float(most < 1e-3), note=f"beliefs differ by up to {most:.2g}")


@measure
def input_seconds(bench: Bench, worlds: int) -> Measured:
    """Measure the seconds in which the inputs of a training step are made on the host, mission by mission."""
    env = host(bench)

    def seconds() -> float:
        state = env.initial(torch.rand(1, env.spec.initial_noise))
        return median(interleaved({"observe": lambda: env.observe(state)}, bench.rounds, CPU, warm_up=1)["observe"])

    each, count = bench.once("observe", seconds), worlds * env.measurements
    return Measured(each * count, note=f"{1e3 * each:.3g} ms for a team's inputs, {count} times")


def time_steps(bench: Bench, preset: str, setting: Setting) -> list[float]:
    """Time training steps (s): their missions, and learning from them."""

    def seconds() -> list[float]:
        calls, _ = prepare({"step": partial(cycle_call, bench.preset(preset, setting))})
        return [timed(calls["step"].call, calls["step"].rt.device) for _ in range(bench.few)]

    return bench.once(f"steps {preset} {setting}", seconds)


@measure
def training_step(bench: Bench, preset: str, setting: Setting) -> Measured:
    """Measure the seconds of a training step."""
    each = time_steps(bench, preset, setting)
    moves = _moves(bench.preset(preset, setting))
    note = f"{moves} moves; {min(each):.3g} to {max(each):.3g} s in {len(each)} repetitions"
    return Measured(median(each), note=note)


def _moves(config: Config) -> int:
    spec = config.env.spec
    return config.source.worlds * spec.horizon * spec.agents


@measure
def input_share(bench: Bench, preset: str, setting: Mapping[str, Any]) -> Measured:
    """Measure the share of a training step in which inputs are made on the host."""
    inputs, step = input_seconds(bench, setting["worlds"]), median(time_steps(bench, preset, setting))
    return Measured(inputs.value / step, note=f"{inputs.value:.3g} of {step:.3g} s; on a CPU nothing is copied")


@measure
def training_hours(bench: Bench, preset: str, setting: Setting) -> Measured:
    """Measure the hours of all training steps of a preset."""
    step = median(time_steps(bench, preset, setting))
    updates = bench.preset(preset, setting).run.updates or 0
    return Measured(updates * step / 3600, note=f"{updates:,} training steps of {step:.3g} s, scores left out")


@measure
def moves_per_second(bench: Bench) -> Measured:
    """Measure the moves of UAVs in a second of training with maps on the device."""
    step, moves = median(time_steps(bench, FULL, {})), _moves(bench.preset(FULL))
    return Measured(moves / step, note=f"{moves} moves in a training step of {step:.3g} s, learning included")


@measure
def half_width(bench: Bench) -> Measured:
    """Measure updates with networks of half the width over those of the published width."""
    settings: dict[str, Setting] = {"whole": {}, "half": {"width": 128, "hidden": 128}}
    calls, _ = prepare({name: partial(update_call, bench.preset(FULL, each)) for name, each in settings.items()})
    return speedup(calls["whole"].call, calls["half"].call, bench.few)


@measure
def mapping_utilisation(bench: Bench) -> Measured:
    """Measure the share of a training step in which a kernel runs on the GPU."""
    bench.need_gpu("device utilisation")
    value = bench.device_share(cycle_call(bench.preset(FULL)), bench.few)
    return Measured(value, note="with maps on the device, for those of the host know no GPU")
