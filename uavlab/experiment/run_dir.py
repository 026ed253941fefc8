"""The folder of a run: its name, its settings, and the lock that lets one process at a time write."""

import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError
from uavlab.core.installation import program
from uavlab.core.registry import Resume
from uavlab.core.text import quote
from uavlab.experiment.config import Config, Layer, configure, parts
from uavlab.experiment.names import read_settings
from uavlab.experiment.presets import presets
from uavlab.experiment.settings import settings_of
from uavlab.storage.files import MAX_JSON_BYTES, read_json, read_regular, write_json

LOCK = ".lock"
MOST_FOLDERS = 200  # within each other
UNFINISHED = ".*.json.*"  # temporary files of a process that was killed while it wrote


@contextmanager
def lock_run_dir(folder: Path | None, new: bool = False) -> Iterator[None]:
    """Hold the lock of a run's folder, so that no other process writes into it.

    The operating system releases the lock when the process ends. Without a folder, nothing is locked.

    Raises:
        ConfigError: Another process holds the lock, or the folder of a ``new`` run is not empty.
        ResourceError: The folder cannot be created or written.
    """
    if folder is None:
        yield
        return
    path = folder / LOCK
    lock = FileLock(path, blocking=False, thread_local=False)
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            if new:
                require_empty(folder)
            for rest in folder.glob(UNFINISHED):
                rest.unlink()
            now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
            path.write_text(f"process {os.getpid()} on {platform.node()} since {now}\n", encoding="utf-8")
        except Timeout as error:
            owner = path.read_text(encoding="utf-8").strip() or "another process"
            raise ConfigError(f"{folder}: in use by {owner}; wait until that run has ended, or stop it.") from error
        except OSError as error:
            raise ResourceError(f"{folder}: cannot be written ({error.strerror}); choose another folder.") from error
        yield
    finally:  # also after an interrupt: a notebook's traceback keeps this frame and its lock alive
        lock.release()


def read_run_files(folder: Path) -> bytes:
    """Read settings and status of a run as bytes, to detect later changes by another process."""
    content = b""
    for name in ("config.json", "run.json"):
        with suppress(OSError):
            content += read_regular(folder / name, MAX_JSON_BYTES)
    return content


def read_command(folder: Path) -> str:
    """Return the command that started a run, or an empty string if it is unknown."""
    try:
        return str(read_json(folder / "run.json").get("command", ""))
    except FileError:
        return ""


def require_empty(folder: Path) -> Path:
    """Return the folder if a new run may use it.

    Raises:
        ConfigError: It is a file, not empty, nested too deeply, or its name is not printable.
    """
    if not str(folder).isprintable():
        raise ConfigError(f"out {quote(str(folder))}: expected a name of characters that can be written.")
    if len(folder.parts) > MOST_FOLDERS:
        raise ConfigError(
            f"out {quote(str(folder))}: {len(folder.parts):,} nested folders; expected at most {MOST_FOLDERS}."
        )
    own = {folder / LOCK, *(folder.glob(UNFINISHED) if folder.is_dir() else ())}
    if folder.exists() and (not folder.is_dir() or set(folder.iterdir()) - own):
        hint = f", or `{program()} resume {shlex.quote(str(folder))}`" if (folder / "config.json").exists() else ""
        raise ConfigError(f"{folder}: not empty; choose a new folder{hint}.")
    return folder


def run_name(name: str) -> str:
    """Return a run's name if it is valid.

    Raises:
        ConfigError: The name is too long, or has other characters than letters, digits, dot, dash and underscore.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum()) or len(name) > 80 or name.startswith(("-", ".")):
        raise ConfigError(
            f"--name {quote(name)}: expected 1 to 80 letters, digits, '.', '_', '-', starting with none of '.-'."
        )
    return name


def write_config(folder: Path, config: Config) -> None:
    """Write all settings of a run to its ``config.json``."""
    write_json(
        folder / "config.json",
        {"preset": config.preset, "environment": presets()[config.preset].env, "values": config.values},
    )


def read_config(folder: Path, *changes: Mapping[str, Any]) -> Config:
    """Read the settings of a run and apply changes to them.

    Raises:
        FileError: The folder holds no run.
        ConfigError: Its preset is not registered, its settings are invalid, or a change does not fit the saved state.
    """
    stored = read_settings(folder)
    values = Layer(stored["values"], dict.fromkeys(stored["values"], str(folder / "config.json")))
    for one, other in (("minutes", "updates"), ("updates", "minutes")):
        if any(one in layer for layer in changes):
            values[other] = None  # a new target takes the place of the old one
    config = configure(stored["preset"], values, *changes)
    require_resumable(folder, stored["values"], config)
    return config


def require_resumable(folder: Path, before: Mapping[str, Any], config: Config) -> list[str]:
    """Return the changed settings that may change results, as ``lr 0.001 -> 0.0005``.

    Raises:
        ConfigError: A changed setting does not fit the saved state.
    """
    after = {key: list(value) if isinstance(value, tuple) else value for key, value in config.values.items()}  # as JSON
    common = [key for key in after if key in before]  # older versions lack newer settings
    changes = {key: f"{key} {before[key]} -> {after[key]}" for key in common if before[key] != after[key]}
    resume = {each.name: each.resume for part in parts(config.task.settings) for each in settings_of(part)}
    refused = [text for key, text in changes.items() if resume.get(key, Resume.NO) is Resume.NO]
    if refused:
        allowed = sorted(name for name, mark in resume.items() if mark is not Resume.NO)
        raise ConfigError(
            f"{folder}: cannot go on with {', '.join(refused)}; start a new run for that. A resumed run may change "
            f"{', '.join(allowed)}."
        )
    return [text for key, text in changes.items() if resume[key] is not Resume.SAME]


def advice(error: DivergedError, config: Config, folder: Path | None, last: Path | None) -> str:
    """Return the next step after a number that is not finite; ``last`` is the last good checkpoint."""
    good = f"; {last.name} is the last good state" if last else ""
    if error.record["kind"] == "environment":
        return f"The environment made it: see `{program()} check {config.preset}`{good}."
    known = {name: getattr(config.learner, name, None) for name in ("lr", "critic_lr")}
    rates = " ".join(f"--set {name}={rate / 2:g}" for name, rate in known.items() if rate)
    if last is None:
        return f"Nothing was saved before; start a new run with lower rates: {rates}."
    resume = f"{program()} resume {shlex.quote(str(folder))} {rates}"
    return f"{last.name} is the last good state: `{resume}` goes on from it."
