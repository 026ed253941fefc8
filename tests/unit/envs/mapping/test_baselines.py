"""Baselines for mapping: cases by hand, and sums against loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import reference_plan
from tests.support.fixtures_mapping import SMALL, random_step, start_missions
from uavlab.envs.mapping import baselines as plans
from uavlab.envs.mapping.env import Mapping, State
from uavlab.ops import belief_maps

UP, WEST, SOUTH, NORTH, EAST, DOWN = range(6)


def test_random_takes_every_legal_move_alike() -> None:
    env = Mapping(uavs=1, cells=193, cell=50 / 193)
    state, generator = start_missions(env, 1)
    state = replace(state, place=torch.tensor([[[0, 5, 2]]]).expand(4000, 1, 3))  # nothing west, nothing above
    chosen = plans.random(env, state, torch.rand(4000, 1, generator=generator))
    counts = chosen.flatten().bincount(minlength=6)
    assert counts[[UP, WEST]].tolist() == [0, 0]
    assert counts[[SOUTH, NORTH, EAST, DOWN]].tolist() == pytest.approx([1000] * 4, abs=120)  # four standard errors


def test_expected_gain_is_the_sum_over_each_footprint() -> None:
    state, generator = start_missions(SMALL, 1)
    for _ in range(4):
        _, state = random_step(SMALL, state, generator)
    got = plans.expected_gain(SMALL, state.logits[:, :-1], torch.float64)
    for uav, place in ((0, (0, 0, 0)), (1, (3, 10, 2)), (2, (7, 4, 1))):
        low, high = SMALL.places.footprint(torch.tensor(place))
        belief = belief_maps.belief(state.logits[0, uav, low[0] : high[0], low[1] : high[1]], torch.float64).flatten()
        accuracy, total = (
            float(belief_maps.belief(torch.tensor(belief_maps.log_odds_steps(SMALL.flip[place[2]])), torch.float64)),
            0.0,
        )
        for p in belief.tolist():
            hit = accuracy * p / (accuracy * p + (1 - accuracy) * (1 - p))
            miss = (1 - accuracy) * p / ((1 - accuracy) * p + accuracy * (1 - p))
            for chance, then in ((p, hit), (1 - p, miss)):
                was, now = (belief_maps.entropy(torch.tensor(v).double().clamp(1e-4, 1 - 1e-4)) for v in (p, then))
                total += chance * float((was - now) * belief_maps.target_weight(torch.tensor(then)))
        assert float(got[0, uav, place[2], place[1], place[0]]) == pytest.approx(total / 1000, rel=1e-5)


def test_the_expected_fall_is_that_of_many_measurements() -> None:
    """Cells of a belief are measured with an error probability: the mean of their entropies is the expectation."""
    flip, steps, draws = 0.2, torch.tensor([0, 40, -60]), 400_000
    table = plans.expected_cell_fall(flip, torch.device("cpu"), torch.float64)
    change, generator = belief_maps.log_odds_steps(flip), torch.Generator().manual_seed(0)
    for step in steps.tolist():
        before = belief_maps.belief(torch.tensor(step), torch.float64)
        target = torch.rand(draws, generator=generator) < before
        positive = target ^ (torch.rand(draws, generator=generator) < flip)
        after = belief_maps.belief(torch.where(positive, step + change, step - change), torch.float64)
        fall = belief_maps.weighted_entropy(before) - belief_maps.weighted_entropy(after)
        tolerance = 5 * float(fall.std()) / draws**0.5 + 1e-9
        assert float(table[step]) == pytest.approx(float(fall.mean()), abs=tolerance)
        by_belief = plans.expected_cell_gain(flip, torch.device("cpu"), torch.float64)  # the published table differs
        assert step == 0 or abs(float(by_belief[step] - fall.mean())) > 5 * tolerance


def test_expected_entropy_moves_by_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    state, generator = start_missions(SMALL, 4)
    for _ in range(3):
        _, state = random_step(SMALL, state, generator)
    noise = torch.zeros(4, SMALL.uavs)
    chosen = plans.expected_entropy(SMALL, state, noise)
    monkeypatch.setattr(plans, "expected_cell_gain", plans.expected_cell_fall)
    assert torch.equal(chosen, plans.information_gain(SMALL, state, noise))


def test_information_gain_moves_to_what_is_unknown() -> None:
    """Everything is known and free up to cell 104, just beyond the UAV at x = 5 (cell 96)."""
    env = Mapping(uavs=1, cells=193, cell=50 / 193)
    state, _ = start_missions(env, 1)
    logits = torch.full_like(state.logits, -belief_maps.LIMIT)
    logits[..., 104:] = 0
    state = replace(state, place=torch.tensor([[[5, 5, 0]]]), logits=logits)
    assert plans.information_gain(env, state, torch.zeros(1, 1)).tolist() == [[EAST]]


def test_information_gain_assigns_different_places() -> None:
    """Compare with loops, where three neighbours prefer the same places."""
    state, generator = start_missions(SMALL, 6)
    for _ in range(3):
        _, state = random_step(SMALL, state, generator)
    for mission in range(6):
        start = torch.randint(4, 7, (1, 3, 3), generator=generator)
        start[..., 2] = torch.randint(3, (1, 3), generator=generator)
        one = replace(state, place=start, logits=state.logits[mission : mission + 1])
        got = plans.information_gain(SMALL, one, torch.zeros(1, 3))[0].tolist()
        assert got == chosen_in_loops(one)


def chosen_in_loops(state: State) -> list[int]:
    gain = plans.expected_gain(SMALL, state.logits[:, :-1], torch.float32)[0].tolist()
    legal = plans.free_moves(SMALL, state.place)[0].tolist()
    shares: list[dict[int, float]] = []
    there: list[dict[int, tuple[int, ...]]] = []
    for uav, place in enumerate(state.place[0].tolist()):
        to = {m: tuple(a + b for a, b in zip(place, plans.MOVES[m], strict=True)) for m in range(6) if legal[uav][m]}
        total = sum(gain[uav][z][y][x] for x, y, z in to.values())
        shares.append({move: gain[uav][z][y][x] / total for move, (x, y, z) in to.items()})
        there.append(to)
    for one in range(3):
        for other in range(3):
            for move, place in there[one].items():
                if one != other and place in there[other].values():
                    theirs = next(m for m, p in there[other].items() if p == place)
                    shares[one][move] *= 1 - shares[other][theirs]
    return [max(share, key=lambda move: (share[move], -move)) for share in shares]


def test_moves_above_or_below_a_smaller_number_are_closed() -> None:
    env = Mapping(uavs=2)
    place = torch.tensor([[[5, 5, 0], [6, 5, 2]]])
    legal, free = env.places.legal(place), plans.free_moves(env, place)
    assert (legal & ~free).nonzero().tolist() == [[0, 1, WEST]]


def test_a_move_remains_where_others_are_everywhere() -> None:
    place = torch.tensor([[[0, 0, 2], [1, 0, 2], [0, 1, 2], [0, 0, 1]]])
    legal, free = Mapping().places.legal(place), plans.free_moves(Mapping(), place)
    assert free[0, 3].equal(legal[0, 3])
    assert free[0, 0].equal(legal[0, 0])


@pytest.fixture(scope="module")
def mission() -> list[State]:
    """Return the states of a published mission that the plan flies, until its last move."""
    env = Mapping()
    state, generator = start_missions(env, 1, seed=5)
    states = [state]
    for _ in range(env.measurements - 2):
        action = plans.information_gain(env, states[-1], torch.zeros(1, 4))
        states.append(env.transition(states[-1], action, torch.rand(1, env.step_noise, generator=generator)))
    return states


def chosen_by_reference(states: list[State], **changes: Any) -> list[list[int]]:
    """Return the moves by the plan in plain numpy."""
    beliefs = (belief_maps.belief(state.logits[0, :-1], torch.float64).numpy() for state in states)
    return [
        reference_plan.choose(maps, state.place[0].tolist(), **changes)[0]
        for maps, state in zip(beliefs, states, strict=True)
    ]


def chosen(states: list[State]) -> list[list[int]]:
    return [plans.information_gain(Mapping(), state, torch.zeros(1, 4))[0].tolist() for state in states]


def test_every_decision_of_a_mission_equals_the_plan_in_plain_numpy(mission: list[State]) -> None:
    assert chosen(mission) == chosen_by_reference(mission)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("floor", round),  # centres of footprints
        ("weight", np.ones_like),
    ],
    ids=["rounded", "unweighted"],
)
def test_another_gain_or_footprint_would_be_noticed(
    mission: list[State], monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    monkeypatch.setattr(reference_plan, name, broken)
    assert chosen_by_reference(mission) != chosen(mission)


@pytest.mark.parametrize("altitude", [0, 1, 2])
def test_sweep_covers_its_part_and_stays_in_it(altitude: int) -> None:
    env = Mapping(cells=193, cell=50 / 193)
    place = torch.tensor([[[0, 0, 2], [6, 0, 2], [6, 6, 2], [0, 6, 2]]])
    state, _ = start_missions(env, 1)
    lane, seen = [1, 2, 3][altitude], [{tuple(start)} for start in place[0].tolist()]
    for _ in range(60):
        action = plans.sweep(env, replace(state, place=place), torch.zeros(1, 4), altitude)
        assert env.places.legal(place).gather(-1, action[..., None]).all()
        place = place + torch.tensor(plans.MOVES)[action]
        for uav in range(4):
            seen[uav].add(tuple(place[0, uav].tolist()))
    for uav, (x, y) in enumerate(((0, 0), (6, 0), (6, 6), (0, 6))):
        width, depth = (6 if x == 0 else 5), (6 if y == 0 else 5)
        lanes = {(a, b, altitude) for a in range(x, x + width) for b in range(y, y + depth, lane)}
        assert lanes <= seen[uav]
        assert all(x <= a < x + width and y <= b < y + depth for a, b, _ in seen[uav])
