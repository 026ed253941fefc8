"""The rules of a curriculum: after each score of a run, whether it stays, advances by a stage or falls back.

Decisions are pure functions of scores, so each run of several has its own, and a checkpoint holds all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Kind = Literal["stay", "advance", "fall_back", "complete"]


@dataclass(frozen=True)
class Rules:
    """When a run advances and when it falls back.

    Attributes:
        passes: Scores in a row, at or above the stage's pass mark, with which it advances.
        patience: Scores in a row without a new best one of the stage, after which it advances anyway; 0 for never.
        settle: Scores at a stage before it may fall back.
        failures: Scores in a row below the margin, with which it falls back.
        margin: Share of the final score of the stage before that must be left.
        scale: Size of scores near zero, for margins: at least this much counts as the size of a final score.
        fallbacks: Most fallbacks of a run.
        decay: Factor of the learning rates at each fallback.
    """

    passes: int = 5
    patience: int = 10
    settle: int = 5
    failures: int = 3
    margin: float = 0.6
    scale: float = 0.1
    fallbacks: int = 2
    decay: float = 0.5


CONSERVATIVE, AGGRESSIVE = Rules(), Rules(passes=3, patience=5)
"""The published rules; their pass marks are 0.8 and 0.7."""


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
    """

    stage: int = 0
    scores: int = 0
    passed: int = 0
    failed: int = 0
    best: float = -math.inf
    stale: int = 0
    finals: tuple[float, ...] = ()
    fallbacks: int = 0


class Decision(NamedTuple):
    """What follows from a score, and why in words."""

    kind: Kind
    reason: str


def threshold(final: float, rules: Rules) -> float:
    """Return the score below which a run does worse than ``margin`` of a final score; for scores of either sign.

    >>> rules = Rules(margin=0.6, scale=0.1)
    >>> [round(threshold(final, rules), 3) for final in (1.0, 0.0, -1.0)]
    [0.6, -0.04, -1.4]
    """
    return final - (1 - rules.margin) * max(abs(final), rules.scale)


def decide(position: Position, score: float, marks: Sequence[float], rules: Rules) -> tuple[Position, Decision]:
    """Return the position of a run after a score, and the decision that led there.

    A score that is not a number neither passes nor is it a best one, and it counts as a failure.

    Args:
        position: Where the run is.
        score: Its score at this stage.
        marks: Pass mark of each stage.
        rules: When to advance and to fall back.
    """
    stage, last = position.stage, position.stage == len(marks) - 1
    better = score > position.best
    low = threshold(position.finals[-1], rules) if stage else -math.inf
    here = replace(
        position,
        scores=position.scores + 1,
        passed=position.passed + 1 if score >= marks[stage] else 0,
        failed=0 if score >= low else position.failed + 1,
        best=score if better else position.best,
        stale=0 if better else position.stale + 1,
    )
    if here.passed >= rules.passes:
        reason = f"{here.passed} scores in a row of at least {marks[stage]:g}"
        return (here, Decision("complete", reason)) if last else (_next(here, score), Decision("advance", reason))
    if stage and here.scores >= rules.settle and here.failed >= rules.failures and here.fallbacks < rules.fallbacks:
        reason = f"{here.failed} scores in a row below {low:g}, {rules.margin:g} of the stage before"
        back = Position(stage=stage - 1, finals=here.finals[:-1], fallbacks=here.fallbacks + 1)
        return back, Decision("fall_back", reason)
    if rules.patience and here.stale >= rules.patience and not last:
        reason = f"no better score than {here.best:g} in {here.stale}"
        return _next(here, here.best), Decision("advance", reason)
    return here, Decision("stay", "")


def _next(here: Position, final: float) -> Position:
    return Position(stage=here.stage + 1, finals=(*here.finals, final), fallbacks=here.fallbacks)
