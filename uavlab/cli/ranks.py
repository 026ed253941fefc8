"""The commands ``train`` and ``resume`` under torchrun, which starts one process for each rank."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.installation import program


def own_place() -> tuple[int, int]:
    """Return the number of this process among ranks, and their count; all but the first print nothing from now on."""
    from uavlab.runtime.ranks import place

    number, count = place()
    if number > 0:
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 until the process ends
    return number, count


def require_one_measure(settings: Mapping[str, Any], count: int) -> None:
    """Refuse numbers that each rank would measure by itself."""
    from uavlab.experiment.sizes import AUTO

    if count > 1 and settings.get("worlds") == AUTO:
        raise ConfigError(
            f"worlds: got auto in {count} ranks, which would measure different numbers; expected one number for all, "
            f"such as that of `{program()} fit`."
        )


@contextmanager
def started(config: Any, folder: Path) -> Iterator[Any]:
    """Yield a new run in a folder; when torchrun starts its ranks again, the one that they were training."""
    from uavlab import api
    from uavlab.experiment.rank_runs import connected, is_restart, require_same_settings
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import require_empty

    number, _ = own_place()
    with connected(config.run, config.run.device) as ranks:
        require_same_settings(ranks, config.preset, config.values)
        if is_restart(folder, config.preset, config.values):
            yield Run.resume(folder, ranks=ranks)
            return
        if number == 0:
            require_empty(folder, run=True)
        yield api.build_run(config, folder, ranks)


@contextmanager
def resumed(folder: Path, changes: Mapping[str, Any], fresh_replay: bool) -> Iterator[Any]:
    """Yield the run in a folder, as it goes on with the ranks that torchrun started."""
    from uavlab.experiment.config import RunConfig
    from uavlab.experiment.rank_runs import connected
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_dir import restore_config

    _, count = own_place()
    require_one_measure(changes, count)
    settings = restore_config(folder, changes)[0].run if count > 1 else RunConfig()
    with connected(settings, settings.device) as ranks:
        yield Run.resume(folder, changes, fresh_replay=fresh_replay, ranks=ranks)
