"""The folder of a run: its name, its settings, and the lock that lets one process at a time write."""

import hashlib
import os
import platform
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from uavlab.core.errors import ConfigError, DivergedError, FileError, ResourceError
from uavlab.core.installation import program
from uavlab.core.registry import Resume
from uavlab.core.text import quote
from uavlab.experiment.config import Config, Layer, configure
from uavlab.experiment.names import DIGEST, check_settings, is_damaged, presets, read_settings
from uavlab.experiment.run_state import RunState, changes_as_json, decisions, not_exact, ranks_record
from uavlab.experiment.settings import settings_of
from uavlab.experiment.signals import defer_interrupt
from uavlab.runtime.toggles import changes
from uavlab.storage import checkpoint
from uavlab.storage.files import MAX_JSON_BYTES, json_digest, put_aside, read_json, read_regular, write_json

CONFIG, STATUS, LOCK = "config.json", "run.json", ".lock"
RANKS = "ranks"  # folder of the parts of all ranks but the first
IN_MEMORY = Path("this run")  # in messages
NO_GROUP = "(?!)"  # of a checkpoint: its manifest alone
MAX_LISTED = 5  # changed settings in one message
LONGEST_NAME = 50  # characters of a preset in the name of a run
UNFINISHED = ".*.json.*"  # temporary files of a process that was killed while it wrote


@contextmanager
def lock_run_dir(folder: Path | None, new: bool = False) -> Iterator[None]:
    """Hold the lock of a run's folder, if it has one, until the end of the block or the process."""
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
                require_empty(folder, run=True)
            for rest in folder.glob(UNFINISHED):
                rest.unlink()
            sign_lock(path)
        except Timeout as error:
            owner = lock_owner(path)
            raise ConfigError(f"{folder}: in use by {owner}; wait until that process has ended, or stop it.") from error
        except OSError as error:
            raise ResourceError(f"{folder}: cannot be written ({error.strerror}); choose another folder.") from error
        yield
    finally:  # also after an interrupt: a notebook's traceback keeps this frame and its lock alive
        lock.release()


def sign_lock(path: Path) -> None:
    """Write into a lock that this process holds which one that is."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    path.write_text(f"process {os.getpid()} on {platform.node()} since {now}\n", encoding="utf-8")


def lock_owner(path: Path) -> str:
    """Return which process holds a lock, as it wrote itself."""
    return path.read_text(encoding="utf-8").strip() or "another process"


def rank_folder(folder: Path, rank: int) -> Path:
    """Return where a rank keeps its part of the run in a folder, which itself is that of rank 0."""
    return folder if rank == 0 else folder / RANKS / str(rank)


def run_folder_of(part: Path) -> Path:
    """Return the folder of the run to which the part of a rank belongs."""
    return part.parents[1] if part.parent.name == RANKS else part


def read_run_files(folder: Path) -> bytes:
    """Read settings and status of a run as bytes, to detect later changes by another process."""
    content = b""
    for name in (CONFIG, STATUS):
        with suppress(OSError):
            content += read_regular(folder / name, MAX_JSON_BYTES)
    return content


def read_status(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` says about a run; empty if it cannot be read."""
    try:
        return read_json(folder / STATUS)
    except FileError:
        return {}


def require_empty(folder: Path, run: bool = False) -> Path:
    """Return the folder if it may be filled; for a ``run``, the message names the one that is there already."""
    if not str(folder).isprintable():
        raise ConfigError(f"out {quote(str(folder))}: expected a name of characters that can be written.")
    own = {folder / LOCK, *(folder.glob(UNFINISHED) if folder.is_dir() else ())}
    if folder.exists() and (not folder.is_dir() or set(folder.iterdir()) - own):
        hint = f", or {_resume(folder)}" if run and (folder / STATUS).exists() else ""
        raise ConfigError(f"{folder}: {'not empty' if folder.is_dir() else 'a file'}; choose a new folder{hint}.")
    return folder


def _resume(folder: Path) -> str:
    return f"`{program()} resume {shlex.quote(str(folder))}`"


def default_name(preset: str, seed: int) -> str:
    """Return the name of a run without one: PRESET-SEED, of an external environment without folders and other marks.

    >>> default_name("../mine/pond.py:make,size=3", 7)
    'pond.py-make-size-3-7'
    """
    own = re.sub(r"[^A-Za-z0-9._]+", "-", re.sub(r"^[^:,]*/", "", preset)).strip("-._")
    if len(own) > LONGEST_NAME:
        own = f"{own[:LONGEST_NAME]}-{hashlib.blake2b(preset.encode(), digest_size=4).hexdigest()}"
    return f"{own or 'run'}-{seed}"


def run_name(name: str) -> str:
    """Return a run's name if it is valid."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum()) or len(name) > 80 or name.startswith(("-", ".")):
        raise ConfigError(
            f"--name {quote(name)}: expected 1 to 80 letters, digits, '.', '_', '-', starting with none of '.-'."
        )
    return name


def write_config(folder: Path, config: Config) -> None:
    """Write all settings of a run, and their digest, to its ``config.json``; a damaged file is put aside."""
    try:
        read_settings(folder)
    except FileError:
        put_aside(folder / CONFIG)
    stored: dict[str, Any] = {"preset": config.preset, "environment": presets()[config.preset].env}
    stored |= {"values": config.values, **({"chosen": config.chosen} if config.chosen else {})}
    write_json(folder / CONFIG, {**stored, DIGEST: json_digest(stored)})


def read_config(folder: Path, *changes: Mapping[str, Any]) -> Config:
    """Read the settings of a run, compare them with those of its newest checkpoint, and apply changes."""
    meta = newest_meta(folder)
    try:
        stored = read_settings(folder)
    except FileError as error:
        hint = f" {_resume(folder)} restores it from the newest checkpoint." if meta else ""
        raise FileError(f"{error}{hint}") from error
    _require_saved(folder, stored, meta)
    return with_changes(folder, stored, changes)


def restore_config(folder: Path, *changes: Mapping[str, Any]) -> tuple[Config, bool]:
    """Read settings as ``read_config``, or from the newest checkpoint; return whether ``config.json`` holds them."""
    try:
        read_settings(folder)
    except FileError as error:
        meta = newest_meta(folder)
        if not meta.get("values"):
            raise
        text = f"{error} Going on with the settings of the checkpoint; a damaged file will be put aside, not removed."
        warnings.warn(text, stacklevel=3)
        return with_changes(folder, check_settings(folder / CONFIG, meta), changes), False
    return read_config(folder, *changes), not any(changes)


def newest_meta(folder: Path) -> dict[str, Any]:
    """Return the meta data of the newest checkpoint with an intact manifest; empty if there is none."""
    with warnings.catch_warnings(action="ignore"), suppress(FileError):
        return checkpoint.newest(folder / "checkpoints", NO_GROUP).meta
    return {}


def with_changes(folder: Path | None, stored: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Config:
    """Return stored settings, those of a run in memory without a folder, with layers of changes over them."""
    where = IN_MEMORY if folder is None else folder / CONFIG
    values = Layer(stored["values"], dict.fromkeys(stored["values"], str(where)))
    for one, other in (("minutes", "updates"), ("updates", "minutes")):
        if any(one in layer for layer in changes):
            values[other] = None  # a new target takes the place of the old one
    config = configure(stored["preset"], values, *changes)
    require_resumable(folder or IN_MEMORY, stored["values"], config)
    return replace(config, chosen=stored.get("chosen", {}))


def _require_saved(folder: Path, stored: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Compare the settings in ``config.json`` with those of a checkpoint; what a resumed run may change may differ."""
    forged = is_damaged(stored)
    texts = ["it does not match its own digest"] * forged
    if isinstance(meta.get("values"), dict) and meta["values"]:
        before, after = ({"preset": each.get("preset"), **each["values"]} for each in (meta, stored))
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        texts = [f"{name} {quote(before.get(name))} -> {quote(after.get(name))}" for name in names]
        if names and not forged and "preset" not in names:
            config = configure(stored["preset"], stored["values"])
            known = {name: value for name, value in meta["values"].items() if name in config.values}
            changes = _changes(configure(stored["preset"], known).values, config)
            texts = [text for text, mark in changes.items() if mark is Resume.NO]
    if texts:
        more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
        restore = f"move the file away, and {_resume(folder)} restores it" if meta else "start a new run"
        restore = "export the run again" if meta.get("exported") else restore
        raise FileError(
            f"{folder / CONFIG}: edited or damaged: {'; '.join(texts[:MAX_LISTED])}{more}. Undo the edit, or {restore}."
            f" Settings are changed by `{program()} resume RUN --set NAME=VALUE`."
        )


def _changes(before: Mapping[str, Any], config: Config) -> dict[str, Resume]:
    """Return the changed settings, as ``lr 0.001 -> 0.0005``, and whether a resumed run may change them."""
    marks, changed = _resume_marks(config), changed_values(before, config.values)
    return {f"{name} {old} -> {new}": marks.get(name, Resume.NO) for name, (old, new) in changed.items()}


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return old and new value of each setting that both have and that differs, tuples as lists, as JSON has them."""
    lists = [{k: [*v] if isinstance(v, tuple) else v for k, v in each.items()} for each in (before, after)]
    pairs = {name: (lists[0][name], value) for name, value in lists[1].items() if name in before}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _resume_marks(config: Config) -> dict[str, Resume]:
    return {setting.name: setting.resume for part in config.parts for setting in settings_of(part)}


def require_resumable(folder: Path, before: Mapping[str, Any], config: Config) -> list[str]:
    """Return the changed settings that may change results, as ``lr 0.001 -> 0.0005``."""
    changes = _changes(before, config)
    if refused := [text for text, mark in changes.items() if mark is Resume.NO]:
        allowed = sorted(name for name, mark in _resume_marks(config).items() if mark is not Resume.NO)
        raise ConfigError(
            f"{folder}: cannot go on with {', '.join(refused)}; start a new run for that. A resumed run may change "
            f"{', '.join(allowed)}."
        )
    return [text for text, mark in changes.items() if mark is not Resume.SAME]


def record_divergence(error: DivergedError, config: Config, folder: Path | None, last: Path | None) -> None:
    """Add advice to the error, and write its record into the folder if that is possible."""
    error.advice = advice(error, config, folder, last)
    record = {**error.record, "last_good_checkpoint": last.name if last else None}
    with suppress(ResourceError):
        if folder:
            write_json(folder / "divergence.json", record)


def advice(error: DivergedError, config: Config, folder: Path | None, last: Path | None) -> str:
    """Return the next step after a number that is not finite; ``last`` is the last good checkpoint."""
    good = f"; {last.name} is the last good state" if last else ""
    if error.record["kind"] == "environment":
        return f"The environment made it: see `{program()} check {config.preset}`{good}."
    known = {name: getattr(config.learner, name, None) for name in ("lr", "critic_lr", "clip")}
    rates = " ".join(f"--set {name}={value / 2:g}" for name, value in known.items() if value)
    if last is None:
        return f"Nothing was saved before; start a new run with lower rates and gradients: {rates}."
    where = run_folder_of(last.parents[1])
    resume = f"{program()} resume {shlex.quote(str(where))} {rates}"
    return f"{last.name} is the last good state: `{resume}` goes on from it."


def write_status(run: RunState, status: str, reason: str = "") -> None:
    """Write what a run is doing into its ``run.json``, if it has a folder."""
    run.status = status
    if run.folder is None:
        return
    record = status_record(run, reason)
    with defer_interrupt():  # between the two, ``files_seen`` would not match this object's own file
        write_json(run.folder / STATUS, record)
        run.files_seen = read_run_files(run.folder)


def store_config(run: RunState) -> None:
    """Write settings and changes, at once while the run trains, else when training begins."""
    run.config_stored = False
    if run.folder and run.status == "running":
        write_config(run.folder, run.config)
        write_status(run, "running")
        run.config_stored = True


def status_record(run: RunState, reason: str) -> dict[str, Any]:
    """Return what ``run.json`` says about a run."""
    environment = run.source.record()
    return {
        "status": run.status,
        "reason": reason,
        "command": run.command,
        "update": run.number,
        "target": run.config.run.updates,
        "seconds": round(run.seconds, 3),
        "seeds": list(run.rng.seeds),
        "evaluate_mean_action": run.config.run.evaluate_mean_action,
        "digest": run.digest,
        "not_exact": not_exact(run),
        **({"changes": changes_as_json(run.changes)} if run.changes else {}),
        "symptoms": [asdict(finding) for finding in run.symptoms],
        **({"chosen": run.config.chosen} if run.config.chosen else {}),
        **({"decisions": decisions(run)} if run.schedules.progression else {}),
        **({"alarms": run.alarms} if run.config.run.alarms else {}),
        "toggles": {**changes(run.rt.requested), "fell_back": run.rt.fell_back, "notes": run.rt.notes},
        "retries": run.rt.retries,
        **({"environment": environment} if environment else {}),
        "saves": saves(run),
        **ranks_record(run),
        "machine": run.parts.machine,
    }


def saves(run: RunState) -> dict[str, float]:
    """Return how often and how long (s) training paused to save, and the bytes of the last save."""
    count, longest = len(run.pauses), max(run.pauses, default=0.0)
    mean = round(sum(run.pauses) / max(count, 1), 4)
    return {"count": count, "mean_s": mean, "longest_s": round(longest, 4), "last_bytes": run.last_bytes}
