"""What a folder holds of a run, read part by part: a part that is missing or damaged leaves a note, not an error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import plotly.graph_objects as go

from uavlab.core.errors import UavlabError
from uavlab.experiment import policy, scores
from uavlab.experiment.config import Config, Device
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run_dir import STATUS, newest_meta
from uavlab.experiment.scores import Scores
from uavlab.lab.plots import flight
from uavlab.storage.files import read_json
from uavlab.storage.metrics_log import Recorder

T = TypeVar("T")


@dataclass(frozen=True)
class Scoring:
    """How policies are scored; see ``uavlab.evaluate``."""

    episodes: int = 200
    seed: int = 0
    mean_action: bool = False
    device: Device | None = None


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
        return self._attempt("status", lambda: read_json(self.folder / STATUS)) or {}

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
        self._attempt("metrics", recorder.read)
        return recorder.rows

    @cached_property
    def trained(self) -> TrainedPolicy | None:
        """Return the best policy of each seed."""
        return self._attempt("policy", lambda: policy.load(self.folder, self.scoring.device))

    @cached_property
    def scores(self) -> Scores | None:
        """Return the scores of these policies."""
        trained, how = self.trained, self.scoring
        if trained is None:
            return None
        return self._attempt("scores", lambda: scores.evaluate(trained, how.episodes, how.seed, how.mean_action))

    @cached_property
    def flight(self) -> go.Figure | None:
        """Return a flight of the first seed, if its team flies."""
        trained, how = self.trained, self.scoring
        if trained is None or not self.flies:
            return None
        states = self._attempt("flight", lambda: [*policy.fly(trained, how.seed, how.mean_action)])
        return states and self._attempt("picture", lambda: flight.animate(self.config.evaluation, states))

    @property
    def flies(self) -> bool:
        """Return whether it trains a team that flies."""
        return self.config.task.evaluation.flies

    @property
    def environment(self) -> str:
        """Return the name of the class of its environment."""
        return type(self.config.env).__name__

    def _attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what ``read`` returns; if it fails, None, with a note."""
        try:
            return read()
        except UavlabError as error:
            self.notes.append(f"No {what}: {error}")
        except Exception as error:  # of any kind: environments, learners and pictures may be a user's own
            self.notes.append(f"No {what}: {type(error).__name__}: {error}")
        return None
