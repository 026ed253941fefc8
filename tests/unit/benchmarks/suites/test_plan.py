"""The study of the plan: its default is the plan, rows are paired, and each decision does what its name says."""

from dataclasses import replace

import pytest
import torch

from tests.support.fixtures_mapping import SMALL, random_step, start_missions
from uavlab.benchmarks.suites import plan
from uavlab.benchmarks.suites.plan import PLANS, Plan, cell_gain, plan_suite
from uavlab.envs.mapping import baselines
from uavlab.envs.mapping.env import State
from uavlab.ops.belief_maps import LIMIT, log_odds_steps

NORTH, EAST = 3, 4
SETTINGS = {"cells": 48, "cell": 50 / 48, "measurements": 5}


@pytest.fixture(scope="module")
def state() -> State:
    """Return states of missions with UAVs side by side and beliefs of many values."""
    state, generator = start_missions(SMALL, 3)
    for _ in range(6):
        _, state = random_step(SMALL, state, generator)
    return state


def test_the_default_is_the_plan(state: State) -> None:
    noise = torch.rand(3, 3)
    usual = baselines.information_gain(SMALL, state, noise)
    assert torch.equal(Plan()(SMALL, state, noise), usual)
    assert torch.equal(Plan(gain=cell_gain)(SMALL, state, noise), usual)
    flip, device = SMALL.flip[1], torch.device("cpu")
    own, published = cell_gain(flip, device, torch.float64), baselines.expected_cell_gain(flip, device, torch.float64)
    torch.testing.assert_close(own, published, rtol=0, atol=1e-15)
    exact = cell_gain(flip, device, torch.float64, positive=plan.by_sensor, removed=plan.weighted_both)
    torch.testing.assert_close(exact, baselines.expected_cell_fall(flip, device, torch.float64), rtol=0, atol=1e-15)


def test_the_chance_of_a_positive_measurement() -> None:
    """Of a belief of 0.9 a sensor that errs in a quarter of cells sees 0.9 x 0.75 + 0.1 x 0.25."""
    assert float(plan.by_sensor(torch.tensor(0.9), 0.25)) == pytest.approx(0.7)
    table = cell_gain(
        0.25, torch.device("cpu"), torch.float64, positive=plan.by_sensor, removed=lambda before, after: after - before
    )
    assert table.abs().max() < 2e-3  # a belief is the mean of those after a measurement, up to rounding and clamping
    wrong = cell_gain(0.25, torch.device("cpu"), torch.float64, removed=lambda before, after: after - before)
    assert wrong[log_odds_steps(0.25)].item() == pytest.approx(0.75 * 0.9 + 0.25 * 0.5 - 0.75, abs=1e-3)


def test_maps_of_a_row(state: State) -> None:
    assert plan.own_maps(SMALL, state).shape == (3, 3, 193, 193)
    assert torch.equal(plan.team_map(SMALL, state)[:, 2], state.logits[:, 3])
    coarse = plan.coarse_maps(SMALL, state)
    assert coarse.shape == (3, 3, 193, 193)
    assert len(coarse[0, 0].unique()) <= 121
    blank = cell_gain(0.1, torch.device("cpu"), torch.float64, blank=True)
    assert blank.nonzero().tolist() == [[0]]


def test_shares_near_the_largest() -> None:
    share, noise = torch.tensor([[[0.1, 0.297, 0.3, 0.2, 0.299, 0.0]]]), torch.tensor([[0.4]])
    assert Plan().pick(share, noise).item() == 2
    assert plan.first_of_near(share, noise).item() == 1
    assert plan.any_of_near(share, noise).item() == 2  # 0.4 of three: the second
    assert plan.last_of_near(share, noise).item() == 4


def test_the_last_of_three_rivals() -> None:
    """Three UAVs may go to one place with shares 1/2, 1/4 and 1/5."""
    share, same = torch.zeros(1, 3, 6), torch.zeros(1, 3, 3, 6, 6, dtype=torch.bool)
    share[0, :, 0] = torch.tensor([0.5, 0.25, 0.2])
    same[..., 0, 0] = True
    first = 0.5 * (1 - 0.25) * (1 - 0.2)
    assert baselines.discount_rivals(share, same)[0, 0, 0].item() == pytest.approx(first)
    assert plan.last_rival(share, same)[0, 0, 0].item() == pytest.approx(0.5 * (1 - 0.2))


def test_moves_of_a_row() -> None:
    place = torch.tensor([[[5, 5, 0], [5, 6, 2], [0, 0, 1]]])
    assert plan.descend_first(SMALL, place)[0].sum(-1).tolist() == [4, 1, 1]
    assert plan.descend_first(SMALL, place)[0, 1:, plan.DOWN].all()
    assert (baselines.free_moves(SMALL, place) ^ plan.free_without(SMALL, place, plan.UP)).nonzero()[:, 2].tolist() == [
        plan.UP
    ] * 2


def test_later_uavs_leave_what_earlier_ones_measure(state: State) -> None:
    """Unknown cells lie below (7, 5) alone: the first UAV will see all of them, the second would see some."""
    place = torch.tensor([[[6, 5, 0], [7, 3, 1], [0, 0, 2]]])
    logits = torch.full_like(state.logits[:1], -LIMIT)
    logits[..., 90:104, 130:142] = 0
    one = replace(state, place=place, logits=logits, mean=state.mean[:1])
    assert baselines.information_gain(SMALL, one, torch.zeros(1, 3))[0, :2].tolist() == [EAST, NORTH]
    assert plan.one_by_one(SMALL, one, torch.zeros(1, 3))[0, :2].tolist() == [EAST, 0]  # nothing is promised


def test_reversed_order_plans_for_the_same_uavs(state: State) -> None:
    flipped = plan.reversed_order(SMALL, state, torch.zeros(3, 3))
    assert SMALL.places.legal(state.place).gather(-1, flipped[..., None]).all()


def test_rows_are_paired_and_deterministic() -> None:
    """Rows that change nothing differ by 0; a score of later measurements is that of a longer mission."""
    record = plan_suite(3, "cpu", 4, ["any of shares within 2 %", "no descent"], ["no communication"], **SETTINGS)
    rows = {row["decision"]: row for row in record["rows"]}
    assert rows["as published"]["difference"] == 0
    assert rows["one measurement more (the published figure's count)"]["difference"] < 0
    assert rows["one measurement less"]["difference"] > 0
    assert rows["no descent"]["difference"] > 0
    assert {row["group"] for row in record["rows"]} == {"plan", "score", "task", "ties", "moves", "other plans"}
    longer = plan_suite(3, "cpu", 4, [], [], **{**SETTINGS, "measurements": 6})
    more = longer["rows"][0]
    assert more["entropy"] == rows["one measurement more (the published figure's count)"]["entropy"]
    assert record == plan_suite(
        3, "cpu", 4, ["any of shares within 2 %", "no descent"], ["no communication"], **SETTINGS
    )


def test_every_changed_plan_and_task_runs() -> None:
    rows = plan_suite(3, "cpu", 2, **SETTINGS)["rows"]
    assert len(rows) == 1 + len(plan.SCORES) + len(PLANS) + len(plan.TASKS) + 2
    assert all(0 < row["entropy"] <= 1.001 and 0 <= row["f1"] <= 1 for row in rows)
