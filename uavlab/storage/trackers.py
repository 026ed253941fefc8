"""Curves of a run for other programs: TensorBoard's files in its folder, and its rows in Weights & Biases and MLflow.

Nothing needs them to resume, and a failure ends a writer with one warning. Nothing waits for a tracker: rows go through
a queue to a thread of each. W&B writes to the folder of the run, unless WANDB_MODE says otherwise; MLflow to a folder
or a server.
"""

import os
import queue
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError, ResourceError, reason_of
from uavlab.core.extras import install_command, require
from uavlab.core.text import one_line
from uavlab.storage.files import read_json, write_json
from uavlab.storage.machine import memory

Values = Mapping[str, float]

MOST_ROWS = 10_000  # rows that may wait
CLOSE_S = 10.0  # how long the end of training waits for rows on their way to a server
FOLDER_S = 600.0  # and for those on their way to a folder, and for the import of a library; both take no network
UNREACHABLE_S = 10  # after which a server counts as unreachable
LONGEST = 500  # characters of a setting in MLflow
MOST_TEXT = 200  # characters of the reason in a warning
AT_ONCE = 100  # settings in one request to MLflow
EXPERIMENT = "uavlab"  # of MLflow
NOT_IN_WANDB = re.compile(r"[/\\#?%:]")
NOT_IN_MLFLOW = re.compile(r"[^\w\-. /]")
PRIVATE = {
    "WANDB_ERROR_REPORTING": "false",
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"},
    **{"MLFLOW_HTTP_REQUEST_TIMEOUT": str(UNREACHABLE_S), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"},
}
"""Environment variables of both libraries, where they are not set: no reports to their makers, and no long waits."""


@dataclass(frozen=True)
class Client:
    """An open run in a tracker: its name there, a function that writes a row, and one that ends the writing."""

    run: str
    write: Callable[[int, Values], None]
    close: Callable[[], None]


class Tracker:
    """A run in one tracker, written by a thread that starts with a row and ends with ``close``."""

    def __init__(self, name: str, place: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """Track the run in a folder at a ``place``: a project of W&B, or a folder or an address of MLflow."""
        require(name, f"{name}={place}", name)
        self.name, self.place, self.folder, self.settings = name, place, folder, settings
        self._queue: queue.Queue[tuple[int, Values] | None] = queue.Queue(MOST_ROWS)
        self._thread: threading.Thread | None = None
        self._imported = threading.Event()
        self._failure = ""  # why there are no more rows
        self._warned = False

    def write(self, number: int, values: Values) -> None:
        if not self._failure:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self._put((number, dict(values)))
        self._warn()

    def close(self) -> None:
        """End the thread after the rows that it has; the next row starts another."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._put(None)
            self._imported.wait(FOLDER_S)
            limit = FOLDER_S if self.name == "mlflow" and is_folder(self.place) else CLOSE_S
            thread.join(limit)
            if thread.is_alive():
                self._failure = f"{self._queue.qsize()} rows had not arrived after {limit:g} s"
        self._warn()

    def _put(self, row: tuple[int, Values] | None) -> None:
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self._failure = f"{MOST_ROWS:,} rows wait"

    def _warn(self) -> None:
        if self._failure and not self._warned:
            self._warned = True
            warnings.warn(f"{self.name}={one_line(self.place)}: {self._failure}; no more rows for it.", stacklevel=3)

    def _work(self) -> None:
        """Open the run, and write rows until the end; the thread that trains warns of a failure."""
        try:
            for name, value in PRIVATE.items():
                os.environ.setdefault(name, value)
            try:
                import_module(self.name)
            finally:
                self._imported.set()
            client = self._open()
            while not self._failure and (row := self._queue.get()) is not None:
                client.write(*row)
            client.close()
        except Exception as error:
            self._failure = self._failure or one_line(reason_of(error).strip().splitlines()[0])[:MOST_TEXT]

    def _open(self) -> Client:
        """Go on with the run of this folder in the tracker, or begin one and store its name."""
        path, stored = self.folder / f"{self.name}.json", dict[str, Any]()
        with suppress(FileError):
            stored = read_json(path)
        known = str(stored["run"]) if stored.get("place") == self.place and "run" in stored else None
        client = OPENERS[self.name](self.place, self.folder, self.settings, known)
        if client.run != known:
            with suppress(ResourceError):  # a full disk is the run's to report
                write_json(path, {"place": self.place, "run": client.run})
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


def trackers_of(folder: Path, settings: Mapping[str, Any]) -> list[Tracker]:
    return [Tracker(name, settings[name], folder, settings) for name in OPENERS if settings.get(name)]


def is_address(place: str) -> bool:
    """Return whether a place of MLflow is an address, not a folder."""
    return "://" in place or place.startswith("databricks")


def is_folder(place: str) -> bool:
    """Return whether a place of MLflow is on this machine: a folder, or the address of a folder or of a file."""
    return not is_address(place) or place.startswith(("file:", "sqlite:"))


def is_project(name: str) -> bool:
    return 0 < len(name) <= 128 and name.isprintable() and bool(name.strip()) and not NOT_IN_WANDB.search(name)


def is_place(place: str) -> bool:
    return 0 < len(place) <= 1000 and place.isprintable() and bool(place.strip())


NO_SEEDS: Mapping[str, Sequence[float]] = {}


@dataclass(frozen=True)
class About:
    """What the files of a run hold besides its metrics."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[str] = ()  # names of the metrics by which policies are chosen
    per_update: Mapping[str, float] = field(default_factory=dict)  # such as {"agent-steps": 512}, for rates
    device: str = "cpu"  # where it trains, for the memory that it takes


class Board:
    """Writer of a run's TensorBoard files, so that it shows the run under its own name, and of its trackers."""

    def __init__(self, folder: Path, about: About) -> None:
        """Write to ``folder``; a file is created with the first row."""
        self.folder, self.about, self.trackers = folder, about, trackers_of(folder, about.settings)
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
        for name, row in seeds.items():
            groups |= {f"seeds/{first + at}/{_in_group(name)}": value for at, value in enumerate(row)}
        for tracker in self.trackers:
            tracker.write(number, {one_line(name): value for name, value in groups.items()})

    def track(self, trackers: Sequence[Tracker]) -> None:
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
