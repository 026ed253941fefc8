"""Build the objects of a run from valid settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.rng import Streams
from uavlab.experiment.config import Config, RunConfig
from uavlab.runtime.oom_retry import is_out_of_memory
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles

PLAIN = Toggles()
EVALUATION, VALIDATION = "evaluate", "validate"  # random streams of final scores, and of scores that choose a policy


def runtime(run: RunConfig, toggles: Toggles = PLAIN) -> Runtime:
    """Choose the device, and note which toggles cannot be used on it.

    Raises:
        ConfigError: CUDA is requested but not available.
    """
    cuda = torch.cuda.is_available()
    if run.device == "cuda" and not cuda:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"torch {torch.__version__}" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible!r}")
        raise ConfigError(
            f"device: cuda requested, but torch.cuda.is_available() is False ({why}); use device=auto or cpu, and see "
            "`uavlab doctor`."
        )
    device = "cuda" if cuda and run.device != "cpu" else "cpu"
    return Runtime(torch.device(device), toggles)


def streams(run: RunConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Streams:
    """Return the random streams of all runs; run r is seeded with seed + r."""
    return Streams([run.seed + r for r in range(run.runs)], device, dtype)


def assemble(config: Config, monitor: Monitor | None = None) -> tuple[Runtime, Streams, Any, Any]:
    """Build runtime, random streams, learner and source of a training loop; ``monitor`` times its stages.

    Raises:
        ConfigError: The settings do not fit this machine.
        ResourceError: Memory does not suffice.
    """
    rt = replace(runtime(config.run, config.toggles), monitor=monitor)
    rng = streams(config.run, rt.device)
    with rt.scope():
        return rt, rng, *config.task.build(config, rng, rt)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn an out-of-memory error into a message of one line that names the settings to lower.

    Raises:
        ResourceError: An allocation on the CPU or on a GPU was refused.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "allocation refused"
        raise ResourceError(f"out of memory: {what}; lower capacity, worlds, batch or hidden.") from error
