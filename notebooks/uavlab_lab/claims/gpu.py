"""Measures that only a GPU has: utilisation and device memory."""

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean
from typing import Any

import torch

from uavlab.experiment.instruments import gpu_load
from uavlab.profiling.timing import median, time_call, time_in_turn
from uavlab_lab.claims.measures import ENOUGH_S, LOOP, TEAMS, Bench, Estimate, Setting, measure
from uavlab_lab.measure.compare import Call, build_call
from uavlab_lab.measure.profile_run import profile


@measure
def utilisation(
    bench: Bench, call: str = "cycle", setting: Setting = LOOP, agents: int = 2, preset: str = TEAMS[0]
) -> Estimate:
    """Measure the share of a call in which a kernel runs on the GPU, for a team or another preset."""
    bench.need_gpu("device utilisation")
    return device_share(bench, build_call(bench.config(setting, agents, preset), call))


def device_share(bench: Bench, one: Call) -> Estimate:
    """Measure the share of a call's time in which any kernel runs on the GPU, even if it uses few units.

    Where NVML answers it is what NVML reports, as in the claims, and else that of a profile.
    """
    with one.rt.scope():
        calls = {"call": one.call}
        seconds = time_in_turn(calls, bench.rounds, bench.device, warm_up=1, enough_s=ENOUGH_S)["call"]
        rows, reported = profile(one.call, bench.device, top=10_000), reported_share(one.call, bench.device)
    profiled = min(1.0, sum(row["device_ms"] for row in rows) / 1e3 / median(seconds))
    if reported is None:
        return Estimate(profiled, note="by a profile, without NVML", rounds=len(seconds))
    return Estimate(reported, note=f"by NVML; {100 * profiled:.3g} % by a profile", rounds=len(seconds))


def reported_share(call: Callable[[], Any], device: torch.device, seconds: float = 3.0) -> float | None:
    """Repeat a call; return the mean utilisation that NVML reports (0 to 1) after the first third, None without it."""
    readings, began = list[float](), time.monotonic()
    with suppress(Exception):  # of the package, which has classes of its own, or of torch
        while (passed := time.monotonic() - began) < seconds:
            time_call(call, device)
            if passed > seconds / 3 + len(readings) * seconds / 30:  # NVML looks back by up to a second
                readings.append(gpu_load(device)["load/gpu"])
    return fmean(readings) if readings else None


@measure
def peak_memory(bench: Bench, after: Setting, before: Setting = LOOP, saved: bool = False, agents: int = 2) -> Estimate:
    """Measure the peak device memory of a run's tensors, ``after`` over ``before``, or the share that is saved."""
    first, second = (memory_mb(bench, setting, agents).value for setting in (before, after))
    note = f"{first:.0f} MB before, {second:.0f} MB after"
    return Estimate(1 - second / first if saved else second / first, note=note)


@measure
def memory_mb(bench: Bench, setting: Setting = LOOP, agents: int = 2, preset: str = TEAMS[0]) -> Estimate:
    """Measure the peak device memory of a run's tensors (MB)."""
    bench.need_gpu("device memory")
    gc.collect()  # what was measured before would be freed during this measurement, and hide as much
    allocated = torch.cuda.memory_allocated(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    one = build_call(bench.config(setting, agents, preset), "cycle")
    with one.rt.scope():
        for _ in range(3):
            one.call()
    return Estimate((torch.cuda.max_memory_allocated(bench.device) - allocated) / 1e6)
