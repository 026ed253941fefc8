"""What a folder holds of a run, read part by part: a part that is missing or damaged leaves a note, not an error.

A run of this process has the same parts, as they are now.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError, UavlabError
from uavlab.core.text import quote
from uavlab.experiment import diagnostics, policy, run_dir, scores
from uavlab.experiment.config import Config, Device
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import STATUS, newest_meta, read_config
from uavlab.experiment.scores import Figures, Scores
from uavlab.storage.files import read_json
from uavlab.storage.metrics_log import Recorder
from uavlab_lab.plots import flight

T = TypeVar("T")


@dataclass(frozen=True)
class Scoring:
    """How policies are scored; see ``uavlab.evaluate``."""

    episodes: int = 200
    seed: int = 0
    mean_action: bool = False
    device: Device | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for name, least in (("episodes", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"report: got {name}={quote(value)}; expected a whole number from {least} up.")
        if self.device is not None and self.device not in get_args(Device):
            known = ", ".join(get_args(Device))
            raise ConfigError(f"report: got device={quote(self.device)}; expected one of {known}.")


@dataclass
class RunFiles:
    """The parts of a run, each read when it is first asked for.

    Attributes:
        folder: Folder of the run.
        name: What tables and figures call it.
        config: Its settings.
        scoring: How its policies are scored.
        notes: What could not be read, and why.
    """

    folder: Path
    name: str
    config: Config
    scoring: Scoring = Scoring()
    notes: list[str] = field(default_factory=list)

    @cached_property
    def status(self) -> dict[str, Any]:
        """Return what ``run.json`` holds."""
        return self.attempt("status", lambda: read_json(self.folder / STATUS)) or {}

    @cached_property
    def machine(self) -> Mapping[str, Any]:
        """Return the machine that trained it."""
        machine = self.status.get("machine")
        return machine if isinstance(machine, dict) else {}

    @cached_property
    def exported(self) -> bool:
        """Return whether this is a copy with policies alone."""
        return bool(newest_meta(self.folder).get("exported"))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics."""
        recorder = Recorder(self.folder)
        self.attempt("metrics", recorder.read)
        return recorder.rows

    @cached_property
    def trained(self) -> TrainedPolicy | None:
        """Return the best policy of each seed."""
        return self.attempt("policy", lambda: policy.load(self.folder, self.scoring.device))

    @cached_property
    def figures(self) -> Figures | None:
        """Return the figures of these policies in each episode."""
        trained, how = self.trained, self.scoring
        if trained is None:
            return None
        return self.attempt("scores", lambda: scores.measure(trained, how.episodes, how.seed, how.mean_action))

    def summarize(self, figures: Figures) -> Scores | None:
        """Return the scores of its seeds, or of several runs' like it, from figures of each episode."""
        trained = self.trained
        if trained is None:
            return None
        count, device = self.scoring.episodes, trained.rt.device
        return self.attempt("scores", lambda: scores.summarize(self.config, figures, count, device))

    @cached_property
    def flight(self) -> go.Figure | None:
        """Return a flight of the first seed, if its team flies."""
        trained, how = self.trained, self.scoring
        if trained is None or not self.flies:
            return None
        states = self.attempt("flight", lambda: [*policy.fly(trained, how.seed, how.mean_action)])
        return states and self.attempt("picture", lambda: flight.animate(self.config.evaluation, states))

    @property
    def remarks(self) -> list[str]:
        """Return why it ended, why it cannot be repeated bit for bit, its symptoms, and the toggles that fell back."""
        status = self.status
        ended = [f"It ended because: {status['reason']}"] if status.get("reason") else []
        exact = status["not_exact"] if isinstance(status.get("not_exact"), list) else []
        symptoms = diagnostics.parse(status.get("symptoms"))
        toggles = status["toggles"] if isinstance(status.get("toggles"), dict) else {}
        back = toggles["fell_back"] if isinstance(toggles.get("fell_back"), dict) else {}
        return [
            *ended,
            *(f"Not bit for bit repeatable: {reason}" for reason in exact),
            *(f"Symptom at update {each.update:,}: {each.text}." for each in symptoms),
            *(f"The toggle {name} fell back: {reason}" for name, reason in back.items()),
        ]

    @property
    def flies(self) -> bool:
        """Return whether it trains a team that flies."""
        return self.config.task.evaluation.flies

    @property
    def environment(self) -> str:
        """Return the name of the class of its environment."""
        return type(self.config.env).__name__

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; if it fails, None, with a note."""
        try:
            return read()
        except UavlabError as error:
            self.notes.append(f"No {what}: {error}")
        except Exception as error:  # of any kind: environments, learners and pictures may be a user's own
            self.notes.append(f"No {what}: {type(error).__name__}: {error}")
        return None


def open_run(what: Run | str | Path) -> RunFiles:
    """Return the parts of a run of this process, or of a folder."""
    if isinstance(what, Run):  # nothing is read from its folder, and it may have none
        name = f"{what.config.preset} in memory" if what.folder is None else what.folder.resolve().name
        files = RunFiles(what.folder or Path(), name, what.config)
        vars(files).update(status=run_dir.status_record(what, ""), exported=False, rows=[*what.recorder.rows])
        return files
    folder = run_folder(what)
    return RunFiles(folder, folder.resolve().name, read_config(folder))


def open_runs(runs: Sequence[Run | str | Path]) -> tuple[list[RunFiles], list[str]]:
    """Return the parts of several runs, each once and under a name of its own, and why others are left out.

    Runs of one name are told apart by their folders, those in memory by numbers.
    """
    opened: dict[Any, RunFiles] = {}
    notes = []
    for what in runs:
        try:
            each = open_run(what)
        except UavlabError as error:
            notes.append(str(error))
            continue
        opened[what if each.folder == Path() else each.folder.resolve()] = each
    count = Counter(each.name for each in opened.values())
    for number, each in enumerate(opened.values(), 1):
        if count[each.name] > 1:
            each.name = f"{each.name} {number}" if each.folder == Path() else str(each.folder)
    return [*opened.values()], notes
