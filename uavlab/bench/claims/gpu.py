"""Claims about GPUs: what needs one to be seen, and what is said of one model alone."""

from dataclasses import replace
from functools import partial

import torch

from uavlab.bench.claims.leader_follower import (
    LOOP,
    LOW,
    STAGE_1,
    STAGE_2,
    STAGE_3,
    Bench,
    Measure,
    Measured,
    NotTestable,
    Setting,
    gain,
    lost,
    need_gpu,
    total,
)
from uavlab.bench.compare import acting_call, cycle_call
from uavlab.bench.timing import interleaved, median
from uavlab.profiling.roofline import ceilings
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.stage_timer import count_work


def only_on(bench: Bench, gpu: str, of: Measure) -> Measured:
    """Measure what is claimed of one GPU.

    Raises:
        NotTestable: This is another device; the message tells its number.
    """
    found = of(bench)
    if gpu not in bench.name:
        raise NotTestable(f"needs another device, {gpu}; here it is {found.value:.3g}, {found.note}")
    return found


def busy(bench: Bench, setting: Setting) -> Measured:
    """Give the share of a cycle in which a kernel runs on the GPU, however few of its units that kernel uses."""
    need_gpu(bench, "device utilisation")
    one = cycle_call(bench.config(setting))
    with one.rt.scope():
        seconds = median(interleaved({"cycle": one.call}, bench.rounds, bench.device)["cycle"])
        rows = profile(one.call, bench.device, top=10_000).rows
    return Measured(min(1.0, sum(row["device_ms"] for row in rows) / 1e3 / seconds))


def peak(bench: Bench, before: Setting, after: Setting) -> Measured:
    """Give the most device memory that tensors of a run take, after over before."""
    need_gpu(bench, "device memory")
    first, second = (_peak(bench, setting) for setting in (before, after))
    return Measured(second / first, note=f"{first / 1e6:.0f} MB before, {second / 1e6:.0f} MB after")


def _peak(bench: Bench, setting: Setting) -> int:
    held = torch.cuda.memory_allocated(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    one = cycle_call(bench.config(setting))
    with one.rt.scope():
        for _ in range(3):
            one.call()
    return torch.cuda.max_memory_allocated(bench.device) - held


def saved(bench: Bench, of: Measure) -> Measured:
    """Turn after over before into the part that is saved."""
    found = of(bench)
    return replace(found, value=1 - found.value)


def copies(bench: Bench) -> Measured:
    """Give the share of a cycle that is lost by keeping replay in host memory."""
    need_gpu(bench, "copies between host and device")
    return lost(bench, partial(gain, call="cycle", slow=STAGE_1 | {"placement": "host"}, fast=STAGE_1))


def filled(bench: Bench) -> Measured:
    """Give the share of the device's rate of large matrix products that acting in 128 worlds reaches."""
    one = acting_call(bench.config({"acting": "batched", "worlds": 128}))
    with one.rt.scope():
        seconds = median(interleaved({"act": one.call}, bench.rounds, bench.device)["act"])
        rate = count_work(one.call).flops / seconds
        return Measured(rate / ceilings(bench.device).rate, note=f"{rate / 1e9:.3g} GFLOP/s")


stage_1, stage_2 = (partial(gain, call="cycle", slow=LOOP, fast=stage) for stage in (STAGE_1, STAGE_2))
on_3090 = partial(only_on, gpu="RTX 3090")

MEASURES: dict[str, Measure] = {
    "busy_loop": partial(busy, setting=LOOP),
    "busy_stage_1": partial(busy, setting=STAGE_1),
    "busy_stage_2": partial(busy, setting=STAGE_2),
    "busy_all": partial(busy, setting=STAGE_3),
    "precision_memory": partial(peak, before=STAGE_1, after=STAGE_1 | {"precision": LOW}),
    "lost_to_copies": copies,
    "memory_saved": partial(saved, of=partial(peak, before=LOOP, after=STAGE_2)),
    "memory_on_3090": partial(on_3090, of=partial(peak, before=LOOP, after=STAGE_3)),
    "filled_on_3090": partial(on_3090, of=filled),
    "stage_1_on_3090": partial(on_3090, of=stage_1),
    "stage_2_on_3090": partial(on_3090, of=stage_2),
    "stage_1_of_4_on_3090": partial(on_3090, of=partial(stage_1, agents=4)),
    "stage_2_of_4_on_3090": partial(on_3090, of=partial(stage_2, agents=4)),
    "total_2_on_3090": partial(on_3090, of=total),
    "total_4_on_3090": partial(on_3090, of=partial(total, agents=4)),
    "total_2_on_3060": partial(only_on, gpu="RTX 3060", of=total),
    "total_2_on_1660": partial(only_on, gpu="GTX 1660", of=total),
}
"""Every number of GPUs that can be had, by its name in the ledger."""
