"""Checkpoints of a run: its state written into a folder, and restored into newly built parts."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.registry import Resume
from uavlab.core.rng import is_shared
from uavlab.experiment.run_state import (
    Item,
    Parts,
    RunState,
    changes_as_json,
    decisions,
    items,
    not_exact,
    ranks_record,
    require_equal,
)
from uavlab.experiment.settings import settings_of
from uavlab.runtime.toggles import Toggles
from uavlab.storage import checkpoint

LOG = logging.getLogger(__name__)
SEGMENT = "replay-"  # replay is saved in segments, so that unchanged ones are not written again
LATE = ("scaler", "patience", "best_by_group", "plateau")  # missing where a setting or the task was changed
LATE_TENSORS = (".behind",)  # missing where a gradient step could not be undone
MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # of a state to restore


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
