"""The metrics of a run: one JSON row per logged update in ``metrics.jsonl``, TensorBoard's files, and trackers.

Nothing needs the latter two to resume, and a failure ends one with one warning. W&B writes to the folder of the run,
unless WANDB_MODE says otherwise; MLflow to a folder or a server.
"""

import hashlib
import json
import logging
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError, MissingPackageError, ResourceError, reason_of
from uavlab.core.extras import install_command, require
from uavlab.core.text import one_line
from uavlab.storage.files import put_aside, read_json, read_regular, write_json, write_text
from uavlab.storage.machine import memory

LOG = logging.getLogger(__name__)
MAX_LOG_BYTES, MAX_ROW_LENGTH = 1_000_000_000, 1_000_000  # of the whole file; of one row in characters

CLOCKED = ("seconds", "time/", "ms/", "load/", "memory/")  # beginnings of names that differ between equal runs
COUNTS = "counts/"  # of names of figures that follow from the rest of the state
Values = Mapping[str, float]

UNREACHABLE_S = 10  # after which a server counts as unreachable
LONGEST = 500  # characters of a setting in MLflow
MOST_TEXT = 200  # characters of the reason in a warning
AT_ONCE = 100  # settings in one request to MLflow
EXPERIMENT = "uavlab"  # of MLflow
SIZES = {"resident": "memory_MiB", "allocated": "gpu_memory_MiB"}  # of memory, by their names in curves
SEEDS = "seeds/"  # beginning of the names of figures of single seeds, which TensorBoard does not get
NOT_IN_WANDB = re.compile(r"[/\\#?%:]")
NOT_IN_MLFLOW = re.compile(r"[^\w\-. /]")
PRIVATE = {
    "WANDB_ERROR_REPORTING": "false",
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"},
    **{"MLFLOW_HTTP_REQUEST_TIMEOUT": str(UNREACHABLE_S), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"},
}
"""Environment variables of both libraries, where they are not set: no reports to their makers, and no long waits."""


@dataclass(frozen=True)
class About:
    """What the files of a run hold besides its metrics."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[str] = ()  # names of the metrics by which policies are chosen
    per_update: Mapping[str, float] = field(default_factory=dict)  # such as {"agent-steps": 512}, for rates
    device: str = "cpu"  # where it trains, for the memory that it takes


@dataclass(frozen=True)
class Client:
    """An open run in a tracker: its name there, a function that writes a row, and one that ends the writing."""

    run: str
    write: Callable[[int, Values], None]
    close: Callable[[], None]


class Tracker:
    """A run in one tracker, opened by its first row; a failure ends it with one warning."""

    def __init__(self, name: str, opener: Callable[[int], Client]) -> None:
        """Track a run; ``opener`` opens it, before the row of an update, and after each ``close``."""
        self.name, self._opener = name, opener
        self._client: Client | None = None
        self._failed = False

    def write(self, number: int, values: Values) -> None:
        if not self._failed:
            with self._warning():
                self._client = self._client or self._opener(number)
                self._client.write(number, values)

    def close(self) -> None:
        """End the writing; the next row opens the run again."""
        client, self._client = self._client, None
        if client is not None and not self._failed:
            with self._warning():
                client.close()

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: training goes on
            self._failed = True
            reason = one_line(reason_of(error).strip().splitlines()[0])[:MOST_TEXT]
            warnings.warn(f"{self.name}: {reason}; no more rows for it.", stacklevel=4)


def open_tensorboard(folder: Path, about: About, number: int) -> Client:
    """Begin files in the folder of a run, so that it has its own name; files of later updates have no effect."""
    if find_spec("tensorboard") is None:
        raise MissingPackageError(f"not installed; {install_command('tensorboard')}")
    from torch.utils.tensorboard import SummaryWriter  # a slow import, only needed with a folder
    from torch.utils.tensorboard.summary import hparams

    writer: Any = SummaryWriter(str(folder), purge_step=number)
    settings = {name: _plain(value) for name, value in about.settings.items()}
    experiment, start, _ = hparams(settings, {f"eval/{one_line(name)}": 0.0 for name in about.scores})
    for summary in (experiment, start) if settings else ():
        writer.file_writer.add_summary(summary)

    def write(number: int, values: Values) -> None:
        for name, value in values.items():
            if not name.startswith(SEEDS):
                writer.add_scalar(name, value, number)
        writer.flush()

    return Client("", write, writer.close)


def _plain(value: Any) -> float | str:
    """Return a setting as TensorBoard's table takes it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else one_line(str(value))


def trackers_of(folder: Path, settings: Mapping[str, Any]) -> list[Tracker]:
    """Return the trackers that settings name: a project of W&B, and a folder or an address of MLflow."""
    trackers = []
    for name in OPENERS:
        if place := settings.get(name):
            require(name, f"{name}={place}", name)
            trackers.append(Tracker(f"{name}={one_line(place)}", partial(_open_again, name, place, folder, settings)))
    return trackers


def _open_again(name: str, place: str, folder: Path, settings: Mapping[str, Any], number: int) -> Client:
    """Go on with the run of a folder in a tracker, or begin one and store its name."""
    for variable, value in PRIVATE.items():
        os.environ.setdefault(variable, value)
    path, stored = folder / f"{name}.json", dict[str, Any]()
    with suppress(FileError):
        stored = read_json(path)
    known = str(stored["run"]) if stored.get("place") == place and "run" in stored else None
    client = OPENERS[name](place, folder, settings, known)
    if client.run != known:
        with suppress(ResourceError):  # a full disk is the run's to report
            write_json(path, {"place": place, "run": client.run})
    return client


def open_wandb(project: str, folder: Path, table: Mapping[str, Any], known: str | None) -> Client:
    """Open a run of W&B, offline in the folder of the run unless WANDB_MODE names another mode."""
    import wandb

    name = known or uuid.uuid4().hex[:12]
    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=UNREACHABLE_S,
        finish_timeout=UNREACHABLE_S,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,  # of the machine
        x_disable_meta=True,
        x_save_requirements=False,
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]  # refused there
        root_dir=str(folder),
    )
    run = wandb.init(project=project, id=name, name=folder.name, resume="allow", reinit="create_new", settings=settings)
    run.config.update(dict(table), allow_val_change=True)
    run.define_metric("*", step_metric="update")

    def write(number: int, values: Values) -> None:
        run.log({**values, "update": number})

    return Client(name, write, run.finish)


def open_mlflow(place: str, folder: Path, table: Mapping[str, Any], known: str | None) -> Client:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(place if is_address(place) else Path(place).absolute().as_uri())
    name = known
    if name is None:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        name = client.create_run(number, run_name=folder.name).info.run_id
        settings = [Param(key, one_line(str(value))[:LONGEST]) for key, value in table.items()]
        for start in range(0, len(settings), AT_ONCE):
            client.log_batch(name, params=settings[start : start + AT_ONCE])
    else:
        client.update_run(name, status="RUNNING")

    def write(number: int, values: Values) -> None:
        now = int(1e3 * time.time())
        client.log_batch(name, [Metric(NOT_IN_MLFLOW.sub("_", key), x, now, number) for key, x in values.items()])

    return Client(name, write, lambda: client.set_terminated(name))


Opener = Callable[[str, Path, Mapping[str, Any], str | None], Client]
OPENERS: dict[str, Opener] = {"wandb": open_wandb, "mlflow": open_mlflow}


def is_address(place: str) -> bool:
    """Return whether a place of MLflow is an address, not a folder."""
    return "://" in place or place.startswith("databricks")


def is_project(name: str) -> bool:
    return 0 < len(name) <= 128 and name.isprintable() and bool(name.strip()) and not NOT_IN_WANDB.search(name)


def is_place(place: str) -> bool:
    return 0 < len(place) <= 1000 and place.isprintable() and bool(place.strip())


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
        self._about, self._trackers = about or About(), list[Tracker]()
        self._before: tuple[int, float] | None = None  # update and seconds of the last row
        if folder is not None:
            board = Tracker("TensorBoard", partial(open_tensorboard, folder, self._about))
            self._trackers = [board, *trackers_of(folder, self._about.settings)]

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
        figures = self._figures(number, seconds, values, several)
        for tracker in self._trackers:
            tracker.write(number, figures)

    def _figures(
        self, number: int, seconds: float, values: Values, seeds: Mapping[str, Sequence[float]]
    ) -> dict[str, float]:
        """Return a row for trackers: in groups, with rates since the last row (scoring included) and memory in use."""
        rates, before = {}, self._before
        if before is not None and seconds > before[1]:
            pace = (number - before[0]) / (seconds - before[1])
            rates = {name: amount * pace for name, amount in {"updates": 1, **self._about.per_update}.items()}
        self._before = number, seconds
        sizes = {name: size / 2**20 for name, size in memory(self._about.device).items()}
        figures = {_in_group(name): value for name, value in values.items()}
        figures |= {f"perf/{name}_per_s": rate for name, rate in rates.items()}
        figures |= {f"perf/{shown}": sizes[name] for name, shown in SIZES.items() if name in sizes}
        first = self._about.settings.get("seed", 0)
        for name, row in seeds.items():
            figures |= {f"{SEEDS}{first + at}/{_in_group(name)}": value for at, value in enumerate(row)}
        return {one_line(name): value for name, value in figures.items()}

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
        """End TensorBoard's files and the writing to trackers; the next row goes on."""
        for tracker in self._trackers:
            tracker.close()

    def track(self, trackers: Sequence[Tracker]) -> None:
        """Write to these trackers from now on, beside TensorBoard's files."""
        board, *others = self._trackers
        for tracker in others:
            tracker.close()
        self._trackers = [board, *trackers]

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

    def read(self, holding: str = "") -> None:
        """Read the rows whose lines hold a text."""
        self.rows = [self._parse(line, at) for at, line in enumerate(self._lines()[:-1], 1) if holding in line]

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


def _in_group(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
