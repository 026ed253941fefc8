"""The state of a run: one list of its parts, from which it is saved, restored and digested."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uavlab.core.errors import FileError, RankError
from uavlab.core.registry import Resume
from uavlab.core.rng import is_shared
from uavlab.core.text import quote
from uavlab.experiment.instruments import in_digest
from uavlab.experiment.settings import settings_of
from uavlab.runtime.toggles import Toggles, changes
from uavlab.storage import checkpoint
from uavlab.storage.board import About
from uavlab.storage.trackers import OPENERS

if TYPE_CHECKING:
    from uavlab.experiment.run import Run

LOG = logging.getLogger(__name__)
SEGMENT = "replay-"  # replay is saved in segments, so that unchanged ones are not written again
LATE = ("scaler", "patience", "best_by_group", "plateau")  # missing where a setting or the task was changed
TIMED = "minutes: how many updates fit into them depends on the machine"
LATE_TENSORS = (".behind",)  # missing where a gradient step could not be undone
MISFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # of a state to restore
DECISIVE = ("device", "cpu", "cpu_id", "threads", "torch", "uavlab", "code")  # what may change the last bit


@dataclass(frozen=True)
class Progress:
    """State of a run after an update."""

    number: int  # updates so far
    target: int | None  # updates at which the run ends, if it has such a target
    seconds: float  # of training so far
    metrics: dict[str, float] | None = None  # means over seeds, at updates that are logged
    score: dict[str, float] | None = None  # means over seeds, at updates that are evaluated
    each: dict[str, list[float]] | None = None  # figures of each seed, at updates that are evaluated


@dataclass(frozen=True)
class Change:
    """A change of settings between two updates.

    Attributes:
        update: The last update before it.
        settings: Old and new value of each setting that changed, by name.
        by: Who changed it: ``python``, ``panel``, ``script``, ``comparison``, ``fallback``, ``monitor``
            (the panel) or ``resume``.
        undone: Why it was undone; empty if it holds.
        measured: The speed after it over that before, where that was measured (``uavlab.live.comparison``).
    """

    update: int
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    by: str = "python"
    undone: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the change as a line of text."""
        texts = ", ".join(f"{name} {quote(old)} -> {quote(new)}" for name, (old, new) in self.settings.items())
        return f"update {self.update}: {texts}{f', undone: {self.undone}' if self.undone else ''}"


@dataclass(frozen=True)
class Item:
    """One part of a run's state, stored as one group of a checkpoint."""

    name: str
    read: Callable[[], dict[str, Tensor]]
    write: Callable[[dict[str, Tensor]], None]


def items(run: "Run") -> tuple[Item, ...]:
    """Return the parts of a run's state, without the rows of replay, in the order of restoring."""

    def read_best() -> dict[str, Tensor]:
        return {"parameters": run.best, "score": run.best_score}

    def write_best(state: dict[str, Tensor]) -> None:
        parameters, score = (state[key].to(run.rt.device) for key in ("parameters", "score"))
        run.best_team.load_state_dict({"parameters": parameters, "score": score[:, None]})

    def read_counters() -> dict[str, Tensor]:
        rows, seconds = len(run.recorder.rows), torch.tensor(run.seconds, dtype=torch.float64)
        return {"number": torch.tensor(run.number), "rows": torch.tensor(rows), "seconds": seconds}

    def write_counters(state: dict[str, Tensor]) -> None:
        run.number, run.recorder.saved_rows = int(state["number"]), int(state["rows"])
        run.seconds = float(state["seconds"])

    def read_patience() -> dict[str, Tensor]:
        return {"stale": torch.tensor(run.evals_since_best)}

    def write_patience(state: dict[str, Tensor]) -> None:
        run.evals_since_best = int(state["stale"])

    rates = run.schedules.rates
    scaler, groups, stages = run.rt.scaler, run.best_groups, run.schedules.progression
    return (
        Item("learner", run.learner.state_dict, run.learner.load_state_dict),
        Item("source", run.source.state_dict, run.source.load_state_dict),
        *([] if scaler is None else [Item("scaler", scaler.state_dict, scaler.load_state_dict)]),
        Item("best", read_best, write_best),
        *([] if groups is None else [Item("best_by_group", groups.state_dict, groups.load_state_dict)]),
        *([] if stages is None else [Item("curriculum", stages.state_dict, stages.load_state_dict)]),
        *([] if rates.rules is None else [Item("plateau", rates.state_dict, rates.load_state_dict)]),
        *([] if run.config.run.patience is None else [Item("patience", read_patience, write_patience)]),
        Item("counters", read_counters, write_counters),
        Item("streams", run.rng.state_dict, run.rng.load_state_dict),  # last, because building draws from them
    )


def save(run: "Run", folder: Path) -> tuple[Path, int]:
    """Write a checkpoint of ``run`` into ``folder``, linking unchanged segments of replay from the last one.

    Returns:
        The checkpoint and the bytes written for it.
    """
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
        "machine": run.machine,
        "lifted": not_exact(run),
        "forced": run.forced,
        "best_updates": run.best_team.updates[:, 0].tolist(),
        "rows": run.recorder.digest(),
        "decisions": decisions(run),
        "alarms": run.schedules.alarms,
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


def restore(run: "Run", saved: checkpoint.Checkpoint, fresh_replay: bool = False, streams: bool = True) -> None:
    """Restore a newly built run from a checkpoint; ``streams=False`` leaves its random streams as built."""
    try:
        write_items(run, saved.groups, saved.meta["values"], fresh_replay, streams)
    except MISFIT as error:
        raise FileError(
            f"{saved.path}: does not fit the settings of its run ({error}); was it written by another version, or its "
            "config.json edited?"
        ) from error


def write_items(
    run: "Run",
    groups: Mapping[str, Mapping[str, Tensor]],
    values: Mapping[str, Any],
    fresh_replay: bool = False,
    streams: bool = True,
) -> None:
    """Write the parts of a state, and replay, into another run; ``values`` are the settings that it is of.

    That run must be newly built unless all its parts are in the state.
    """
    parts = type(run.config.source), type(run.config.learner), Toggles
    reshaping = [each.name for part in parts for each in settings_of(part) if each.resume is Resume.RESHAPED]
    reshaped = any(values.get(name) != run.config.values.get(name) for name in reshaping)
    for item in items(run):
        if item.name in LATE and item.name not in groups:
            continue
        if item.name != "streams" or streams:
            item.write(stored := dict(groups[item.name]))
            checked = item.name != "streams" and not (item.name in ("source", "learner") and reshaped)
            if checked and (wrong := _kinds(item.read()) ^ _kinds(stored)):
                raise RuntimeError("{}: {} of {}".format(*min(wrong)))
    segments = {name: rows for name, rows in groups.items() if name.startswith(SEGMENT)}
    run.source.load_segments(None if fresh_replay else segments)


def _kinds(tensors: Mapping[str, Tensor]) -> set[tuple[str, str, str]]:
    """Return name, shape and type of every tensor; ``load_state_dict`` may adapt them silently."""
    return {(k, str(tuple(v.shape)), str(v.dtype)) for k, v in tensors.items() if not k.endswith(LATE_TENSORS)}


def not_exact(run: "Run") -> list[str]:
    """Return why a run cannot be repeated bit for bit, also what its environment has noticed so far."""
    return list(dict.fromkeys([*run.not_exact_reasons, *run.source.inexact()]))


def status_record(run: "Run", reason: str) -> dict[str, Any]:
    """Return what ``run.json`` says about a run."""
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
        "symptoms": [asdict(each) for each in run.symptoms],
        **({"chosen": run.config.chosen} if run.config.chosen else {}),
        **({"decisions": decisions(run)} if run.schedules.progression else {}),
        **({"alarms": run.schedules.alarms} if run.config.run.alarms else {}),
        "toggles": {**changes(run.rt.requested), "fell_back": run.rt.fell_back, "notes": run.rt.notes},
        "retries": run.rt.retries,
        **({"environment": record} if (record := run.source.record()) else {}),
        "saves": saves(run),
        **ranks_record(run),
        "machine": run.machine,
    }


def ranks_record(run: "Run") -> dict[str, Any]:
    """Return how many ranks train a run, and the digest of the learner's state that all have; empty of one alone."""
    ranks = run.rt.ranks
    if ranks.size == 1:
        return {}
    lost = run.status in ("failed", "diverged")  # a GPU may wait for another rank then
    digest = {} if lost else {"learner_digest": learner_digest(run)}
    return {"ranks": ranks.size, "rank": ranks.rank, **digest}


def require_equal(run: "Run") -> None:
    """Check that the learners of all ranks have the same state."""
    ranks = run.rt.ranks
    if ranks.size > 1 and not ranks.agree(learner_digest(run)):
        raise RankError(
            f"update {run.number}: the learners of {ranks.size} ranks differ; expected equal ones. Every gradient must "
            "pass through a gradient step of rt.grad, and what belongs to the worlds of a rank be named in `local`."
        )


def learner_digest(run: "Run") -> str:
    """Return a SHA-256 of a learner's state, without what belongs to the worlds of a rank."""
    state = run.learner.state_dict().items()
    sums = {name: _tensor_digest(tensor) for name, tensor in state if name not in run.learner.local}
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def adopt(run: "Run", saved: checkpoint.Checkpoint, streams: bool = True) -> None:
    """Restore what all ranks share from a checkpoint of rank 0; worlds, replay and streams of its own stay as built.

    ``streams=False`` leaves all streams as built.
    """
    own = {item.name: {name: tensor.clone() for name, tensor in item.read().items()} for item in items(run)}
    local = {name: own["learner"][name] for name in run.learner.local if name in own["learner"]}
    shared = {name: state for name, state in saved.groups["streams"].items() if is_shared(name) or name == "salt"}
    groups = {name: state for name, state in saved.groups.items() if not name.startswith(SEGMENT)}
    groups |= {"source": own["source"], "learner": {**groups["learner"], **local}}
    groups |= {"streams": {**own["streams"], **shared}}
    groups |= {"counters": {**groups["counters"], "rows": torch.tensor(0)}}
    restore(run, replace(saved, groups=groups), streams=streams)


def decisions(run: "Run") -> list[dict[str, Any]]:
    """Return the decisions of a run's curriculum."""
    return run.schedules.progression.log if run.schedules.progression else []


def changes_as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [{**asdict(each), "settings": {k: list(v) for k, v in each.settings.items()}} for each in changes]


def saves(run: "Run") -> dict[str, float]:
    """Return how often and how long (s) training paused to save, and the bytes of the last save."""
    count, longest = len(run.pauses), max(run.pauses, default=0.0)
    mean = round(sum(run.pauses) / max(count, 1), 4)
    return {"count": count, "mean_s": mean, "longest_s": round(longest, 4), "last_bytes": run.last_bytes}


def parse_changes(value: Any) -> list[Change]:
    """Return the changes that ``changes_as_json`` wrote; what is no such list is empty."""
    kinds = {"update": int, "by": str, "undone": str, "measured": dict}
    try:
        changes = [
            Change(**{**each, "settings": {k: (a, b) for k, (a, b) in each["settings"].items()}}) for each in value
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    return [each for each in changes if all(type(getattr(each, name)) is kind for name, kind in kinds.items())]


def about(run: "Run") -> About:
    """Return what TensorBoard and trackers show of a run besides its metrics; of several ranks, rank 0 is tracked."""
    amount, unit = run.config.task.collector.data_per_update(run.config)
    settings = run.config.values | (dict.fromkeys(OPENERS) if run.rt.ranks.rank else {})
    return About(settings, list(run.config.evaluation.score), {unit: amount}, str(run.rt.device))


def digest(run: "Run") -> str:
    """Return a SHA-256 of a run's state, replay and rows of metrics.

    Times are left out, because they differ between equal runs, and counts, which follow from the rest.
    """
    parts = {f"{item.name}/{key}": tensor for item in items(run) for key, tensor in item.read().items()}
    parts |= {f"replay/{key}": tensor for key, tensor in run.source.rows().items()}
    sums = {key: _tensor_digest(tensor) for key, tensor in parts.items() if key != "counters/seconds"}
    rows = [{key: value for key, value in row.items() if in_digest(key)} for row in run.recorder.rows]
    return hashlib.sha256(json.dumps([sums, rows], sort_keys=True).encode()).hexdigest()


def _tensor_digest(tensor: Tensor) -> str:
    array = tensor.detach().cpu().contiguous().numpy()
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def machine_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences between two machines (``machine.describe``) that may change the last bit of a result."""
    return [f"{key} {before.get(key)} -> {after[key]}" for key in DECISIVE if before.get(key) != after[key]]
