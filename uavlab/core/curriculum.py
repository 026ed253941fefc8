"""The rules of a curriculum: after each score of a run, whether it stays, advances by a stage or falls back.

Decisions are pure functions of scores, so each run of several has its own, and a checkpoint holds all of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le

Kind = Literal["stay", "advance", "fall_back", "complete"]


@dataclass(frozen=True)
class Stage:
    """What a run trains on for a while, and when it goes on.

    Attributes:
        settings: Settings of the environment that differ from those of the task.
        mark: Score that passes.
        passes: Scores in a row that pass, with which a run advances.
        patience: Scores in a row without a new best one of the stage, after which it advances anyway; 0 for never.
        rate: Share of the learning rates.
        mix: Share of what a run learns from that is of this stage, and share that is of the stages before: of new
            worlds, of which former stages have equal parts; with replay also of the rows of each batch.
    """

    settings: Mapping[str, Any]
    mark: float = 0.8
    passes: Annotated[int, Ge(1), Le(1000)] = 5
    patience: Annotated[int, Ge(0), Le(100_000)] = 10
    rate: Annotated[float, Gt(0), Le(100)] = 1.0
    mix: tuple[Annotated[float, Gt(0), Le(1)], Annotated[float, Ge(0), Le(1)]] = (1.0, 0.0)


@dataclass(frozen=True)
class Fallback:
    """When a run falls back to the stage before.

    Attributes:
        settle: Scores at a stage before it may fall back.
        failures: Scores in a row below the margin, with which it falls back.
        margin: Share of the final score of the stage before that must be left.
        scale: Size of scores near zero, for margins: at least this much counts as the size of a final score.
        fallbacks: Most fallbacks of a run.
        decay: Factor of the learning rates at each fallback.
    """

    settle: Annotated[int, Ge(1), Le(1000)] = 5
    failures: Annotated[int, Ge(1), Le(1000)] = 3
    margin: Annotated[float, Ge(0), Le(1)] = 0.6
    scale: Annotated[float, Gt(0), Le(1e6)] = 0.1
    fallbacks: Annotated[int, Ge(0), Le(1000)] = 2
    decay: Annotated[float, Gt(0), Le(1)] = 0.5


ADVANCE = {
    "conservative": {"mark": 0.8, "passes": 5, "patience": 10},
    "aggressive": {"mark": 0.7, "passes": 3, "patience": 5},
}
"""The published rules of advancing, for stages that do not set their own."""


@dataclass(frozen=True)
class Curriculum:
    """Stages of a run, and the figure by which it is judged.

    Attributes:
        metric: Name of the figure.
        stages: From the first to the last.
        fallback: When a run falls back.
    """

    metric: str
    stages: tuple[Stage, ...]
    fallback: Fallback = Fallback()


@dataclass(frozen=True)
class Position:
    """Where a run is in its curriculum.

    Attributes:
        stage: Number of its stage, from 0.
        scores: How many scores it has had at this stage.
        passed: Last scores in a row that passed.
        failed: Last scores in a row below the margin.
        best: Best score at this stage; -inf before the first one.
        stale: Scores since the best one.
        finals: Final scores of the stages before, from the first on.
        fallbacks: Fallbacks so far.
        reached: The highest stage so far.
    """

    stage: int = 0
    scores: int = 0
    passed: int = 0
    failed: int = 0
    best: float = -math.inf
    stale: int = 0
    finals: tuple[float, ...] = ()
    fallbacks: int = 0
    reached: int = 0


class Decision(NamedTuple):
    """What follows from a score, and why in words."""

    kind: Kind
    reason: str


def threshold(final: float, rules: Fallback) -> float:
    """Return the score below which a run does worse than ``margin`` of a final score; for scores of either sign.

    >>> rules = Fallback(margin=0.6, scale=0.1)
    >>> [round(threshold(final, rules), 3) for final in (1.0, 0.0, -1.0)]
    [0.6, -0.04, -1.4]
    """
    return final - (1 - rules.margin) * max(abs(final), rules.scale)


def decide(position: Position, score: float, stages: Sequence[Stage], rules: Fallback) -> tuple[Position, Decision]:
    """Return the position of a run after a score, and the decision that led there.

    A score that is not a number neither passes nor is it a best one, and it counts as a failure.

    Args:
        position: Where the run is.
        score: Its score at this stage.
        stages: All stages.
        rules: When to fall back.
    """
    stage, last = stages[position.stage], position.stage == len(stages) - 1
    better = score > position.best
    low = threshold(position.finals[-1], rules) if position.stage else -math.inf
    here = replace(
        position,
        scores=position.scores + 1,
        passed=position.passed + 1 if score >= stage.mark else 0,
        failed=0 if score >= low else position.failed + 1,
        best=score if better else position.best,
        stale=0 if better else position.stale + 1,
    )
    if here.passed >= stage.passes:
        reason = f"{here.passed} scores in a row of at least {stage.mark:g}"
        return (here, Decision("complete", reason)) if last else (_next(here, score), Decision("advance", reason))
    settled = position.stage > 0 and here.scores >= rules.settle
    if settled and here.failed >= rules.failures and here.fallbacks < rules.fallbacks:
        reason = f"{here.failed} scores in a row below {low:g}, {rules.margin:g} of the stage before"
        back = Position(
            stage=here.stage - 1, finals=here.finals[:-1], fallbacks=here.fallbacks + 1, reached=here.reached
        )
        return back, Decision("fall_back", reason)
    if stage.patience and here.stale >= stage.patience and not last:
        reason = f"no better score than {here.best:g} in {here.stale}"
        return _next(here, here.best), Decision("advance", reason)
    return here, Decision("stay", "")


def _next(here: Position, final: float) -> Position:
    stage = here.stage + 1
    finals, reached = (*here.finals, final), max(stage, here.reached)
    return Position(stage=stage, finals=finals, fallbacks=here.fallbacks, reached=reached)


def shares(curriculum: Curriculum, stage: int) -> list[float]:
    """Return the share of new worlds that start at each stage while a run is at ``stage``.

    >>> stages = [Stage({}), Stage({}, mix=(0.7, 0.3)), Stage({}, mix=(0.6, 0.4))]
    >>> [shares(Curriculum("score", tuple(stages)), stage) for stage in range(3)]
    [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.2, 0.2, 0.6]]
    """
    now, before = curriculum.stages[stage].mix if stage else (1.0, 0.0)
    later = len(curriculum.stages) - stage - 1
    return [before / max(stage, 1)] * stage + [now] + [0.0] * later


def learning_rate(curriculum: Curriculum, position: Position) -> float:
    """Return the share of the learning rates of a run."""
    return curriculum.stages[position.stage].rate * curriculum.fallback.decay**position.fallbacks
