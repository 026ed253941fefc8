"""Measures that only a GPU has: utilisation and device memory."""

import gc

import torch

from uavlab.benchmarks.claims.measures import LOOP, TEAMS, Bench, Estimate, Setting, measure
from uavlab.benchmarks.compare import build_call


@measure
def utilisation(
    bench: Bench, call: str = "cycle", setting: Setting = LOOP, agents: int = 2, preset: str = TEAMS[0]
) -> Estimate:
    """Measure the share of a call in which a kernel runs on the GPU, for a team or another preset."""
    bench.need_gpu("device utilisation")
    return bench.device_share(build_call(bench.config(setting, agents, preset), call))


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
