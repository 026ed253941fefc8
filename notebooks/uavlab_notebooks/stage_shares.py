"""Shares of a cycle by stage under several settings, the work of an update, and utilisation beside achieved rates."""

from collections.abc import Mapping
from typing import Any

import torch

from uavlab.benchmarks.compare import Settings, build_call
from uavlab.benchmarks.profile_run import CYCLES, UPDATES
from uavlab.benchmarks.timing import time_call
from uavlab.core.protocols import Learner
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.profiling.roofline import ceilings
from uavlab.profiling.torch_profile import PYTHON
from uavlab.runtime.stage_timer import Monitor, count_work
from uavlab.training import make_cycle

WARM = 5  # cycles before a monitor starts


def measure_shares(
    preset: str, settings: Settings, *layers: Mapping[str, Any], cycles: int = 40
) -> dict[str, list[dict[str, Any]]]:
    """Monitor some cycles of a run under each of ``settings``; return its stages by setting for ``charts.stages``.

    Raises:
        ConfigError: Settings that are not valid.
    """
    stages = {}
    for name, setting in settings.items():
        config = configure(preset, *layers, setting)
        monitor = Monitor(build.runtime(config.run).device)
        run_cycles(config, cycles, monitor)
        stages[name] = monitor.read()
    return stages


def monitor_changes_nothing(preset: str, *layers: Mapping[str, Any], cycles: int = 5) -> bool:
    """Return whether a monitored run learns the same as one without a monitor, to the last bit."""
    config = configure(preset, *layers)
    monitored = run_cycles(config, cycles, Monitor(build.runtime(config.run).device)).tensors_to_check()
    plain = run_cycles(config, WARM + cycles).tensors_to_check()
    return all(torch.equal(plain[name][0], monitored[name][0]) for name in plain)


def run_cycles(config: Config, cycles: int, monitor: Monitor | None = None) -> Learner:
    """Run some cycles, with a monitor after ``WARM`` more without it; return the learner."""
    rt, rng, learner, source = build.assemble(config, monitor)
    cycle, warm = make_cycle(source, learner, rng, rt), WARM if monitor else 0
    with rt.scope():
        for number in range(warm + cycles):
            if monitor and number == warm:
                monitor.reset()
            cycle()
    return learner


def weigh_updates(preset: str, settings: Settings, *layers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time an update under each of ``settings`` and count its work, for ``charts.roofline``.

    Returns:
        Rows with ``name``, ``flops`` (of matrix products), ``bytes`` (of the other operators), ``operators`` and ``ms``
        (the quickest of several).

    Raises:
        ConfigError: Settings that are not valid.
    """
    rows = []
    for name, setting in settings.items():
        one = build_call(configure(preset, *layers, setting), "update")
        with one.rt.scope():
            work = count_work(one.call)
            seconds = min(time_call(one.call, one.rt.device) for _ in range(UPDATES))
        rows.append(
            {"name": name, "ms": 1e3 * seconds, **{k: getattr(work, k) for k in ("flops", "bytes", "operators")}}
        )
    return rows


def utilisation(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the share of time in which any operator runs with the achieved shares of this device's ceilings.

    Returns:
        Rows ``name, share`` from a record of ``profile_preset``: the time in which any operator runs, which is called
        utilisation (on a GPU a lower bound from the longest kernels), and what an update reaches of this device's rate
        of large matrix products and of its memory bandwidth.
    """
    update, operators, stage = record["update"], record["operators"], record["stages"][0]
    device = torch.device("cuda" if "device_ms" in operators[0] else "cpu")
    if device.type == "cuda":
        cycle_ms = stage["total_ms"] / stage["share"] / CYCLES
        resident = min(1.0, sum(row["device_ms"] for row in operators) / cycle_ms)
    else:
        resident = 1 - sum(row["share"] for row in operators if row["operator"] == PYTHON)
    peak = ceilings(device)
    return [
        {"name": "time in which an operator runs", "share": resident},
        {"name": "rate of matrix products", "share": update["flop_per_s"] / peak.rate},
        {"name": "bandwidth of memory", "share": update["bytes_per_s"] / peak.bandwidth},
    ]
