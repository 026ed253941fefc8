"""The state of a run: the parts that a change of settings replaces, and what else is saved and digested."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import RankError
from uavlab.core.installation import invocation
from uavlab.core.rng import Streams
from uavlab.core.text import quote
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.experiment.diagnostics import Finding
from uavlab.experiment.schedules import Schedules, best_policies
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime
from uavlab.storage.machine import describe
from uavlab.storage.metrics_log import OPENERS, About, Recorder, in_digest

COMPARISON = "comparison"  # who changes settings to and fro
TIMED = "minutes: how many updates fit into them depends on the machine"
DECISIVE = ("device", "cpu", "cpu_id", "threads", "torch", "uavlab", "code")  # what may change the last bit


@dataclass(frozen=True)
class Progress:
    """A run after an update."""

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
        measured: The speed after it over that before, where that was measured (``uavlab_lab.live.trainer``).
    """

    update: int
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    by: str = "python"
    undone: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        texts = ", ".join(f"{name} {quote(old)} -> {quote(new)}" for name, (old, new) in self.settings.items())
        return f"update {self.update}: {texts}{f', undone: {self.undone}' if self.undone else ''}"


@dataclass
class Parts:
    """All that a change of settings replaces in a run."""

    config: Config
    rt: Runtime
    rng: Streams
    learner: Any
    source: Any
    schedules: Schedules
    machine: dict[str, Any]
    not_exact_reasons: list[str]  # why the run cannot be repeated bit for bit
    forced: bool = False  # whether the last score was taken because the run ended, not because one was due
    evals_since_best: int = 0  # evaluations since the best score

    def done(self, number: int, seconds: float) -> bool:
        """Return whether a run is at its target of updates or minutes, or out of patience."""
        settings = self.config.run
        if settings.patience is not None and self.evals_since_best >= settings.patience:
            return True
        updates_reached = settings.updates is not None and number >= settings.updates
        return updates_reached or (settings.minutes is not None and seconds >= 60 * settings.minutes)


def build_parts(config: Config, ranks: Ranks = ALONE) -> Parts:
    with build.enough_memory():
        rt, rng, learner, source = build.assemble(config, ranks=ranks)
    with rt.scope():
        machine = describe(rt.device)
    schedules = Schedules(config, rng.seeds, source, learner, ranks.size)
    return Parts(config, rt, rng, learner, source, schedules, machine, [TIMED] if config.run.minutes else [])


class RunState:
    """A run between two updates."""

    def __init__(self, parts: Parts, folder: Path | None) -> None:
        self.parts, self.folder = parts, folder
        self.spare: Parts | None = None  # the parts before the last change
        self.number, self.seconds = 0, 0.0  # updates, and seconds of training
        self.status, self.digest, self.command = "new", "", invocation()
        self.best_team, self.best_groups = best_policies(parts.config, parts.learner.parameters())
        self.changes: list[Change] = []  # of settings between updates
        self.symptoms: list[Finding] = []  # what ails it
        self.alarms: list[dict[str, Any]] = []  # those that went off, each with its update and text
        self.recorder = Recorder(folder, about(self))
        self.config_stored = True  # whether the folder holds the settings of this object
        self.files_seen = b""  # settings and status in the folder as this object wrote them
        self.last: Path | None = None  # the last checkpoint
        self.linkable = False  # whether the next checkpoint may link segments of replay from the last one
        self.pauses: list[float] = []  # seconds that each save took
        self.last_bytes, self.score_seconds = 0, 0.0  # bytes of the last save, seconds of the last evaluation
        self.stopping = False  # whether the run was asked to end after the update in progress
        self.all_stop = False  # whether a rank was asked to end before the last update, as all ranks know
        self.thread: Thread | None = None  # of the last update since ``train``

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def rt(self) -> Runtime:
        """The runtime, which applies the toggles."""
        return self.parts.rt

    @property
    def rng(self) -> Streams:
        return self.parts.rng

    @property
    def learner(self) -> Any:
        return self.parts.learner

    @property
    def source(self) -> Any:
        """The collector, the source of batches."""
        return self.parts.source

    @property
    def schedules(self) -> Schedules:
        """The stages and learning rates."""
        return self.parts.schedules

    @property
    def best(self) -> Float[Tensor, "R K P"]:
        """The parameters with each seed's best score; for seeds without a score, the newest."""
        return self.best_team.or_newest(self.learner.parameters())

    @property
    def best_score(self) -> Float[Tensor, " R"]:
        """The best score of each seed; -inf before the first evaluation."""
        return self.best_team.score[:, 0]

    @property
    def done(self) -> bool:
        """Whether the run is at its target of updates or minutes, or out of patience."""
        return self.parts.done(self.number, self.seconds)

    def stop(self) -> None:
        """Ask the run to end after the update in progress."""
        self.stopping = True


@dataclass(frozen=True)
class Item:
    """One part of a run's state, stored as one group of a checkpoint."""

    name: str
    read: Callable[[], dict[str, Tensor]]
    write: Callable[[dict[str, Tensor]], None]


def items_of(parts: Parts) -> list[Item]:
    """Return the state of the parts, without the rows of replay, in the order of restoring."""
    scaler, stages, rates = parts.rt.scaler, parts.schedules.progression, parts.schedules.rates

    def write_patience(state: dict[str, Tensor]) -> None:
        parts.evals_since_best = int(state["stale"])

    return [
        Item("learner", parts.learner.state_dict, parts.learner.load_state_dict),
        Item("source", parts.source.state_dict, parts.source.load_state_dict),
        *([] if scaler is None else [Item("scaler", scaler.state_dict, scaler.load_state_dict)]),
        *([] if stages is None else [Item("curriculum", stages.state_dict, stages.load_state_dict)]),
        *([] if rates.rules is None else [Item("plateau", rates.state_dict, rates.load_state_dict)]),
        *(
            []
            if parts.config.run.patience is None
            else [Item("patience", lambda: {"stale": torch.tensor(parts.evals_since_best)}, write_patience)]
        ),
        Item("streams", parts.rng.state_dict, parts.rng.load_state_dict),  # last, because building draws from them
    ]


def items(run: RunState) -> list[Item]:
    """Return the state of a run, without the rows of replay, in the order of restoring."""

    def write_best(state: dict[str, Tensor]) -> None:
        parameters, score = (state[key].to(run.rt.device) for key in ("parameters", "score"))
        run.best_team.load_state_dict({"parameters": parameters, "score": score[:, None]})

    def read_counters() -> dict[str, Tensor]:
        rows, seconds = len(run.recorder.rows), torch.tensor(run.seconds, dtype=torch.float64)
        return {"number": torch.tensor(run.number), "rows": torch.tensor(rows), "seconds": seconds}

    def write_counters(state: dict[str, Tensor]) -> None:
        run.number, run.recorder.saved_rows = int(state["number"]), int(state["rows"])
        run.seconds = float(state["seconds"])

    groups = run.best_groups
    return [
        Item("best", lambda: {"parameters": run.best, "score": run.best_score}, write_best),
        *([] if groups is None else [Item("best_by_group", groups.state_dict, groups.load_state_dict)]),
        Item("counters", read_counters, write_counters),
        *items_of(run.parts),
    ]


def not_exact(run: RunState) -> list[str]:
    """Return why a run cannot be repeated bit for bit, also what its environment has noticed so far."""
    return list(dict.fromkeys([*run.parts.not_exact_reasons, *run.source.inexact()]))


def ranks_record(run: RunState) -> dict[str, Any]:
    """Return how many ranks train a run, and the digest of the learner's state that all have; empty of one alone."""
    ranks, lost = run.rt.ranks, run.status in ("failed", "diverged")  # a GPU may wait for another rank then
    digest = {} if lost or ranks.size == 1 else {"learner_digest": learner_digest(run)}
    return {"ranks": ranks.size, "rank": ranks.rank, **digest} if ranks.size > 1 else {}


def require_equal(run: RunState) -> None:
    """Check that the learners of all ranks have the same state."""
    ranks = run.rt.ranks
    if ranks.size > 1 and not ranks.agree(learner_digest(run)):
        raise RankError(
            f"update {run.number}: the learners of {ranks.size} ranks differ; expected equal ones. Every gradient must "
            "pass through a gradient step of rt.grad, and what belongs to the worlds of a rank be named in `local`."
        )


def learner_digest(run: RunState) -> str:
    """Return a SHA-256 of a learner's state, without what belongs to the worlds of a rank."""
    state = run.learner.state_dict().items()
    sums = {name: _tensor_digest(tensor) for name, tensor in state if name not in run.learner.local}
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def decisions(run: RunState) -> list[dict[str, Any]]:
    return run.schedules.progression.log if run.schedules.progression else []


def changes_as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [{**asdict(each), "settings": {k: list(v) for k, v in each.settings.items()}} for each in changes]


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


def about(run: RunState) -> About:
    """Return what TensorBoard and trackers show of a run besides its metrics; of several ranks, rank 0 is tracked."""
    amount, unit = run.config.task.collector.data_per_update(run.config)
    settings = run.config.values | (dict.fromkeys(OPENERS) if run.rt.ranks.rank else {})
    return About(settings, list(run.config.evaluation.score), {unit: amount}, str(run.rt.device))


def digest(run: RunState) -> str:
    """Return a SHA-256 of a run's state, replay and rows of metrics, but not of times, and of counts."""
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
