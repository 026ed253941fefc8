"""Scenarios: distances, ratios and numbers that hold in every draw, and neighbours by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from uavlab.envs.target_assignment.env import Assignment
from uavlab.envs.target_assignment.scenarios import Scenario, draw, neighbours, noise_count

ENV = Assignment(uavs=(2, 6), targets=(1, 5), obstacles=(0, 4), slots=(8, 6, 5), variance=0.6)


def scenarios(env: Assignment, worlds: int = 500) -> Scenario:
    generator = torch.Generator().manual_seed(0)
    return draw(env, torch.rand(worlds, noise_count(env), generator=generator, dtype=torch.float64))


def least_gap(place: Tensor) -> float:
    gap = torch.cdist(place, place)
    return float(gap[:, ~torch.eye(place.shape[1], dtype=torch.bool)].min())


def test_places_are_apart_and_on_the_map() -> None:
    drawn = scenarios(ENV)
    place = torch.cat((drawn.pos, drawn.obstacle[..., :2]), 1)
    assert least_gap(place) >= ENV.spacing
    assert (place.min(), place.max()) > (0, 0)
    assert place.max() < ENV.side


def test_places_of_one_cell_would_be_noticed() -> None:
    assert least_gap(torch.tensor([[[0.0, 0.0], [30.0, 30.0], [500.0, 0.0]]])) < ENV.spacing


def test_numbers_supply_and_demand() -> None:
    drawn = scenarios(ENV)
    uavs, targets = (drawn.supply.sum(-1) > 0).sum(1), (drawn.demand.sum(-1) > 0).sum(1)
    assert (int(uavs.min()), int(uavs.max()), int(targets.min()), int(targets.max())) == (2, 6, 1, 5)
    assert torch.equal(drawn.speed > 0, drawn.supply.sum(-1) > 0)
    assert torch.equal(drawn.range > 0, drawn.supply.sum(-1) > 0)
    ratio = drawn.supply.sum((1, 2)) / drawn.demand.sum((1, 2))
    assert ratio.min() >= 0.5 - 1e-9
    assert ratio.max() <= 2 + 1e-9
    assert ratio.max() - ratio.min() > 1  # of both kinds: too little, and more than enough


def test_clustering_draws_targets_together() -> None:
    def spread(clustering: float) -> float:
        target = scenarios(replace(ENV, clustering=clustering)).pos[:, ENV.rows :]
        return float(torch.cdist(target, target).mean())

    assert spread(0.0) > spread(0.5) > spread(2.0)


@pytest.mark.parametrize(
    ("count", "unit", "jitter", "number"),
    [
        (3, 0.5, 0, 3),  # never more than there are
        (10, 0.5, 0, 4),
        (17, 0.5, 0, 5),  # ceil(17 / 4)
        (100, 0.5, 0, 16),
        (100, 0.99, 2, 16),  # and of a formula never more than 16
        (10, 0.0, 2, 2),
        (10, 0.99, 2, 6),
        (5, 0.99, 2, 5),
        (1, 0.0, 2, 1),  # and never none
    ],
)
def test_neighbours(count: int, unit: float, jitter: int, number: int) -> None:
    env = Assignment(jitter=jitter)
    assert neighbours(torch.tensor([[count, count]]), torch.tensor([[unit, unit]]), env).tolist() == [[number] * 2]


@pytest.mark.parametrize(
    ("near", "jitter", "expected"),
    [
        (0, 0, [[4, 3], [5, 16]]),
        (2, 0, [[2, 2], [2, 2]]),
        (6, 0, [[6, 3], [6, 6]]),
        (2, 1, [[1, 3], [3, 1]]),
        (20, 2, [[9, 3], [20, 18]]),
    ],
)
def test_fixed_numbers_of_neighbours(near: int, jitter: int, expected: list[list[int]]) -> None:
    count, unit = torch.tensor([[9, 3], [20, 100]]), torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    assert neighbours(count, unit, Assignment(near=near, jitter=jitter)).tolist() == expected
