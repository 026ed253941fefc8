"""Checkpoints of a run: its state written into a folder, restored into new parts, and a run that goes on from it."""

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.registry import Resume
from uavlab.core.rng import is_shared
from uavlab.experiment import diagnostics
from uavlab.experiment.config import Config
from uavlab.experiment.names import require_run
from uavlab.experiment.policy import best_updates
from uavlab.experiment.rank_runs import require_same_settings
from uavlab.experiment.run_dir import (
    changed_values,
    lock_run_dir,
    rank_folder,
    read_run_files,
    read_status,
    require_resumable,
    restore_config,
    run_folder_of,
)
from uavlab.experiment.run_state import (
    Change,
    Item,
    Parts,
    RunState,
    about,
    changes_as_json,
    decisions,
    items,
    machine_differences,
    not_exact,
    parse_changes,
    ranks_record,
    require_equal,
)
from uavlab.experiment.settings import settings_of
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.toggles import Toggles
from uavlab.storage import checkpoint
from uavlab.storage.metrics_log import Recorder

LOG = logging.getLogger(__name__)
SEGMENT = "replay-"  # replay is saved in segments, so that unchanged ones are not written again
LATE = ("scaler", "patience", "best_by_group", "plateau")  # missing where a setting or the task was changed
LATE_TENSORS = (".behind",)  # missing where a gradient step could not be undone
MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # of a state to restore
State = TypeVar("State", bound=RunState)
WITHOUT_REPLAY = f"(?!{SEGMENT}).*"
META = {"machine": dict, "device": str, "values": dict, "lifted": list, "forced": bool, "rows": str}  # JSON


def save(run: RunState, folder: Path) -> tuple[Path, int]:
    """Write a checkpoint, linking unchanged segments of replay from the last one; return it and the bytes written."""
    previous = run.last if run.linkable else None
    there = [] if previous is None else checkpoint.list_groups(previous)
    segments = run.source.segments([name for name in there if name.startswith(SEGMENT)])
    groups = {item.name: item.read() for item in items(run)}
    groups["last"] = {"parameters": run.learner.parameters()}  # for ``load``; it is part of the learner's state
    groups |= {name: rows for name, rows in segments.items() if rows is not None}
    unchanged = [name for name, rows in segments.items() if rows is None]
    meta = {
        "preset": run.config.preset,
        "values": run.config.values,
        "device": run.rt.device.type,
        "machine": run.parts.machine,
        "lifted": not_exact(run),
        "forced": run.parts.forced,
        "best_updates": run.best_team.updates[:, 0].tolist(),
        "rows": run.recorder.digest(),
        "decisions": decisions(run),
        "alarms": run.alarms,
        "changes": changes_as_json(run.changes),
        **ranks_record(run),
    }
    linked = (previous, unchanged) if previous is not None and unchanged else None
    keep = run.config.run.keep + (run.rt.ranks.rank > 0)  # others save before rank 0, whose checkpoint counts for all
    require_equal(run)
    with run.rt.ranks.in_turn(first=False):
        path = checkpoint.save(folder, run.number, groups, meta, keep, linked)
    written = sum(tensor.nbytes for tensors in groups.values() for tensor in tensors.values())
    LOG.info("update %d: saved %s, %.1f MiB", run.number, path, written / 2**20)
    return path, written


def restore(run: RunState, saved: checkpoint.Checkpoint, fresh_replay: bool = False, streams: bool = True) -> None:
    """Restore a newly built run from a checkpoint; ``streams=False`` leaves its random streams as built."""
    try:
        write_items(run.parts, items(run), saved.groups, saved.meta["values"], fresh_replay, streams)
    except MISFIT as error:
        raise FileError(
            f"{saved.path}: does not fit the settings of its run ({error}); was it written by another version, or its "
            "config.json edited?"
        ) from error


def write_items(
    parts: Parts,
    state: Iterable[Item],
    groups: Mapping[str, Mapping[str, Tensor]],
    values: Mapping[str, Any],
    fresh_replay: bool = False,
    streams: bool = True,
) -> None:
    """Write a saved state, and replay, into parts that were newly built; ``values`` are the settings that it is of."""
    config = parts.config
    kinds = type(config.source), type(config.learner), Toggles
    settings = [setting for kind in kinds for setting in settings_of(kind)]
    reshaping = [setting.name for setting in settings if setting.resume is Resume.RESHAPED]
    reshaped = any(values.get(name) != config.values.get(name) for name in reshaping)
    for item in state:
        if (item.name in LATE and item.name not in groups) or (item.name == "streams" and not streams):
            continue
        item.write(stored := dict(groups[item.name]))
        checked = item.name != "streams" and not (item.name in ("source", "learner") and reshaped)
        if checked and (wrong := _kinds(item.read()) ^ _kinds(stored)):
            raise RuntimeError("{}: {} of {}".format(*min(wrong)))
    segments = {name: rows for name, rows in groups.items() if name.startswith(SEGMENT)}
    parts.source.load_segments(None if fresh_replay else segments)


def _kinds(tensors: Mapping[str, Tensor]) -> set[tuple[str, str, str]]:
    """Return name, shape and type of every tensor; ``load_state_dict`` may adapt them silently."""
    return {(k, str(tuple(v.shape)), str(v.dtype)) for k, v in tensors.items() if not k.endswith(LATE_TENSORS)}


def adopt(run: RunState, saved: checkpoint.Checkpoint, streams: bool = True) -> None:
    """Restore what all ranks share from a checkpoint of rank 0, without ``streams`` if these are False."""
    built = {item.name: {name: tensor.clone() for name, tensor in item.read().items()} for item in items(run)}
    local = {name: built["learner"][name] for name in run.learner.local if name in built["learner"]}
    shared = {name: state for name, state in saved.groups["streams"].items() if is_shared(name) or name == "salt"}
    groups = {name: state for name, state in saved.groups.items() if not name.startswith(SEGMENT)}
    groups |= {"source": built["source"], "learner": {**groups["learner"], **local}}
    groups |= {"streams": {**built["streams"], **shared}}
    groups |= {"counters": {**groups["counters"], "rows": torch.tensor(0)}}
    restore(run, replace(saved, groups=groups), streams=streams)


def resume_run(
    build: Callable[[Config], State],
    folder: Path,
    changes: Sequence[Mapping[str, Any]],
    fresh_replay: bool,
    ranks: Ranks = ALONE,
) -> State:
    """Return the run in a folder as it was at its newest intact checkpoint, see ``Run.resume``."""
    require_run(folder)  # before the lock creates a folder
    if (whole := run_folder_of(folder)) != folder:
        raise ConfigError(f"{folder}: the part of one rank; resume the run that it belongs to, {whole}.")
    own = rank_folder(folder, ranks.rank)
    with lock_run_dir(own):
        config, stored = restore_config(folder, *changes)
        require_same_settings(ranks, config.preset, config.values)
        if fresh_replay and not config.task.collector.replay:
            raise ConfigError(f"{folder}: a run of {config.preset} keeps no replay; leave out --fresh-replay.")
        saved, new = newest_of_all(folder, fresh_replay, ranks)
        run = build(config)
        run.folder, run.recorder = own, Recorder(own, about(run))
        if saved:
            restore_latest(run, saved, fresh_replay, new)
            require_equal(run)
        if run.done and any(changes):
            wanted = {key: value for layer in changes for key, value in layer.items()}
            raise ConfigError(
                f"{folder}: update {run.number} is at its target, so nothing would be trained with {wanted}; set a "
                "farther one, updates or minutes, counted from the run's beginning."
            )
        if not run.recorder.recover(run.number):
            run.parts.not_exact_reasons.append(f"update {run.number}: rows of metrics were lost or changed")
        status, run.config_stored = read_status(own), stored and ranks.rank == 0
        run.command = str(status.get("command", ""))
        run.symptoms = diagnostics.parse(status.get("symptoms"), run.number)
        run.files_seen = read_run_files(own)
    return run


def restore_latest(run: RunState, saved: checkpoint.Checkpoint, fresh_replay: bool, new: bool = False) -> None:
    """Restore a newly built run, and record why it is not exact; a ``new`` rank takes what all share from rank 0."""
    before, here = saved.meta["device"], run.rt.device.type
    if before != here and run.config.run.device != here:
        raise ConfigError(
            f"{saved.path.parents[1]}: trained on {before}, this process runs on {here}; random streams do not carry "
            f"over. Resume it on {before}, or go on with new streams: --device {here}."
        )
    reasons = require_resumable(saved.path, saved.meta["values"], run.config)
    if new:
        adopt(run, saved, streams=before == here)
    else:
        restore(run, saved, fresh_replay, streams=before == here)
        run.recorder.saved_digest = saved.meta["rows"]
    if before != here:
        run.rng.reopen(saved.step)
        reasons.append(f"{before} -> {here}, new random streams")
    reasons += machine_differences(saved.meta["machine"], run.parts.machine)
    reasons += ["replay started anew"] * fresh_replay
    count, size = saved.meta.get("ranks", 1), run.rt.ranks.size
    reasons += [f"ranks {count} -> {size}, each with its own worlds and batch"] * (count != size)
    run.parts.forced = saved.meta["forced"] and run.done
    reasons += ["it was scored once more, at its former target"] * (saved.meta["forced"] and not run.done)
    run.best_team.updates[:, 0] = torch.tensor(best_updates(saved.meta, run.config.run.runs))
    since = [f"update {saved.step}: {why}" for why in reasons]
    run.parts.not_exact_reasons = list(dict.fromkeys([*saved.meta["lifted"], *run.parts.not_exact_reasons, *since]))
    run.last, run.linkable = saved.path, not new and not fresh_replay and not run.source.resized
    run.changes = parse_changes(saved.meta.get("changes"))
    if changed := changed_values(saved.meta["values"], run.config.values):
        run.changes.append(Change(saved.step, changed, "resume"))
    run.alarms = [*saved.meta.get("alarms", [])]
    if run.schedules.progression:
        run.schedules.progression.log = [*saved.meta.get("decisions", [])]
    run.schedules.apply(run.source, run.learner)


def newest_of_all(folder: Path, fresh_replay: bool, ranks: Ranks) -> tuple[checkpoint.Checkpoint | None, bool]:
    """Read the newest checkpoint that all ranks have, None if there is none yet; return whether this rank is new, too.

    A rank that was not there when it was saved is new, and reads that of rank 0.
    """
    most: int | None = None
    while True:
        saved, new = newest(folder / "checkpoints", fresh_replay, most) if ranks.rank == 0 else None, False
        step = int(ranks.from_first(torch.tensor(-1 if saved is None else saved.step)))
        if step < 0:
            return None, False
        if ranks.rank > 0:
            place = Path("checkpoints", checkpoint.folder_name(step))
            first = checkpoint.load(folder / place, WITHOUT_REPLAY)
            new = first.meta.get("ranks", 1) <= ranks.rank
            saved = first if new else _intact(rank_folder(folder, ranks.rank) / place, fresh_replay)
        if not ranks.any(saved is None):
            return saved, new
        most = step - 1


def _intact(path: Path, fresh_replay: bool) -> checkpoint.Checkpoint | None:
    """Read the checkpoint of a rank; None if it is missing or broken."""
    try:
        return checkpoint.load(path, WITHOUT_REPLAY if fresh_replay else ".*")
    except FileError as error:
        warnings.warn(f"{error} All ranks go on from an earlier checkpoint.", stacklevel=3)
        return None


def newest(folder: Path, fresh_replay: bool, most: int | None = None) -> checkpoint.Checkpoint | None:
    """Read the newest intact checkpoint of a run in ``folder``, at most of update ``most``; None if it has none yet."""
    if not any(folder.glob("ckpt-*")):
        return None
    saved = _newest_intact(folder, fresh_replay, most)
    if "learner" not in saved.groups:
        raise FileError(f"{folder.parent}: an exported copy holds the policy alone; resume the run that it is from.")
    meta = saved.meta
    if any(not isinstance(meta.get(name), kind) for name, kind in META.items()) or not all(
        isinstance(reason, str) for reason in meta["lifted"]
    ):
        raise FileError(f"{saved.path}: was not written by a run; it lacks one of {', '.join(META)}.")
    return saved


def _newest_intact(folder: Path, fresh_replay: bool, most: int | None) -> checkpoint.Checkpoint:
    if fresh_replay:
        return checkpoint.newest(folder, WITHOUT_REPLAY, most)
    try:
        return checkpoint.newest(folder, most=most)
    except FileError as error:
        with warnings.catch_warnings(action="ignore"):
            step = checkpoint.newest(folder, WITHOUT_REPLAY, most).step  # raises the same error if more is damaged
        raise FileError(f"{error} At update {step} replay alone is broken: --fresh-replay goes on from it.") from error
