"""Scenarios: distances, ratios and numbers that hold in every draw, and neighbours by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.envs.target_assignment.env import RULES, Assignment, Scenario, draw, neighbours, noise_count
from uavlab.experiment.settings import violations

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


@pytest.mark.parametrize("limits", [(0.5, 2.0), (1.0, 1.5), (0.4, 1.0)])
def test_supply_is_scaled_into_its_limits(limits: tuple[float, float]) -> None:
    drawn = scenarios(replace(ENV, supply=limits))
    ratio = drawn.supply.sum((1, 2)) / drawn.demand.sum((1, 2))
    assert (float(ratio.min()), float(ratio.max())) == pytest.approx(limits)


def test_reach_is_drawn_between_its_limits() -> None:
    drawn = scenarios(replace(ENV, reach=(0.3, 0.5), side=2000.0))
    ranges = drawn.range[drawn.range > 0]
    assert ranges.min() == pytest.approx(600, abs=5)
    assert ranges.max() == pytest.approx(1000, abs=5)


def test_no_way_is_shorter_than_the_reach_that_rules_allow() -> None:
    """Of a reach of ``spacing`` no UAV arrives in any world; of one that is a little more, some do."""
    env = Assignment(uavs=(2, 2), targets=(1, 2), obstacles=(0, 0), side=200.0, sectors=36)
    noise = torch.rand(20_000, noise_count(env), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 1 < float(env.initial(noise).way.min()) / env.spacing < 1.05


def problems(**settings: Any) -> list[str]:
    return violations(RULES, {**vars(Assignment()), **settings}, set(), {})


def test_settings_by_which_no_world_can_be_solved_are_refused() -> None:
    assert problems(supply=(0.1, 1.0), reach=(0.01, 0.0501)) == []
    (supply,) = problems(supply=(0.2, 0.99))
    (reach,) = problems(reach=(0.01, 0.05))
    (order,) = problems(supply=(2.0, 1.0))
    assert supply.startswith("supply (0.2, 0.99): less than all demand in every world")
    assert reach.startswith("reach (0.01, 0.05) x side 1000.0: not beyond spacing 50.0")
    assert order == "supply (2.0, 1.0): expected least and most, in order"


def test_shares_of_worlds_that_nobody_can_complete() -> None:
    """As docs/tasks.md says, of 20 000 worlds."""
    env = Assignment()
    state = env.initial(torch.rand(20_000, env.spec.initial_noise, generator=torch.Generator().manual_seed(0)))
    supply, demand = state.own.sum(1), state.demand.sum(1)
    alone = ((state.demand.sum(2) > 0) & ~state.legal.any(3).any(1)).any(1)
    short = supply < (1 - 1e-6) * demand, supply.sum(1) < (1 - 1e-6) * demand.sum(1)
    shares = [round(float(each.float().mean()), 4) for each in (short[1], short[0].any(1), alone)]
    assert shares == pytest.approx([0.0068, 0.0373, 0.0002], abs=1e-4)


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
