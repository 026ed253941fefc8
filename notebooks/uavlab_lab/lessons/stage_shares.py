"""Shares of a cycle by stage under several settings."""

from collections.abc import Mapping
from typing import Any

from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.learners.learner import Learner
from uavlab.runtime.stage_timer import Monitor
from uavlab.training import make_cycle
from uavlab_lab.measure.compare import Settings

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
