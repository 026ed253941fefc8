"""The files in which a run says what happened: whole JSON files, rows of metrics, TensorBoard scalars."""

import hashlib
import json
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError, ResourceError
from uavlab.storage.files import read_regular, replacing

LARGEST, LARGEST_LOG = 10_000_000, 1_000_000_000  # bytes of a JSON file, and of a run's rows
LONGEST_ROW = 100_000  # characters


def invocation() -> str:
    """Give the command that this process serves, empty in a notebook."""
    called = Path(sys.argv[0])
    ours = called.stem == "uavlab" or called.parts[-2:] == ("uavlab", "__main__.py")
    return shlex.join(["uavlab", *sys.argv[1:]]) if ours else ""


def program() -> str:
    """Say how a person would begin a command of this process: a file that registers an environment is a program too."""
    called = Path(sys.argv[0])
    own = called.suffix == ".py" and called.name not in ("__main__.py", "ipykernel_launcher.py")
    return f"python {shlex.quote(str(called))}" if own else "uavlab"


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole.

    Raises:
        ResourceError: The disk refuses.
    """
    write_whole(path, json.dumps(value, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Replace a file whole, so that a reader never meets half of it.

    Raises:
        ResourceError: The disk refuses.
    """
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileError: The file is missing or no JSON object.
    """
    try:
        value = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: damaged, it cannot be read as JSON; expected a file that uavlab wrote.") from error
    if not isinstance(value, dict):
        raise FileError(f"{path}: expected a JSON object, got something else; was it written by uavlab?")
    return value


class Recorder:
    """Rows of metrics, to ``metrics.jsonl`` and TensorBoard; without a folder, in memory alone."""

    def __init__(self, folder: Path | None) -> None:
        """Write below ``folder``; nothing is made before the first row."""
        self.folder = folder
        self.rows: list[dict[str, float]] = []
        self.count, self.sum = 0, _sum([])  # rows to go on from, and their digest
        self._without_board = False
        self._board: Any = None

    def row(self, number: int, seconds: float, values: dict[str, float]) -> None:
        """Append one row.

        Raises:
            ResourceError: The disk refuses.
        """
        row = {"update": number, "seconds": round(seconds, 3), **values}
        self.rows.append(row)
        if self.folder is None:
            return
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise ResourceError(f"{path}: cannot be written ({error.strerror}); free some space.") from error
        try:
            self._show(number, values)
        except OSError as error:  # a view of the rows, no part of the run
            self._without_board = True
            warnings.warn(f"{self.folder / 'tensorboard'}: {error.strerror}; no more curves there.", stacklevel=2)

    def _show(self, number: int, values: dict[str, float]) -> None:
        if self._without_board:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter  # a slow import, needed by runs with a folder alone

            self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=number)  # type: ignore[operator]
        for name, value in values.items():
            self._board.add_scalar(name, value, number)
        self._board.flush()

    def close(self) -> None:
        """End the thread that writes curves; the next row begins another."""
        if self._board is not None and not self._without_board:
            self._board.close()
        self._board = None

    def sync(self) -> None:
        """See to it that the rows so far outlive a power cut: a checkpoint that follows them is worth no more."""
        if self.folder is not None and (self.folder / "metrics.jsonl").exists():
            with (self.folder / "metrics.jsonl").open("ab") as file:
                os.fsync(file.fileno())

    def digest(self) -> str:
        """Condense the rows so far into one SHA-256."""
        return _sum([json.dumps(row) for row in self.rows])

    def rewind(self) -> bool:
        """Read back the first ``count`` rows and drop later ones, which a resumed run makes again.

        Returns:
            Whether they are all there, as they were written.

        Raises:
            FileError: One of them is damaged.
        """
        if self.folder is None:
            return self.count == 0
        path, lines = self.folder / "metrics.jsonl", [""]
        if path.exists():
            try:
                lines = read_regular(path, LARGEST_LOG).decode(errors="replace").split("\n")
            except OSError as error:
                raise FileError(f"{path}: cannot be read ({error.strerror}).") from error
        wanted = lines[:-1][: self.count]  # a last line without its end was never finished
        self.rows = [_row(line, f"{path}:{at}") for at, line in enumerate(wanted, 1)]
        if lines != [*wanted, ""]:
            write_whole(path, "".join(f"{line}\n" for line in wanted))
        return _sum(wanted) == self.sum


def _sum(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _row(line: str, where: str) -> dict[str, float]:
    try:
        row = json.loads(line) if len(line) <= LONGEST_ROW else None
        if isinstance(row, dict) and isinstance(row.get("update"), int):
            return row
    except (ValueError, RecursionError):
        pass
    raise FileError(f"{where}: expected a row of metrics, got {line[:60]!r}; remove that line to go on without it.")
