"""Rates that fall on a plateau: by hand, and against torch's own schedule where scores are positive."""

import math
import random

import pytest
import torch

from uavlab.experiment.schedules import Level, Plateau, follow


def rates(scores: list[float], rules: Plateau) -> list[float]:
    level, result = Level(), []
    for score in scores:
        level = follow(level, score, rules)
        result.append(level.rate)
    return result


def torch_rates(scores: list[float], rules: Plateau) -> list[float]:
    adam = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        adam, "max", rules.factor, rules.patience, rules.threshold, "rel", rules.cooldown, rules.least, eps=0.0
    )
    result = []
    for score in scores:
        schedule.step(score)
        result.append(adam.param_groups[0]["lr"])
    return result


@pytest.mark.parametrize("seed", range(50))
def test_positive_scores_lead_to_the_rates_of_torch(seed: int) -> None:
    dice = random.Random(seed)
    rules = Plateau(dice.choice([0.5, 0.8]), dice.randrange(4), dice.choice([0.0, 0.01, 0.1]), dice.randrange(4), 0.2)
    scores = [max(0.01, 0.5 + dice.gauss(0, 0.2)) for _ in range(60)]
    assert rates(scores, rules) == pytest.approx(torch_rates(scores, rules))
    assert min(rates(scores, rules)) < 1


def test_negative_scores_improve_by_a_share_of_their_size() -> None:
    rules = Plateau(factor=0.5, patience=1, threshold=0.1, cooldown=0)
    assert rates([-1.0, -0.95, -0.92, -0.8], rules) == [1.0, 1.0, 0.5, 0.5]
    assert follow(Level(best=-1.0), -0.89, rules).best == -0.89
    assert follow(Level(best=-1.0), -0.91, rules).best == -1.0


def test_zero_and_no_number() -> None:
    rules = Plateau(factor=0.5, patience=1, cooldown=0)
    assert rates([0.0, 0.0, 0.0], rules) == [1.0, 1.0, 0.5]
    assert rates([math.nan, math.nan], rules) == [1.0, 0.5]
    assert follow(Level(), math.nan, rules).best == -math.inf


def test_rates_do_not_fall_below_the_least() -> None:
    assert rates([1.0] * 9, Plateau(0.5, patience=0, cooldown=0, least=0.2))[-1] == 0.2
