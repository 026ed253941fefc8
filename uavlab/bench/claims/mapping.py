"""What is claimed of informative mapping: shares of a team step, what each remedy is worth, and how much a run makes.

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

from uavlab.bench.claims.leader_follower import Bench, Measure, Measured, Setting, need_gpu
from uavlab.bench.compare import Call, cycle_call, prepare, update_call
from uavlab.bench.suites.mapping import one_thread, pooled, profile_host, stepping
from uavlab.bench.timing import interleaved, median, ratio, timed
from uavlab.envs.mapping.env import Mapping as MappingEnv
from uavlab.envs.mapping.numpy_reference import Array, HostMapping
from uavlab.experiment.config import Config, configure
from uavlab.ops import belief_maps
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.runtime import Runtime

CPU = torch.device("cpu")
FULL, BALANCED, FAST = "mapping_full", "mapping_balanced", "mapping_fast"
HOST = {"maps": "host", "device": "cpu"}
SEEN = {"worlds": 11, "passes": 5, "minibatches": 5}
"""The training step that took 76 s: 640 moves, eleven missions as nearly as whole missions come."""

WORKERS = 4


def missions(updates: int, batch: int, number: int, budget: int, uavs: int = 4) -> float:
    """Count the missions of a run of the published program, by its own formula.

    Args:
        updates: Training steps, there called episodes.
        batch: Moves of a minibatch.
        number: Minibatches of a training step.
        budget: Measurements of each UAV after its first.
        uavs: UAVs.
    """
    return updates * batch * number / ((budget + 1) * uavs)


PROGRAM = {
    FULL: missions(1500, 64, 3, 14),
    BALANCED: missions(1000, 48, 3, 12),
    "budget 10": missions(800, 48, 2, 10),
    FAST: missions(500, 32, 2, 8),
}
"""Missions of a run with the published program's settings, by the name of ours that come nearest."""


def counted(bench: Bench, value: float, note: str) -> Measured:
    """Give a number that is worked out, not timed."""
    return Measured(value, note=note)


def config(bench: Bench, preset: str, setting: Setting) -> Config:
    """Make a setting of a run valid; what the bench sets for other tasks alone is left out."""
    known = configure(preset).values
    return configure(preset, {name: value for name, value in bench.settings.items() if name in known}, setting)


def task(bench: Bench) -> MappingEnv:
    """Give the task of the claims."""
    env: Any = config(bench, FULL, {}).env
    return env


def host(bench: Bench) -> HostMapping:
    """Give the task as it is computed on the host."""
    env = task(bench)
    return HostMapping(**{f.name: getattr(env, f.name) for f in fields(env)})


def few(bench: Bench) -> int:
    """Repeat what takes seconds less often."""
    return max(3, bench.rounds // 10)


def part(bench: Bench, name: str) -> Measured:
    """Give the share of a team step on the host that one of its parts takes."""
    found = bench.once("host parts", lambda: profile_host(host(bench), bench.rounds))
    shares = {row["name"]: row["share"] for row in found["parts"]}
    largest = max(set(shares) - {"all else"}, key=shares.__getitem__)
    note = f"most goes to {largest}, {shares[largest]:.0%}; by a profile that makes a step "
    return Measured(shares[name], note=f"{note}{found['profiled_over_plain']:.2f} times as long")


def pool(bench: Bench) -> Measured:
    """Measure team steps of four missions in a pool of four processes over one process."""
    env = host(bench)
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=one_thread) as workers:
        calls = {"one": stepping(env, WORKERS, Runtime()), "pool": pooled(env, workers, WORKERS)}
        return over(calls, "one", "pool", few(bench))


class KeptConstants(HostMapping):
    """The task on the host, its constant channels kept."""

    def _even(self, value: float) -> Array:
        return _kept(self.lattice, value)


@lru_cache
def _kept(size: int, value: float) -> Array:
    return np.full((size, size), value)


def constants(bench: Bench) -> Measured:
    """Measure team steps on the host with constant channels kept over those that make them anew."""
    env = host(bench)
    kept = KeptConstants(**{f.name: getattr(env, f.name) for f in fields(env)})
    calls = {"made": stepping(env, 1, Runtime()), "kept": stepping(kept, 1, Runtime())}
    return over(calls, "made", "kept", bench.rounds)


def over(calls: Mapping[str, Callable[[], Any]], slow: str, fast: str, rounds: int) -> Measured:
    """Measure how many times faster one call is than another."""
    seconds = interleaved(calls, rounds, CPU, warm_up=1)
    found = ratio(seconds[slow], seconds[fast])
    note = f"{1e3 * median(seconds[slow]):.3g} ms before, {1e3 * median(seconds[fast]):.3g} ms after"
    return Measured(found["median"], found["low"], found["high"], note)


def apart(env: MappingEnv, steps: int = 3, seed: int = 0) -> dict[str, Float[Tensor, "L L"]]:
    """Resize the team's map of a random mission to the lattice.

    Returns:
        ``opencv`` by INTER_AREA, ``area`` by two matrices, and ``bilinear``, which is what image libraries on a GPU do
        unless they are told otherwise: four cells decide, whatever lies between them.
    """
    dice = torch.Generator().manual_seed(seed)
    state = env.initial(torch.rand(1, env.spec.initial_noise, generator=dice))
    for _ in range(steps):
        action = torch.randint(env.spec.choices, (1, env.uavs), generator=dice)
        state = env.transition(state, action, torch.rand(1, env.spec.step_noise, generator=dice))
    belief = belief_maps.belief(state.logits[:, -1], torch.float32)
    rows = belief_maps.area_matrix(env.cells, env.lattice)
    size = (env.lattice, env.lattice)
    sampled = torch.nn.functional.interpolate(belief[:, None], size, mode="bilinear", align_corners=False)
    usual = torch.from_numpy(cv2.resize(belief[0].numpy(), size, interpolation=cv2.INTER_AREA))
    return {"opencv": usual, "area": belief_maps.area_resize(belief, rows, rows)[0], "bilinear": sampled[0, 0]}


def equal_resizing(bench: Bench) -> Measured:
    """Tell whether bilinear resizing gives the averages that resizing by area gives, to a thousandth: 1 or 0."""
    found = apart(task(bench))
    most = (found["area"] - found["bilinear"]).abs().max().item()
    return Measured(float(most < 1e-3), note=f"beliefs differ by up to {most:.2g}")


def preparing(bench: Bench) -> Measured:
    """Give the seconds in which the inputs of 640 moves are made on the host, mission by mission."""
    env = host(bench)

    def seconds() -> float:
        state = env.initial(torch.rand(1, env.spec.initial_noise))
        return median(interleaved({"observe": lambda: env.observe(state)}, bench.rounds, CPU, warm_up=1)["observe"])

    each = bench.once("observe", seconds)
    count = SEEN["worlds"] * env.measurements
    return Measured(each * count, note=f"{1e3 * each:.3g} ms for a team's inputs, {count} times")


def cycle(bench: Bench, preset: str, setting: Setting) -> list[float]:
    """Time training steps (s): missions flown, and what is learned from them."""
    return bench.once(
        f"cycle {preset} {setting}", partial(_timed, cycle_call, config(bench, preset, setting), few(bench))
    )


def _timed(make: Callable[[Config], Call], settings: Config, rounds: int) -> list[float]:
    made, _ = prepare({"one": partial(make, settings)})
    return [timed(made["one"].call, made["one"].rt.device) for _ in range(rounds)]


def training_step(bench: Bench, preset: str, setting: Setting) -> Measured:
    """Give the seconds of a training step."""
    each = cycle(bench, preset, setting)
    moves = _moves(config(bench, preset, setting))
    note = f"{moves} moves; {min(each):.3g} to {max(each):.3g} s in {len(each)} repetitions"
    return Measured(median(each), note=note)


def _moves(settings: Config) -> int:
    spec = settings.env.spec
    return settings.source.worlds * spec.horizon * spec.agents


def prepared_share(bench: Bench) -> Measured:
    """Give the share of a training step in which inputs are made on the host."""
    inputs, step = preparing(bench), median(cycle(bench, FULL, HOST | SEEN))
    return Measured(inputs.value / step, note=f"{inputs.value:.3g} of {step:.3g} s; on a CPU nothing is copied")


def hours(bench: Bench, preset: str, setting: Setting) -> Measured:
    """Give the hours of all training steps of a preset."""
    settings, step = config(bench, preset, setting), median(cycle(bench, preset, setting))
    updates = settings.run.updates or 0
    return Measured(updates * step / 3600, note=f"{updates:,} training steps of {step:.3g} s, scores left out")


def rate(bench: Bench) -> Measured:
    """Give the moves of UAVs in a second of training with maps on the device."""
    step, moves = median(cycle(bench, FULL, {})), _moves(config(bench, FULL, {}))
    return Measured(moves / step, note=f"{moves} moves in a training step of {step:.3g} s, learning included")


def smaller(bench: Bench) -> Measured:
    """Measure updates with networks of half the width over those of the published width."""
    settings = {"whole": {}, "half": {"width": 128, "hidden": 128}}
    made, _ = prepare({name: partial(update_call, config(bench, FULL, each)) for name, each in settings.items()})
    return over({name: one.call for name, one in made.items()}, "whole", "half", few(bench))


def busy(bench: Bench) -> Measured:
    """Give the share of a training step in which a kernel runs on the GPU.

    Raises:
        NotTestable: There is no GPU.
    """
    need_gpu(bench, "device utilisation")
    one = cycle_call(config(bench, FULL, {}))
    with one.rt.scope():
        seconds = median([timed(one.call, bench.device) for _ in range(1 + few(bench))][1:])
        rows = profile(one.call, bench.device, top=10_000).rows
    share = sum(row["device_ms"] for row in rows) / 1e3 / seconds
    return Measured(min(1.0, share), note="with maps on the device, for those of the host know no GPU")


_fast = {"worlds": 2} | HOST

MEASURES: dict[str, Measure] = {
    "resizing_share": partial(part, name="resizing"),
    "map_pool": pool,
    "map_constants": constants,
    "equal_resizing": equal_resizing,
    "map_preparing": preparing,
    "map_step": partial(training_step, preset=FULL, setting=HOST | SEEN),
    "map_busy": busy,
    "map_prepared_share": prepared_share,
    "fast_step": partial(training_step, preset=FAST, setting=_fast),
    "fast_hours": partial(hours, preset=FAST, setting=_fast),
    "full_hours": partial(hours, preset=FULL, setting=HOST),
    "map_rate": rate,
    "smaller_networks": smaller,
    "budget_10_steps": partial(counted, value=1.0, note="moves of a training step are set; shorter missions are more"),
    "budget_8_compute": partial(counted, value=9 / 15, note="9 of 15 measurements: the budget leaves out the first"),
    "map_operations": partial(counted, value=1500 * 64 * 3, note="moves of all UAVs in all training steps"),
    "full_steps": partial(counted, value=1500, note=f"they fly {PROGRAM[FULL]:,.0f} missions"),
    "balanced_missions": partial(counted, value=PROGRAM[BALANCED], note="1,000 x 48 x 3 moves, 52 in a mission"),
    "budget_10_missions": partial(counted, value=PROGRAM["budget 10"], note="800 x 48 x 2 moves, 44 in a mission"),
    "fast_missions": partial(counted, value=PROGRAM[FAST], note="500 x 32 x 2 moves, 36 in a mission"),
}
"""Every number of mapping that can be had, by its name in the ledger."""
