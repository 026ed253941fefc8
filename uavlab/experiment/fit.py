"""Search for the largest value of a setting, such as ``batch`` or ``worlds``, with which a run fits into memory."""

from collections.abc import Callable
from typing import Any

from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.profiling.batch_size import BatchSearch, largest_batch
from uavlab.training import training


def fit(
    config: Config, setting: str, low: int, high: int, margin: float = 0.1, budget: int | None = None
) -> BatchSearch:
    """Return the largest value of a setting with which full updates fit, and the trials.

    Each trial builds the run anew, with few random steps, and makes two updates. A value that was tried, less the
    margin, is returned, never one beyond those that were tried.

    Args:
        config: Settings of the run.
        setting: Name of a setting that is a whole number.
        low: Smallest useful value.
        high: Largest useful value.
        margin: Share in [0, 1) of what fits to leave free.
        budget: Limit on the bytes of tensors, in place of the device's memory.

    Raises:
        ConfigError: There is no such setting, or a value is out of its range.
        ResourceError: ``low`` does not fit.
    """
    configure(config.preset, config.values, {setting: high})  # before any trial
    few = {"learning_starts": config.source.worlds} if hasattr(config.source, "learning_starts") else {}

    def make_step(value: int) -> Callable[[], Any]:
        rt, rng, learner, source = build.assemble(configure(config.preset, config.values, few, {setting: value}))
        steps = training(source, learner, rng, rt, 0, 10**9)

        def step() -> None:
            with rt.scope():
                next(steps)

        return step

    return largest_batch(make_step, low, high, margin, budget)
