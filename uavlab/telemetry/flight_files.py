"""Simulated flights as files."""

from collections.abc import Iterator
from pathlib import Path

from uavlab.core.errors import ResourceError
from uavlab.experiment.run_dir import require_empty
from uavlab.telemetry import flights
from uavlab.telemetry.task import Telemetry


def made(folder: Path, count: int, seed: int) -> Iterator[tuple[Path, int]]:
    """Write ``count`` flights from seed ``seed`` on into a new or empty folder; yield each file and its rows.

    Raises:
        ConfigError: The folder holds something.
        ResourceError: It cannot be made or written; files that were yielded are whole.
    """
    require_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be made ({error.strerror}); choose another folder.") from error
    yield from flights.write(Telemetry(flights=max(count, 3), first=seed), folder, count)
