"""The metrics of a run: one JSON row per logged update in ``metrics.jsonl``, TensorBoard files, and trackers."""

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError, ResourceError
from uavlab.storage.files import put_aside, read_regular, write_text
from uavlab.storage.trackers import About, Board, Tracker

LOG = logging.getLogger(__name__)
MAX_LOG_BYTES, MAX_ROW_LENGTH = 1_000_000_000, 1_000_000  # of the whole file; of one row in characters

CLOCKED = ("seconds", "time/", "ms/", "load/", "memory/")  # beginnings of names that differ between equal runs
COUNTS = "counts/"  # of names of figures that follow from the rest of the state


def in_digest(name: str) -> bool:
    """Return whether a figure of a row counts for the digest of a run."""
    return not name.startswith((*CLOCKED, COUNTS))


class Recorder:
    """Recorder of metrics in memory and, with a folder, in ``metrics.jsonl`` and TensorBoard files."""

    def __init__(self, folder: Path | None, about: About | None = None) -> None:
        """Write to ``folder``; files are created with the first row. ``about`` is for TensorBoard and trackers."""
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.saved_rows, self.saved_digest = 0, _digest([])  # number and SHA-256 of rows at the checkpoint to resume
        self._rest: str | None = None  # what ``rewind`` leaves of the file, where it differs
        self._damaged = False
        self._board = None if folder is None else Board(folder, about or About())

    def append(
        self, number: int, seconds: float, values: dict[str, float], seeds: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        """Append one row of means over seeds; the values of several ``seeds`` are stored under ``each``."""
        row: dict[str, Any] = {"update": number, "seconds": round(seconds, 3), **values}
        several = {} if seeds is None or all(len(each) < 2 for each in seeds.values()) else seeds
        if several:
            row["each"] = {name: [float(f"{value:.7g}") for value in each] for name, each in several.items()}
        self.rows.append(row)
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("update %d: %s", number, ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
        if self.folder is None:
            return
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise ResourceError(f"{path}: cannot be written ({error.strerror}); free some space.") from error
        if self._board is not None:
            self._board.write(number, seconds, values, several)

    def by_seed(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Return a row for each logged update and seed: its own values, and means of what seeds share."""
        table = []
        for row in self.rows:
            means = {name: value for name, value in row.items() if name != "each"}
            for at, seed in enumerate(seeds):
                own = {name: each[at] for name, each in row.get("each", {}).items() if at < len(each)}
                table.append({"update": row["update"], "seconds": row["seconds"], "seed": seed, **means, **own})
        return table

    def close(self) -> None:
        """End the threads that write TensorBoard files and to trackers; the next row starts others."""
        if self._board is not None:
            self._board.close()

    def track(self, trackers: Sequence[Tracker]) -> None:
        if self._board is not None:
            self._board.track(trackers)

    def sync(self) -> None:
        """Flush the rows so far to the disk, because a checkpoint needs them after a power cut."""
        if self.folder is not None and (self.folder / "metrics.jsonl").exists():
            with (self.folder / "metrics.jsonl").open("ab") as file:
                os.fsync(file.fileno())

    def digest(self) -> str:
        return _digest([json.dumps(row) for row in self.rows])

    def recover(self, update: int) -> bool:
        """Read the first ``saved_rows`` rows, up to an update, and warn of those that cannot be read; change no file.

        Return whether these rows exist and have the digest ``saved_digest``.
        """
        if self.folder is None:
            return self.saved_rows == 0
        saved: list[str] = []
        intact: list[tuple[str, dict[str, Any]]] = []
        damage: FileError | None = None
        try:
            lines = self._lines()
            saved = lines[:-1][: self.saved_rows]  # a last line without a line end is incomplete
        except FileError as error:
            lines, damage = [], error
        for at, line in enumerate(saved, 1):
            try:
                intact.append((line, self._parse(line, at)))
            except FileError as error:
                damage = damage or error
        intact = [(line, row) for line, row in intact if row["update"] <= update]
        self.rows, text = [row for _, row in intact], "".join(f"{line}\n" for line, _ in intact)
        self._damaged = damage is not None
        self._rest = None if text == "\n".join(lines) and not self._damaged else text
        if damage is not None:
            warnings.warn(f"{damage} Going on without; the file will be put aside, not removed.", stacklevel=2)
        return _digest(saved) == self.saved_digest

    def rewind(self) -> None:
        """Drop the rows that ``recover`` left out, which a resumed run writes again; a damaged file is put aside."""
        if self.folder is not None and self._rest is not None:
            if self._damaged:
                put_aside(self.folder / "metrics.jsonl")
            write_text(self.folder / "metrics.jsonl", self._rest)
        self._rest = None

    def read(self) -> None:
        self.rows = [self._parse(line, at) for at, line in enumerate(self._lines()[:-1], 1)]

    def _lines(self) -> list[str]:
        path = Path(self.folder or "") / "metrics.jsonl"
        if not os.path.lexists(path):
            return [""]
        try:
            return read_regular(path, MAX_LOG_BYTES).decode(errors="replace").split("\n")
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror}).") from error

    def _parse(self, line: str, at: int) -> dict[str, Any]:
        """Return the row of a line; rows that this class wrote are ASCII."""
        try:
            row = json.loads(line) if len(line) <= MAX_ROW_LENGTH and line.isascii() else None
            if isinstance(row, dict) and _is_row(**row):
                return row
        except (ValueError, TypeError, RecursionError):
            pass
        where = f"{self.folder}/metrics.jsonl:{at}"
        raise FileError(f"{where}: expected a row of metrics, got {line[:60]!r}.")


def _is_row(update: Any, seconds: Any, each: Any = None, **values: Any) -> bool:
    """Return whether these are the values of a row: numbers, and lists of numbers of each seed."""
    lists = list((each or {}).values()) if isinstance(each, dict | None) else [None]
    numbers = [seconds, *values.values(), *(number for each in lists if isinstance(each, list) for number in each)]
    return (
        type(update) is int
        and all(isinstance(each, list) for each in lists)
        and all(isinstance(number, int | float) for number in numbers)
    )


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
