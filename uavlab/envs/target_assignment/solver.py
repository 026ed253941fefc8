"""Assignments by a solver of integer programs, to know how far other policies are from the best one.

UAVs fly routes over targets, and share what they give freely; the environment gives as much as it can at each visit.
An episode goes on while a move is legal, which the program ignores. So its value bounds that of every sequence of
decisions, and the sequence that follows from its routes may be worth less: of many orders of its visits the best one is
taken, and both numbers are known: ``uavlab evaluate PRESET --policy solver`` prints them.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.extras import require
from uavlab.core.types import Metric, tree_map
from uavlab.envs.target_assignment.env import BLOCKED, KINDS, Assignment, State

SECONDS = 10.0  # that the solver has for a scenario
ORDERS = 16  # of visits that are tried
UNITS, METRES, SHARE, VALUE = 100, 10, 60, 1e9  # integers: of a unit of resources, a metre, a share, a value of 1
ROUNDING = 1e-4  # of a value: these integers let a bound be this much too high


@dataclass(frozen=True)
class Solution:
    """Decisions in a world, and how good they are."""

    moves: tuple[int, ...]  # their numbers, in order
    value: float  # by ``Assignment.score``
    bound: float  # what no decisions can exceed


class Route:
    """Variables of one UAV: which way it goes, and what it gives; node 0 is its start and its end."""

    def __init__(self, model: Any, env: Assignment, state: State, uav: int, targets: Sequence[int]) -> None:
        """Add a route within the UAV's range, by the shortest sectors."""
        start, leg = ((length.amin(-1) * METRES).floor().long() for length in (state.way[0, uav], state.leg[0]))
        self.numbers, self.arcs = dict(enumerate(targets, 1)), {}
        lengths = []
        for i, legs in enumerate([start, *leg[targets]]):
            for j, target in enumerate(targets, 1):
                far = int(legs[target])
                if i != j and far < BLOCKED:
                    self.arcs[i, j] = model.new_bool_var("")
                    lengths.append(far * self.arcs[i, j])
            self.arcs[i, 0] = model.new_bool_var("")
        left_out = {target: model.new_bool_var("") for target in targets}
        loops = [(n, n, left_out[target]) for n, target in self.numbers.items()]
        model.add_circuit([(i, j, x) for (i, j), x in self.arcs.items()] + loops)
        self.length = sum(lengths)
        model.add(self.length <= int(state.left[0, uav] * METRES) + 1)
        self.visits = {target: x.negated() for target, x in left_out.items()}
        for visit in self.visits.values():
            model.add_implication(visit, self.arcs[0, 0].negated())  # or a circle of targets would need no start
        self.gifts = {
            (target, kind): model.new_int_var(0, _integer(state.own[0, uav, kind], up=True), "")
            for target in targets
            for kind in range(KINDS)
        }

    def targets(self, program: Any) -> list[int]:
        after = {i: j for (i, j), x in self.arcs.items() if program.boolean_value(x)}
        order, node = [], after.get(0, 0)
        while node:
            order.append(self.numbers[node])
            node = after[node]
        return order


def _integer(amount: Tensor, up: bool) -> int:
    """Return an amount in integers, rounded so that no program is refused that the environment allows."""
    return math.ceil(float(amount) * UNITS) if up else math.floor(float(amount) * UNITS)


def _satisfied(model: Any, state: State, target: int, routes: dict[int, Route]) -> Any:
    """Return whether all visits together give a target what it needs."""
    done = model.new_bool_var("")
    for kind in range(KINDS):
        given, need = sum(route.gifts[target, kind] for route in routes.values()), state.demand[0, target, kind]
        model.add(given <= _integer(need, up=True))
        model.add(given >= _integer(need, up=False)).only_enforce_if(done)
    return done


def _limit_gifts(model: Any, state: State, uav: int, route: Route) -> None:
    """Limit what a UAV gives to what it has, and to targets that it visits."""
    for kind in range(KINDS):
        supply = _integer(state.own[0, uav, kind], up=True)
        model.add(sum(route.gifts[target, kind] for target in route.visits) <= supply)
        for target, visit in route.visits.items():
            model.add(route.gifts[target, kind] == 0).only_enforce_if(visit.negated())


def _congestion(model: Any, ideal: int, visits: Any) -> Any:
    """Return at least the congestion of a target with this many visits, in shares."""
    crowd = model.new_int_var(0, SHARE, "")
    beyond = model.new_int_var(0, 1_000, "")
    model.add_max_equality(beyond, [0, visits - ideal])
    model.add_min_equality(crowd, [SHARE, beyond * (SHARE // ideal)])
    return crowd


def solver(env: Assignment, state: State, noise: Float[Tensor, "B 1"]) -> Int[Tensor, "B 1"]:
    """Return the next decision of the solution of each world; it is found at the world's first decision."""
    plans = [plan.moves for plan in _plans(env, state)]
    moves = [plan[step] if step < len(plan) else 0 for plan, step in zip(plans, state.step.tolist(), strict=True)]
    return torch.tensor(moves, device=noise.device)[:, None]


@dataclass(frozen=True)
class Bounded:
    """A task that also measures how good the solutions of its worlds are, in values by ``Assignment.score``.

    ``bound`` is what no decisions can exceed, ``gap`` how far the solution is below it, and ``optimal`` whether that is
    no more than ``ROUNDING``: then no decisions are better.
    """

    env: Assignment

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # a copy asks before there is an ``env``
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (
            *self.env.metrics,
            Metric("bound", "last"),
            Metric("gap", "last", better="low"),
            Metric("optimal", "outcome"),
        )

    def measure(self, state: State, action: Int[Tensor, "B 1"], after: State) -> dict[str, Float[Tensor, " B"]]:
        plans = _plans(cast(Assignment, self), after)  # known since the first decision, for which the task was this one
        bound, value = (after.left.new_tensor([getattr(plan, name) for plan in plans]) for name in ("bound", "value"))
        gap = bound - value
        figures = {"bound": bound, "gap": gap, "optimal": (gap <= ROUNDING).to(gap.dtype)}
        return {**self.env.measure(state, action, after), **figures}


class Start:
    """A world before its first decision, equal to every later state of the same world."""

    def __init__(self, state: State) -> None:
        parts = state.pos, state.demand, state.obstacle, state.speed
        self.key = tuple(number for part in parts for number in part.flatten().tolist())
        self.state = state

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and self.key == other.key


@lru_cache(maxsize=10_000)
def solve(env: Assignment, start: Start, seconds: float = SECONDS) -> Solution:
    """Solve a world at its first decision."""
    routes, bound = _best_routes(env, start.state, seconds)
    best: list[int] = []
    dice, value = random.Random(0), -math.inf
    for _ in range(ORDERS if any(routes) else 1):
        moves, reached = _fly(env, start.state, _shuffle(routes, dice))
        if reached > value:
            best, value = moves, reached
    return Solution(tuple(best), value, bound)


def _plans(env: Assignment, state: State) -> list[Solution]:
    """Return the solution of each world, which is known but at its first decision."""
    return [solve(env, Start(tree_map(lambda leaf, n=n: leaf[n : n + 1], state))) for n in range(len(state.step))]


def value_of(env: Assignment, start: State, end: State) -> float:
    """Return the value of a world by ``Assignment.score``."""
    completion, congestion = float(env.completion(end)), float(env.congestion(end))
    distance = float((start.left - end.left).sum())
    return env.score["normalized_score"] * completion * (1 - congestion) + env.score["distance"] * distance


def _fly(env: Assignment, state: State, visits: Iterable[tuple[int, int]]) -> tuple[list[int], float]:
    """Return the moves of a whole episode, and its value.

    They are visits (UAV, target) by their shortest sectors, but for those that are not legal; then, because an episode
    ends only where no move is legal, what does the least harm.
    """
    start, moves = state, []
    for pair in visits:
        if (number := _shortest(env, state).get(pair)) is not None:
            state = _decide(env, state, number)
            moves.append(number)
    while others := list(_shortest(env, state).values()):
        after = {number: _decide(env, state, number) for number in others}
        moves.append(max(others, key=lambda number: value_of(env, start, after[number])))
        state = after[moves[-1]]
    return moves, value_of(env, start, state)


def _shortest(env: Assignment, state: State) -> dict[tuple[int, int], int]:
    """Return the move by the shortest sector of each pair (UAV, target) with a legal one."""
    legs, sector = state.way[0].masked_fill(~state.legal[0], torch.inf).min(-1)
    pairs = legs.isfinite().nonzero().tolist()
    return {(u, t): (u * env.columns + t) * env.sectors + int(sector[u, t]) for u, t in pairs}


def _decide(env: Assignment, state: State, move: int) -> State:
    return env.transition(state, torch.tensor([[move]]), state.own.new_zeros(1, 0))


def _shuffle(routes: Sequence[Sequence[int]], dice: random.Random) -> list[tuple[int, int]]:
    """Return visits of all routes in a random order that keeps that of each route."""
    turns = [uav for uav, route in enumerate(routes) for _ in route]
    dice.shuffle(turns)
    ahead = [iter(route) for route in routes]
    return [(uav, next(ahead[uav])) for uav in turns]


def _best_routes(env: Assignment, state: State, seconds: float) -> tuple[list[list[int]], float]:
    """Return the targets of each UAV in order, and the bound of all values."""
    require("solver", "policy solver", "ortools")
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    uavs = [n for n in range(env.rows) if state.speed[0, n] > 0]
    targets = [n for n in range(env.columns) if state.demand[0, n].sum() > 0]
    routes = {uav: Route(model, env, state, uav, targets) for uav in uavs}
    satisfied, crowd = [], []
    for target in targets:
        satisfied.append(_satisfied(model, state, target, routes))
        visits = sum(route.visits[target] for route in routes.values())
        crowd.append(_congestion(model, int(state.ideal[0, target]), visits))
    for uav, route in routes.items():
        _limit_gifts(model, state, uav, route)
    count = len(targets)
    clear, product = model.new_int_var(0, SHARE * count, ""), model.new_int_var(0, SHARE * count**2, "")
    model.add(clear == SHARE * count - sum(crowd))
    model.add_multiplication_equality(product, [sum(satisfied), clear])
    worth, price = env.score["normalized_score"] * VALUE / (SHARE * count**2), -env.score["distance"] * VALUE / METRES
    model.maximize(round(worth) * product - round(price) * sum(route.length for route in routes.values()))
    program = cp_model.CpSolver()
    program.parameters.max_time_in_seconds, program.parameters.num_workers = seconds, 1
    solved = program.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    chosen = [routes[uav].targets(program) if solved and uav in routes else [] for uav in range(env.rows)]
    return chosen, program.best_objective_bound / VALUE
