"""The state of a run: one list of its parts, from which it is saved, restored and digested."""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment.policy import best_updates
from uavlab.experiment.run_dir import require_resumable
from uavlab.runtime.toggles import changes
from uavlab.storage import checkpoint
from uavlab.storage.board import About

if TYPE_CHECKING:
    from uavlab.experiment.run import Run

LOG = logging.getLogger(__name__)
SEGMENT = "replay-"  # replay is saved in segments, so that unchanged ones are not written again
WITHOUT_REPLAY = f"(?!{SEGMENT}).*"
META = {"machine": dict, "device": str, "values": dict, "lifted": list, "forced": bool, "rows": str}  # JSON
LATE = (
    "scaler",
    "patience",
    "best_by_group",
    "plateau",
)  # missing in checkpoints from before a setting or the task was changed
RETIRED = ("stage",)  # ignored leaves of worlds and rows in checkpoints of earlier versions; always zero
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
        "lifted": run.not_exact_reasons,
        "forced": run.forced,
        "best_updates": run.best_team.updates[:, 0].tolist(),
        "rows": run.recorder.digest(),
        "decisions": decisions(run),
        "alarms": run.schedules.alarms,
    }
    linked = (previous, unchanged) if previous is not None and unchanged else None
    path = checkpoint.save(folder, run.number, groups, meta, run.config.run.keep, linked)
    written = sum(tensor.nbytes for tensors in groups.values() for tensor in tensors.values())
    LOG.info("update %d: saved %s, %.1f MiB", run.number, path, written / 2**20)
    return path, written


def restore_latest(run: "Run", saved: checkpoint.Checkpoint, fresh_replay: bool) -> None:
    """Restore a newly built run from its newest checkpoint, and record why it cannot be repeated exactly.

    Raises:
        FileError: The checkpoint does not fit the settings.
        ConfigError: A changed setting, or the kind of device, does not fit the saved state.
    """
    before, here = saved.meta["device"], run.rt.device.type
    if before != here and run.config.run.device != here:
        raise ConfigError(
            f"{saved.path.parents[1]}: trained on {before}, this process runs on {here}; random streams do not carry "
            f"over. Resume it on {before}, or go on with new streams: --device {here}."
        )
    reasons = require_resumable(saved.path, saved.meta["values"], run.config)
    restore(run, saved, fresh_replay, streams=before == here)
    if before != here:
        run.rng.reopen(saved.step)
        reasons.append(f"{before} -> {here}, new random streams")
    reasons += machine_differences(saved.meta["machine"], run.machine)
    reasons += ["replay started anew"] * fresh_replay
    run.forced = saved.meta["forced"] and run.done
    reasons += ["it was scored once more, at its former target"] * (saved.meta["forced"] and not run.done)
    run.recorder.saved_digest = saved.meta["rows"]
    run.best_team.updates[:, 0] = torch.tensor(best_updates(saved.meta, run.config.run.runs))
    since = [f"update {saved.step}: {why}" for why in reasons]
    run.not_exact_reasons = list(dict.fromkeys([*saved.meta["lifted"], *run.not_exact_reasons, *since]))
    run.last, run.linkable = saved.path, not fresh_replay
    run.schedules.alarms = [*saved.meta.get("alarms", [])]
    if run.schedules.progression:
        run.schedules.progression.log = [*saved.meta.get("decisions", [])]
    run.schedules.apply(run.source, run.learner)


def newest(folder: Path, fresh_replay: bool) -> checkpoint.Checkpoint | None:
    """Read the newest intact checkpoint of a run in ``folder``; None if it has none yet.

    Raises:
        FileError: No checkpoint is intact (if replay alone is damaged, the message suggests ``--fresh-replay``), or the
            newest is an exported copy, or was not written by a run.
    """
    if not any(folder.glob("ckpt-*")):
        return None
    saved = _newest_intact(folder, fresh_replay)
    if "learner" not in saved.groups:
        raise FileError(f"{folder.parent}: an exported copy holds the policy alone; resume the run that it is from.")
    meta = saved.meta
    if any(not isinstance(meta.get(name), kind) for name, kind in META.items()) or not all(
        isinstance(reason, str) for reason in meta["lifted"]
    ):
        raise FileError(f"{saved.path}: was not written by a run; it lacks one of {', '.join(META)}.")
    return saved


def _newest_intact(folder: Path, fresh_replay: bool) -> checkpoint.Checkpoint:
    if fresh_replay:
        return checkpoint.newest(folder, WITHOUT_REPLAY)
    try:
        return checkpoint.newest(folder)
    except FileError as error:
        with warnings.catch_warnings(action="ignore"):
            step = checkpoint.newest(folder, WITHOUT_REPLAY).step  # raises the same error if more is damaged
        raise FileError(f"{error} At update {step} replay alone is broken: --fresh-replay goes on from it.") from error


def restore(run: "Run", saved: checkpoint.Checkpoint, fresh_replay: bool = False, streams: bool = True) -> None:
    """Restore a newly built run from a checkpoint; ``streams=False`` leaves its random streams as built.

    Raises:
        FileError: The checkpoint lacks a tensor, or a tensor has another shape or type.
    """
    groups = {
        group: {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in RETIRED}
        for group, tensors in saved.groups.items()
    }
    try:
        for item in items(run):
            if item.name in LATE and item.name not in groups:
                continue
            if item.name != "streams" or streams:
                item.write(stored := groups[item.name])
                if item.name != "streams" and (wrong := _kinds(item.read()) ^ _kinds(stored)):
                    raise RuntimeError("{}: {} of {}".format(*min(wrong)))
        segments = {name: rows for name, rows in groups.items() if name.startswith(SEGMENT)}
        run.source.load_segments(None if fresh_replay else segments)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(
            f"{saved.path}: does not fit the settings of its run ({error}); was it written by another version, or its "
            "config.json edited?"
        ) from error


def _kinds(tensors: Mapping[str, Tensor]) -> set[tuple[str, str, str]]:
    """Return name, shape and type of every tensor; ``load_state_dict`` may adapt them silently."""
    return {(name, str(tuple(tensor.shape)), str(tensor.dtype)) for name, tensor in tensors.items()}


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
        "digest": run.digest,
        "not_exact": run.not_exact_reasons,
        "symptoms": [asdict(each) for each in run.symptoms],
        **({"chosen": run.config.chosen} if run.config.chosen else {}),
        **({"decisions": decisions(run)} if run.schedules.progression else {}),
        **({"alarms": run.schedules.alarms} if run.config.run.alarms else {}),
        "toggles": {**changes(run.rt.requested), "fell_back": run.rt.fell_back},
        "retries": run.rt.retries,
        "saves": run.saves(),
        "machine": run.machine,
    }


def decisions(run: "Run") -> list[dict[str, Any]]:
    """Return the decisions of a run's curriculum."""
    return run.schedules.progression.log if run.schedules.progression else []


def about(run: "Run") -> About:
    """Return what TensorBoard shows of a run besides its metrics."""
    amount, unit = run.config.task.collector.pace(run.config)
    return About(run.config.values, list(run.config.evaluation.score), {unit: amount}, str(run.rt.device))


def digest(run: "Run") -> str:
    """Return a SHA-256 of a run's state, replay and rows of metrics.

    Times are left out, because they differ between equal runs.
    """
    parts = {f"{item.name}/{key}": tensor for item in items(run) for key, tensor in item.read().items()}
    parts |= {f"replay/{key}": tensor for key, tensor in run.source.rows().items()}
    sums = {key: _tensor_digest(tensor) for key, tensor in parts.items() if key != "counters/seconds"}
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.recorder.rows]
    return hashlib.sha256(json.dumps([sums, rows], sort_keys=True).encode()).hexdigest()


def _tensor_digest(tensor: Tensor) -> str:
    array = tensor.detach().cpu().contiguous().numpy()
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def machine_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences between two machines (``machine.describe``) that may change the last bit of a result."""
    return [f"{key} {before.get(key)} -> {after[key]}" for key in DECISIVE if before.get(key) != after[key]]
