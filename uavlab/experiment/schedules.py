"""What a run does by its own figures: the stages of each seed, its learning rates, and alarms."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.alarms import LIMITS, Alarm, went_off
from uavlab.core.curriculum import Position
from uavlab.core.errors import TrainingWarning
from uavlab.core.plateau import Level, Plateau, follow
from uavlab.core.protocols import Source, parts
from uavlab.experiment.curriculum import progression
from uavlab.experiment.validation import fields_of, problems_of, strict_model
from uavlab.runtime.grad_step import GradientStep

if TYPE_CHECKING:
    from uavlab.experiment.best import Best
    from uavlab.experiment.config import Config


def schedule_problems(values: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the settings ``plateau`` and ``alarms`` among valid settings of a run."""
    tables: list[tuple[str, type[Any], Mapping[str, Any]]]
    tables = [("plateau", Plateau, values["plateau"])] if values["plateau"] else []
    tables += [(f"alarm {number}", Alarm, table) for number, table in enumerate(values["alarms"] or [], 1)]
    problems = []
    for name, kind, table in tables:
        problems += [f"{name}: {text}" for text in problems_of(strict_model(fields_of(kind)), table)]
        given = {limit: table[limit] for limit in LIMITS if table.get(limit) is not None} if kind is Alarm else {}
        if kind is Alarm and len(given) != 1:
            got = " and ".join(f"{limit} {value}" for limit, value in given.items()) or "no limit"
            problems.append(f"{name}: got {got}; expected one of {', '.join(LIMITS)}")
    return problems


class Rates:
    """Shares of the learning rates of all seeds, by their scores.

    Attributes:
        rules: When rates fall; None for never.
        levels: Of each seed.
    """

    def __init__(self, table: Mapping[str, Any] | None, seeds: int) -> None:
        """Start at the full rates."""
        self.rules = None if table is None else Plateau(**table)
        self.levels = [Level() for _ in range(seeds)]

    def judge(self, scores: Sequence[float], others: Sequence[bool]) -> None:
        """Take the score of each seed; where ``others``, it is the last one of its task."""
        if self.rules is not None:
            levels = [follow(level, score, self.rules) for level, score in zip(self.levels, scores, strict=True)]
            self.levels = [
                replace(level, best=-math.inf, stale=0) if other else level
                for level, other in zip(levels, others, strict=True)
            ]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the level of each seed."""
        return {"levels": torch.tensor([[*vars(level).values()] for level in self.levels], dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore levels."""
        self.levels = [
            Level(rate, best, int(stale), int(waits)) for rate, best, stale, waits in state["levels"].tolist()
        ]


class Schedules:
    """Stages and learning rates of all seeds, by their scores.

    Attributes:
        task: The task as policies are evaluated on it.
        progression: Where each seed is in a curriculum; None without.
        rates: Shares of the learning rates.
        alarms: Those that went off, each with its update and text.
    """

    def __init__(self, config: "Config", seeds: Sequence[int], source: Source, learner: Any, ranks: int = 1) -> None:
        """Start all seeds at the first stage, and at the full rates; ``source`` and ``learner`` follow them.

        Rates are multiplied as ``lr_scale`` says for so many ``ranks``.
        """
        self.scale = {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}[config.run.lr_scale]
        self.warmup, self.warm = config.run.warmup, 1.0  # its updates, and the share of the rates that holds now
        self.task, self.progression = config.evaluation, progression(config, seeds)
        self.rates = Rates(config.run.plateau, len(seeds))
        self.limits = [Alarm(**table) for table in config.run.alarms or ()]
        self.alarms: list[dict[str, Any]] = []
        self.apply(source, learner)

    @property
    def evaluation(self) -> Any:
        """The task on which each seed is scored now."""
        return self.progression.env if self.progression else self.task

    @property
    def since(self) -> list[int]:
        """The update at which each seed came to its stage; 0 for the first one, and without a curriculum."""
        return self.progression.since if self.progression else [0] * len(self.rates.levels)

    @property
    def counts(self) -> Bool[Tensor, " R"]:
        """Whether the score of each seed counts for its best policy: at the highest stage that it has reached."""
        every = torch.ones(len(self.rates.levels), dtype=torch.bool)
        return self.progression.counts if self.progression else every

    @property
    def begun(self) -> bool:
        """Whether a curriculum has had a score of any seed."""
        return self.progression is not None and any(each != Position() for each in self.progression.positions)

    def judge(
        self,
        figures: dict[str, Float[Tensor, "R E"]],
        scores: Float[Tensor, " R"],
        update: int,
        bests: Iterable["Best | None"] = (),
    ) -> bool:
        """Decide by the figures and scores of all seeds; return whether one changed its stage.

        With a curriculum, ``figures`` get the number of the ``stage`` at which each seed was scored, from 1 on, and
        ``bests`` forget the scores of seeds that are at a higher stage than ever.
        """
        ahead, moved = [False] * len(scores), [False] * len(scores)
        if self.progression:
            before = self.progression.stages
            figures["stage"] = (torch.tensor(before) + 1.0)[:, None]
            values = figures[self.progression.plan.metric].mean(1).tolist()  # host sync
            ahead = self.progression.judge(values, update)
            moved = [stage != now for stage, now in zip(before, self.progression.stages, strict=True)]
        self.rates.judge(scores.tolist(), moved)
        for best in filter(None, bests):
            best.forget(torch.tensor(ahead, device=best.score.device))
        return any(moved)

    def apply(self, source: Source, learner: Any) -> None:
        """Start new worlds by the stages of the seeds, and set learning rates by their shares."""
        shares = torch.tensor([level.rate for level in self.rates.levels])
        if self.progression:
            self.progression.apply(source)
            shares = shares * torch.tensor(self.progression.rates())
        if self.progression or self.rates.rules or self.scale != 1 or self.warmup:
            for step in gradient_steps(learner):
                step.set_rates(shares * self.scale * self.warm)

    def warm_up(self, source: Source, learner: Any, number: int) -> None:
        """Set the rates of the next update after update ``number``, while they rise."""
        if number < self.warmup:
            self.warm = (number + 1) / self.warmup
            self.apply(source, learner)

    def check_alarms(self, rows: Sequence[Mapping[str, Any]], update: int) -> bool:
        """Warn of each alarm that goes off with the last row of the log; return whether one ends the run."""
        self._check_figures(rows)
        stop = False
        for alarm in self.limits:
            if text := went_off(alarm, rows, self.since):
                self.alarms.append({"update": update, "text": text})
                stop = stop or alarm.stop
                warnings.warn(f"alarm: {text}{'; the run ends' if alarm.stop else ''}", TrainingWarning, stacklevel=3)
        return stop

    def _check_figures(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """With the first row that holds scores, warn of alarms whose figure no row holds."""
        if not self.limits or not _is_scored(rows[-1]) or any(map(_is_scored, rows[:-1])):
            return
        known = {name for row in rows for name in row}
        for number, alarm in enumerate(self.limits, 1):
            if alarm.figure not in known:
                text = f"alarm {number}: no row has {alarm.figure!r} so far; rows have {', '.join(sorted(known))}"
                warnings.warn(text, TrainingWarning, stacklevel=4)


def _is_scored(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("eval/") for name in row)


def gradient_steps(learner: Any) -> list[GradientStep]:
    """Return the gradient steps of a learner, and of learners that it holds."""
    steps: list[GradientStep] = []
    for _, part in parts(learner):
        if isinstance(part, GradientStep):
            steps.append(part)
        elif not isinstance(part, Tensor):
            steps += gradient_steps(part)
    return steps
