"""Learning rates that fall when scores stop improving: pure functions of scores, for each seed on its own.

Source:
    The rule of ``torch.optim.lr_scheduler.ReduceLROnPlateau`` with a relative threshold, for scores of either sign.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt


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
