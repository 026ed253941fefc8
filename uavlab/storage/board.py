"""Curves of a run in the groups ``train``, ``eval`` and ``perf`` and a table of its settings, for other programs.

TensorBoard's files lie in the folder of the run, so that it shows the run under its own name; a run of an earlier
version goes on in its ``tensorboard/``. Trackers that the settings name get the same rows, and those of each seed.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uavlab.core.extras import install_command
from uavlab.core.text import one_line
from uavlab.storage.machine import memory
from uavlab.storage.trackers import Tracker, trackers_of

NO_SEEDS: Mapping[str, Sequence[float]] = {}


@dataclass(frozen=True)
class About:
    """What the files of a run hold besides its metrics.

    Attributes:
        settings: Every setting by name.
        scores: Names of the metrics by which policies are chosen.
        per_update: Amounts of one update, such as ``{"agent-steps": 512}``, for rates.
        device: Where it trains, for the memory that it takes.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[str] = ()
    per_update: Mapping[str, float] = field(default_factory=dict)
    device: str = "cpu"


class Board:
    """Writer of a run's TensorBoard files and trackers; nothing needs them to resume, so a failure only warns once."""

    def __init__(self, folder: Path, about: About) -> None:
        """Write to ``folder``; a file is created with the first row."""
        self.about, self.trackers = about, trackers_of(folder, about.settings)
        self.folder = folder
        self._before: tuple[int, float] | None = None  # update and seconds of the last row
        self._failed = False
        self._writer: Any = None

    def write(
        self, number: int, seconds: float, values: Mapping[str, float], seeds: Mapping[str, Sequence[float]] = NO_SEEDS
    ) -> None:
        """Write the values of an update, the rates since the last row (scoring included), and the memory in use.

        Trackers also get the values of several ``seeds``, as ``seeds/SEED/...``.
        """
        rates, before = {}, self._before
        if before is not None and seconds > before[1]:
            pace = (number - before[0]) / (seconds - before[1])
            rates = {f"{what}_per_s": amount * pace for what, amount in {"updates": 1, **self.about.per_update}.items()}
        self._before = number, seconds
        groups = {_in_group(name): value for name, value in values.items()}
        groups |= {f"perf/{name}": value for name, value in {**rates, **memory(self.about.device)}.items()}
        self._write_files(number, groups)
        first = self.about.settings.get("seed", 0)
        own = {f"seeds/{first + at}/{_in_group(name)}": x for name, each in seeds.items() for at, x in enumerate(each)}
        for tracker in self.trackers:
            tracker.write(number, {one_line(name): value for name, value in {**groups, **own}.items()})

    def track(self, trackers: Sequence[Tracker]) -> None:
        """Write to these trackers from now on."""
        for tracker in self.trackers:
            tracker.close()
        self.trackers = list(trackers)

    def close(self) -> None:
        """End the threads that write; the next row starts others."""
        if self._writer is not None and not self._failed:
            self._writer.close()
        self._writer = None
        for tracker in self.trackers:
            tracker.close()

    def _write_files(self, number: int, groups: Mapping[str, float]) -> None:
        try:
            if not self._open(number):
                return
            for name, value in groups.items():
                self._writer.add_scalar(one_line(name), value, number)
            self._writer.flush()
        except OSError as error:
            self._failed = True
            warnings.warn(f"{self.folder}: {error.strerror}; no more curves for TensorBoard.", stacklevel=4)

    def _open(self, number: int) -> bool:
        """Return whether there is a writer; the first call starts it."""
        if self._writer is None and not self._failed:
            if find_spec("tensorboard") is None:
                self._failed = True
                warnings.warn(f"no TensorBoard files; for them: {install_command('tensorboard')}.", stacklevel=5)
                return False
            from torch.utils.tensorboard import SummaryWriter  # a slow import, only needed with a folder
            from torch.utils.tensorboard.summary import hparams

            self._writer = SummaryWriter(str(self.folder), purge_step=number)
            settings = {name: _plain(value) for name, value in self.about.settings.items()}
            experiment, start, _ = hparams(settings, {f"eval/{one_line(name)}": 0.0 for name in self.about.scores})
            for summary in (experiment, start) if settings else ():
                self._writer.file_writer.add_summary(summary)
        return not self._failed


def _in_group(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def _plain(value: Any) -> float | str:
    """Return a setting as TensorBoard's table takes it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else one_line(str(value))
