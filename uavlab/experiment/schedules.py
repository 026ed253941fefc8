"""What a run does by its own figures: the stages of each seed, its learning rates, and alarms."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import TrainingWarning
from uavlab.core.protocols import Source, parts
from uavlab.core.registry import Settings
from uavlab.experiment.best import Best
from uavlab.experiment.curriculum import Position, progression
from uavlab.experiment.validation import fields_of, problems_of, strict_model
from uavlab.runtime.grad_step import GradientStep

# A limit of an alarm is a number, or relative to the rows before: a robust z-score. The rows before exclude those that
# are judged, and those of former stages of a curriculum, where figures differ for good reason.
MEDIAN_OF_NORMAL = 0.6745  # the median distance from the median, in standard deviations
FEWEST = 10  # rows before, without which there is no relative limit
SMALLEST = 0.01  # of the median: the least deviation, for figures that hardly varied
LIMITS = ("above", "below", "rise", "fall")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Alarm:
    """A limit of one figure: one of ``above``, ``below``, ``rise`` and ``fall`` is set.

    Attributes:
        figure: Name in the rows of metrics, such as ``critic_loss`` or ``eval/completion``.
        above: It goes off if the figure is higher.
        below: It goes off if the figure is lower.
        rise: It goes off if the figure is more than so many robust deviations above the median of the rows before.
        fall: It goes off if it is more than so many below.
        rows: Rows in a row that hold the figure and are beyond a limit, with which the alarm goes off.
        window: Most rows before them with which ``rise`` and ``fall`` compare; fewer than 10 are not compared.
        stop: Whether the run then ends, as by Ctrl-C.
    """

    figure: str
    above: float | None = None
    below: float | None = None
    rise: Annotated[float, Gt(0), Le(1e6)] | None = None
    fall: Annotated[float, Gt(0), Le(1e6)] | None = None
    rows: Annotated[int, Ge(1), Le(100_000)] = 1
    window: Annotated[int, Ge(FEWEST), Le(100_000)] = 50
    stop: bool = False


def went_off(alarm: Alarm, rows: Sequence[Row], since: Sequence[int] = ()) -> str:
    """Return why an alarm goes off with the last row; empty if it does not, or already did.

    Each of several seeds is judged by its own figures; a figure that is not a number is beyond every limit. ``since``
    holds the update at which each seed came to its stage; ``rise`` and ``fall`` compare with no row up to then.
    """
    if not rows or alarm.figure not in rows[-1]:
        return ""
    rows = [row for row in rows if alarm.figure in row]
    relative, seeds = alarm.rise is not None or alarm.fall is not None, len(_each(alarm, rows[-1]))
    for seed in range(seeds):
        start = since[seed] if seed < len(since) else 0
        each = [_each(alarm, row) for row in rows if not relative or row["update"] > start]
        values = [figures[min(seed, len(figures) - 1)] for figures in each]
        judge = _is_moved if relative else _is_beyond
        if judge(alarm, values) and not judge(alarm, values[:-1]):
            where = f" (seed {seed + 1} of {seeds})" if seeds > 1 else ""
            times = f", for {alarm.rows} rows" if alarm.rows > 1 else ""
            return f"{alarm.figure} is {values[-1]:.4g}{where}, {_limit(alarm, values)}{times}"
    return ""


def deviations(value: float, before: Sequence[float]) -> float:
    """Return the robust z-score of a value: its distance from the median of others, in robust standard deviations.

    A deviation is the median distance from the median over 0.6745, and at least 1 % of the median. Where that is 0,
    so is the score. Only finite values count.

    Source:
        Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers".

    >>> deviations(9.0, [1.0, 2.0, 3.0, 4.0, 5.0])
    4.047
    """
    finite = [each for each in before if math.isfinite(each)]
    middle = median(finite)
    spread = max(median(abs(each - middle) for each in finite), SMALLEST * abs(middle))
    return MEDIAN_OF_NORMAL * (value - middle) / spread if spread else 0.0


def _is_moved(alarm: Alarm, values: Sequence[float]) -> bool:
    recent, before = values[-alarm.rows :], values[: -alarm.rows][-alarm.window :]
    if sum(map(math.isfinite, before)) < FEWEST:
        return False
    scores = [deviations(value, before) for value in recent]
    limit, sign = (alarm.rise, 1) if alarm.rise is not None else (alarm.fall or 0.0, -1)
    return not any(sign * score <= limit for score in scores)  # what is not a number is beyond


def _each(alarm: Alarm, row: Row) -> Sequence[float]:
    return row.get("each", {}).get(alarm.figure) or [row[alarm.figure]]


def _is_beyond(alarm: Alarm, values: Sequence[float]) -> bool:
    recent = values[-alarm.rows :]
    if len(recent) < alarm.rows:
        return False
    if alarm.above is not None:
        return not any(value <= alarm.above for value in recent)
    return not any(value >= (alarm.below or 0.0) for value in recent)


def _limit(alarm: Alarm, values: Sequence[float]) -> str:
    """Return in words what the last value is beyond."""
    if alarm.above is not None or alarm.below is not None:
        return f"above {alarm.above:g}" if alarm.above is not None else f"below {alarm.below:g}"
    before = values[: -alarm.rows][-alarm.window :]
    how = f"{abs(deviations(values[-1], before)):.3g} deviations {'above' if alarm.rise else 'below'}"
    return f"{how} the {len(before)} rows before"


# Learning rates fall as by torch.optim.lr_scheduler.ReduceLROnPlateau with a relative threshold, for scores of either
# sign.
@dataclass(frozen=True)
class Plateau:
    """When learning rates fall, and how far.

    Attributes:
        factor: Factor of the learning rates.
        patience: Scores in a row without an improvement that are borne; the rates fall with the next one.
        threshold: Share of the best score by which a score has to be higher to be an improvement.
        cooldown: Scores after a fall that do not count as missed improvements.
        least: Smallest share of the learning rates.
    """

    factor: Annotated[float, Gt(0), Lt(1)] = 0.8
    patience: Annotated[int, Ge(0), Le(100_000)] = 5
    threshold: Annotated[float, Ge(0), Le(1)] = 0.01
    cooldown: Annotated[int, Ge(0), Le(100_000)] = 5
    least: Annotated[float, Gt(0), Le(1)] = 0.05


@dataclass(frozen=True)
class Level:
    """Where a seed is.

    Attributes:
        rate: Share of the learning rates.
        best: Best score; -inf before the first one.
        stale: Scores in a row without an improvement.
        waits: Scores of the cool-down that are left.
    """

    rate: float = 1.0
    best: float = -math.inf
    stale: int = 0
    waits: int = 0


def follow(level: Level, score: float, rules: Plateau) -> Level:
    """Return where a seed is after a score; one that is not a number is no improvement.

    >>> level = Level()
    >>> for score in (1.0, 1.005, 1.0, 1.0):
    ...     level = follow(level, score, Plateau(factor=0.5, patience=2))
    >>> level.rate, level.best
    (0.5, 1.0)
    """
    least = -math.inf if level.best == -math.inf else level.best + rules.threshold * abs(level.best)
    better = score > least
    here = replace(level, best=score if better else level.best, stale=0 if better else level.stale + 1)
    if here.waits:
        here = replace(here, waits=here.waits - 1, stale=0)
    if here.stale <= rules.patience:
        return here
    return replace(here, rate=max(here.rate * rules.factor, rules.least), stale=0, waits=rules.cooldown)


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

    def __init__(self, config: Settings, seeds: Sequence[int], source: Source, learner: Any, ranks: int = 1) -> None:
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
        bests: Iterable[Best | None] = (),
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
    steps: list[GradientStep] = []
    for _, part in parts(learner):
        if isinstance(part, GradientStep):
            steps.append(part)
        elif not isinstance(part, Tensor):
            steps += gradient_steps(part)
    return steps
