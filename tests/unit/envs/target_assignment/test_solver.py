"""The solver against all sequences of decisions in small worlds, and its bound against every other policy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from uavlab.core.types import tree_map
from uavlab.envs.target_assignment.env import Assignment, State, greedy
from uavlab.envs.target_assignment.solver import ROUNDING, Bounded, Start, solve, solver, value_of
from uavlab.experiment import scores
from uavlab.experiment.config import configure

pytest.importorskip("ortools", reason="the extra solver")

SMALL = Assignment(uavs=(2, 3), targets=(1, 2), obstacles=(0, 2), sectors=2)


def worlds(env: Assignment, count: int, seed: int = 0) -> State:
    return env.initial(torch.rand(count, env.spec.initial_noise, generator=torch.Generator().manual_seed(seed)))


def world(state: State, number: int) -> State:
    return tree_map(lambda leaf: leaf[number : number + 1], state)


def best_of_all(env: Assignment, start: State, state: State) -> float:
    """Return the largest value that any whole episode reaches, by the shortest sectors."""
    legs = state.way.masked_fill(~state.legal, torch.inf)
    shortest = state.legal & (legs == legs.amin(-1, keepdim=True))
    after = [
        env.transition(state, torch.tensor([[move]]), state.own.new_zeros(1, 0))
        for move in shortest.flatten().nonzero().flatten().tolist()
    ]
    return max((best_of_all(env, start, each) for each in after), default=value_of(env, start, state))


@pytest.mark.parametrize("number", range(8))
def test_small_worlds_are_solved(number: int) -> None:
    start = world(worlds(SMALL, 8), number)
    solution, best = solve(SMALL, Start(start)), best_of_all(SMALL, start, start)
    assert solution.bound >= best - 1e-4
    assert solution.value == pytest.approx(best, abs=2e-3)


def test_the_bound_holds_for_a_rule() -> None:
    env = Assignment()
    state = start = worlds(env, 12)
    for _ in range(env.spec.horizon):
        state = env.transition(state, greedy(env, state, torch.zeros(12, 1)), torch.zeros(12, 0))
    for number in range(12):
        solution = solve(env, Start(world(start, number)))
        value = value_of(env, world(start, number), world(state, number))
        assert solution.value >= value - 2e-3
        assert solution.bound >= max(value, solution.value) - 1e-4


def test_decisions_of_a_policy_are_those_of_the_solution() -> None:
    state = start = worlds(SMALL, 3, seed=1)
    decided: list[list[int]] = [[], [], []]
    while bool(SMALL.terminated(state).logical_not().any()) and int(state.step[0]) < 6:
        moves = solver(SMALL, state, torch.zeros(3, 1))
        for each, move in zip(decided, moves[:, 0].tolist(), strict=True):
            each.append(move)
        state = SMALL.transition(state, moves, torch.zeros(3, 0))
    for number in range(3):
        plan = solve(SMALL, Start(world(start, number)))
        assert tuple(decided[number][: len(plan.moves)]) == plan.moves
        assert bool(SMALL.terminated(world(state, number)))
        assert value_of(SMALL, world(start, number), world(state, number)) == pytest.approx(plan.value, abs=1e-6)


def test_states_of_one_world_are_one_problem() -> None:
    state = worlds(SMALL, 2)
    after: Any = SMALL.transition(state, torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 0))
    assert Start(world(state, 0)) == Start(world(after, 0)) != Start(world(state, 1))


def measured(env: Bounded, plan: Callable[[Any, State, torch.Tensor], torch.Tensor], start: State) -> dict[str, Any]:
    """Return the figures of the last step of episodes by a plan, with the end of each world."""
    state, after, action = start, start, torch.zeros(len(start.step), 1, dtype=torch.int64)
    for _ in range(env.spec.horizon):
        state, action = after, plan(env, after, torch.zeros(len(start.step), 1))
        after = env.transition(state, action, torch.zeros(len(start.step), 0))
    return {"end": after, **env.measure(state, action, after)}


def test_a_gap_is_how_far_the_plan_is_below_its_bound() -> None:
    env, start = Bounded(SMALL), worlds(SMALL, 12)
    figures = measured(env, solver, start)
    for number in range(12):
        value = value_of(SMALL, world(start, number), world(figures["end"], number))
        bound = solve(SMALL, Start(world(start, number))).bound
        assert float(figures["bound"][number]) == pytest.approx(bound, abs=1e-6)
        assert float(figures["gap"][number]) == pytest.approx(bound - value, abs=1e-6)
        assert bool(figures["optimal"][number]) == (bound - value <= ROUNDING)
    assert 0 < figures["optimal"].mean() < 1  # both are there


def test_worlds_are_solved_once() -> None:
    before = solve.cache_info().misses
    measured(Bounded(SMALL), solver, worlds(SMALL, 3, seed=7))
    assert solve.cache_info().misses == before + 3


def test_scores_of_the_solver_have_its_figures_and_those_of_others_have_not() -> None:
    config = configure("assignment_quick", {"uavs": (2, 2), "targets": (1, 1), "sectors": 2})
    solved, nearest = (scores.evaluate_baseline(config, name, 2, 0) for name in ("solver", "nearest"))
    assert {*solved} - {*nearest} == {"bound", "gap", "optimal"}
    assert solved["bound"]["mean"] <= 1
