"""The commands ``train`` and ``resume`` under torchrun, which starts one process for each rank."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def own_place() -> tuple[int, int]:
    """Return the number of this process among ranks, and their count; all but the first print nothing from now on.

    Raises:
        ConfigError: The environment variables of torchrun are incomplete or wrong.
    """
    from uavlab.runtime.torchrun import place

    number, count = place()
    if number > 0:
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 until the process ends
    return number, count


@contextmanager
def started(preset: str, settings: Mapping[str, Any], config: Any, folder: Path) -> Iterator[Any]:
    """Yield a new run in a folder; when torchrun starts its ranks again, the one that they were training."""
    from uavlab import api
    from uavlab.experiment.rank_runs import connected, is_restart, require_same_settings
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import require_empty

    number, _ = own_place()
    with connected(config.run, config.run.device) as ranks:
        require_same_settings(ranks, preset, config.values)
        if is_restart(folder, preset, config.values):
            yield Run.resume(folder, ranks=ranks)
            return
        if number == 0:
            require_empty(folder, run=True)
        yield api.start(preset, settings=settings, out=folder, ranks=ranks)


@contextmanager
def resumed(folder: Path, changes: Mapping[str, Any], fresh_replay: bool) -> Iterator[Any]:
    """Yield the run in a folder, as it goes on with the ranks that torchrun started."""
    from uavlab.experiment.config import RunConfig
    from uavlab.experiment.rank_runs import connected
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import restore_config

    _, count = own_place()
    settings = restore_config(folder, changes)[0].run if count > 1 else RunConfig()
    with connected(settings, settings.device) as ranks:
        yield Run.resume(folder, changes, fresh_replay=fresh_replay, ranks=ranks)
