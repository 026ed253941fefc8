"""TensorBoard files of a run: curves in the groups ``train``, ``eval`` and ``perf``, and a table of all settings.

They lie in the folder of the run, so that TensorBoard shows the run under its own name; a run of an earlier version
goes on in its ``tensorboard/``.
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

OLDER = "tensorboard"  # the folder inside a run's folder that earlier versions wrote to


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
    """Writer of a run's TensorBoard files; nothing needs them to resume, so a failure ends them with one warning."""

    def __init__(self, folder: Path, about: About) -> None:
        """Write to ``folder``; a file is created with the first row."""
        self.about = about
        self.folder = folder / OLDER if (folder / OLDER).exists() else folder
        self._before: tuple[int, float] | None = None  # update and seconds of the last row
        self._failed = False
        self._writer: Any = None

    def write(self, number: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write the values of an update, the rates since the last row (scoring included), and the memory in use."""
        rates, before = {}, self._before
        if before is not None and seconds > before[1]:
            pace = (number - before[0]) / (seconds - before[1])
            rates = {f"{what}_per_s": amount * pace for what, amount in {"updates": 1, **self.about.per_update}.items()}
        self._before = number, seconds
        try:
            if not self._open(number):
                return
            groups = {name if "/" in name else f"train/{name}": value for name, value in values.items()}
            groups |= {f"perf/{name}": value for name, value in {**rates, **memory(self.about.device)}.items()}
            for name, value in groups.items():
                self._writer.add_scalar(one_line(name), value, number)
            self._writer.flush()
        except OSError as error:
            self._failed = True
            warnings.warn(f"{self.folder}: {error.strerror}; no more curves for TensorBoard.", stacklevel=3)

    def close(self) -> None:
        """End the thread that writes; the next row starts another."""
        if self._writer is not None and not self._failed:
            self._writer.close()
        self._writer = None

    def _open(self, number: int) -> bool:
        """Return whether there is a writer; the first call starts it."""
        if self._writer is None and not self._failed:
            if find_spec("tensorboard") is None:
                self._failed = True
                warnings.warn(f"no TensorBoard files; for them: {install_command('tensorboard')}.", stacklevel=4)
                return False
            from torch.utils.tensorboard import SummaryWriter  # a slow import, only needed with a folder
            from torch.utils.tensorboard.summary import hparams

            self._writer = SummaryWriter(str(self.folder), purge_step=number)
            settings = {name: _plain(value) for name, value in self.about.settings.items()}
            experiment, start, _ = hparams(settings, {f"eval/{one_line(name)}": 0.0 for name in self.about.scores})
            for summary in (experiment, start) if settings else ():
                self._writer.file_writer.add_summary(summary)
        return not self._failed


def _plain(value: Any) -> float | str:
    """Return a setting as TensorBoard's table takes it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else one_line(str(value))
