"""Pursuit by hand, against its reference in plain Python, and what holds in every world."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.reference_pursuit import Twin
from uavlab.core.types import ChoiceObs, leaves
from uavlab.envs.pursuit import MOVES, Pursuit, State
from uavlab.testing import check_env

Cell = tuple[int, int]
STAY, NORTH, EAST, SOUTH, WEST = range(5)
NOTHING = torch.zeros(1, 0)


def world(side: int, places: list[Cell], evaders: int, obstacles: tuple[Cell, ...] = (), caught: Any = None) -> State:
    """Make one world; the last ``evaders`` places are those of evaders."""
    blocked = torch.zeros(1, side, side, dtype=torch.bool)
    for x, y in obstacles:
        blocked[0, y, x] = True
    return State(
        pos=torch.tensor([places], dtype=torch.float64),
        blocked=F.pad(blocked, (1, 1, 1, 1), value=True),
        caught=torch.tensor([caught or [False] * evaders]),
        step=torch.tensor([3]),
    )


def step(env: Pursuit, state: State, *moves: int) -> State:
    return env.transition(state, torch.tensor([moves]), NOTHING)


def pay(env: Pursuit, state: State, after: State) -> list[float]:
    return env.reward(state, torch.zeros(1, env.spec.agents, dtype=torch.int64), after)[0].tolist()


def figures(env: Pursuit, state: State, after: State) -> dict[str, float]:
    return {name: value.item() for name, value in env.measure(state, torch.zeros(1), after).items()}


# ---- by hand ----

SMALL = Pursuit(pursuers=2, evaders=1, side=3, obstacles=1)
TWO = world(3, [(0, 0), (2, 2), (1, 2)], 1, obstacles=((1, 1),))
PAIR = Pursuit(pursuers=1, evaders=1, side=4, obstacles=0)


def test_the_lowest_numbers_are_starts_of_pursuers_then_evaders_then_obstacles() -> None:
    noise = torch.tensor([[0.9, 0.1, 0.8, 0.7, 0.4, 0.2, 0.3, 0.6, 0.5]])  # rows of 3, from the south
    state = SMALL.initial(noise)
    assert state.pos[0].tolist() == [[1, 0], [2, 1], [0, 2]]
    inner = state.blocked[0, 1:-1, 1:-1]
    assert inner.nonzero().tolist() == [[1, 1]]  # row, column
    assert state.blocked.sum() == 16 + 1
    assert (state.caught.tolist(), state.step.tolist()) == ([[False]], [0])


def test_moves_lead_north_east_south_and_west() -> None:
    env = Pursuit(pursuers=5, evaders=1, side=4)
    state = world(4, [(1, 1)] * 5 + [(3, 3)], 1)
    after = step(env, state, STAY, NORTH, EAST, SOUTH, WEST, STAY)
    assert after.pos[0, :5].tolist() == [[1, 1], [1, 2], [2, 1], [1, 0], [0, 1]]
    assert after.step.tolist() == [4]


def test_walls_and_obstacles_are_not_legal_and_hold_a_uav() -> None:
    #                                  stay, north, east, south, west
    assert SMALL.legal(TWO)[0].tolist() == [
        [True, True, True, False, False],  # in the south-western corner
        [True, False, False, True, True],  # in the north-eastern corner
        [True, False, True, False, True],  # between them, with the obstacle in the south
    ]
    after = step(SMALL, TWO, SOUTH, NORTH, SOUTH)
    assert torch.equal(after.pos, TWO.pos)


def test_observation_by_hand() -> None:
    obs = SMALL.observe(replace(TWO, caught=torch.tensor([[True]])))
    s = 1 / 3
    first, second, third = (pytest.approx(row) for row in obs.features[0].tolist())
    assert first == [s / 2, s / 2, 0, 0, 1, 1, 2 * s, 2 * s, s, 2 * s, 1]
    assert second == [2.5 * s, 2.5 * s, 1, 1, 0, 0, -2 * s, -2 * s, -s, 0, 1]
    assert third == [1.5 * s, 2.5 * s, 1, 0, 1, 0, -s, -2 * s, s, 0, 0]
    assert obs.legal[0, 2].tolist() == [True, False, False, False, False]


CATCHES = {
    "in its cell": ([(0, 0), (1, 0)], (EAST, STAY), True),
    "met between": ([(0, 0), (2, 0)], (EAST, WEST), True),
    "cells exchanged": ([(0, 0), (1, 0)], (EAST, WEST), True),
    "flight": ([(0, 0), (1, 0)], (EAST, EAST), False),
    "sidestep": ([(0, 0), (1, 0)], (EAST, NORTH), False),
    "next to it": ([(0, 0), (1, 1)], (EAST, STAY), False),
    "into the corner": ([(2, 0), (3, 0)], (EAST, EAST), True),  # the wall holds the evader
}


@pytest.mark.parametrize("name", CATCHES)
def test_catches(name: str) -> None:
    places, moves, expected = CATCHES[name]
    assert step(PAIR, world(4, places, 1), *moves).caught.tolist() == [[expected]]


def test_a_caught_evader_stays_and_stays_caught() -> None:
    state = world(4, [(0, 0), (2, 2)], 1, caught=[True])
    after = step(PAIR, state, EAST, EAST)
    assert after.pos[0].tolist() == [[1, 0], [2, 2]]
    assert after.caught.all()


TEAM = Pursuit(pursuers=2, evaders=2, side=5, catch_reward=3.0, time_cost=0.5, distance_cost=0.25, survival_reward=0.1)
FREE = world(5, [(0, 0), (4, 0), (1, 0), (4, 4)], 2)
ONE, BOTH = replace(FREE, caught=torch.tensor([[True, False]])), replace(FREE, caught=torch.tensor([[True, True]]))
REWARDS = {
    "none": (FREE, FREE, (-0.75, -1.25, 0.1, 0.1)),  # 1 and 3 cells from the first evader
    "one": (FREE, ONE, (3 - 0.5 - 2.0, 3 - 0.5 - 1.0, -1, 0.1)),  # 8 and 4 cells from the second evader
    "both": (FREE, BOTH, (6 - 0.5, 6 - 0.5, -1, -1)),
    "the last": (ONE, BOTH, (3 - 0.5, 3 - 0.5, 0, -1)),
    "after the end": (BOTH, BOTH, (0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_by_hand(name: str) -> None:
    before, after, expected = REWARDS[name]
    assert pay(TEAM, before, after) == pytest.approx(expected)


def test_figures_and_ends_by_hand() -> None:
    env = replace(TEAM, dt=2.0)
    assert figures(env, FREE, ONE) == {"caught": 0.5, "survival": 2.0}
    assert figures(env, ONE, BOTH) == {"caught": 1.0, "survival": 1.0}
    assert figures(env, BOTH, BOTH) == {"caught": 1.0, "survival": 0.0}
    ends = [env.terminated(each)[0].tolist() for each in (FREE, ONE, BOTH)]
    assert ends == [[False] * 4, [False, False, True, False], [True] * 4]


def test_groups_are_unequal() -> None:
    spec = Pursuit().spec
    assert (spec.groups, spec.choices, spec.obs) == ((0, 0, 0, 0, 1, 1), len(MOVES), 18)


# ---- against the reference ----

WORLDS = 6
VARIANTS = {
    "default": Pursuit(),
    "alone": Pursuit(pursuers=1, evaders=1, side=4, obstacles=2, dt=0.5),
    "open": Pursuit(pursuers=2, evaders=5, side=5, obstacles=0, survival_reward=0.3),
    "full": Pursuit(pursuers=3, evaders=2, side=4, obstacles=11, caught_cost=2.0),
    "prices": Pursuit(pursuers=5, side=6, obstacles=9, catch_reward=2.5, time_cost=0.3, distance_cost=0.1),
}


def compare(env: Pursuit, steps: int = 40) -> dict[str, int]:
    """Step environment and reference under random moves, illegal ones among them; return counts of events.

    Raises:
        AssertionError: They differ; the message says where.
    """
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(WORLDS, env.spec.initial_noise, generator=generator, dtype=torch.float64)
    state, twins = env.initial(noise), [Twin(env, each.tolist()) for each in noise]
    events = dict.fromkeys(("catches", "held", "ended"), 0)
    agents = range(env.spec.agents)
    for number in range(steps):
        action = torch.randint(len(MOVES), (WORLDS, len(agents)), generator=generator)
        held = ~env.legal(state).gather(2, action[..., None])
        before, state = state, env.transition(state, action, action.new_zeros(WORLDS, 0))
        obs, reward, ended = env.observe(state), env.reward(before, action, state), env.terminated(state)
        measured = env.measure(before, action, state)
        for b, twin in enumerate(twins):
            twin.step(action[b].tolist())
            agree("pos", state.pos[b], twin.places, number)
            agree("caught", state.caught[b], twin.caught, number)
            agree("step", state.step[b], twin.step_count, number)
            agree("obs", obs.features[b], [twin.observation(i) for i in agents], number)
            agree("legal", obs.legal[b], [twin.legal(i) for i in agents], number)
            agree("reward", reward[b], [twin.reward(i) for i in agents], number)
            agree("ended", ended[b], [twin.ended(i) for i in agents], number)
            agree("share", measured["caught"][b], twin.share_caught(), number)
            agree("survival", measured["survival"][b], twin.survival(), number)
            events["catches"] += sum(twin.caught) - sum(twin.before)
            events["ended"] += all(twin.caught)
        events["held"] += int(held.sum())
    return events


def agree(name: str, got: Tensor, expected: Any, number: int) -> None:
    expected = torch.tensor(expected, dtype=got.dtype)
    assert torch.allclose(got.double(), expected.double()), f"{name}: {got} for {expected}, step {number}"


@pytest.mark.parametrize("name", VARIANTS)
def test_rollouts_equal_the_reference(name: str) -> None:
    compare(VARIANTS[name])


def test_rollouts_meet_every_event() -> None:
    assert min(compare(VARIANTS["open"], steps=60).values()) >= 5


class Through(Pursuit):
    """No catch where cells are exchanged."""

    def meets(self, before: Tensor, after: Tensor) -> Tensor:
        return super().meets(after, after)


class Escape(Pursuit):
    """A catch does not last."""

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        after = super().transition(state, action, noise)
        return replace(after, caught=self.meets(state.pos, after.pos).any(1))


class Lively(Pursuit):
    """A caught evader goes on."""

    def legal(self, state: State) -> Tensor:
        return super().legal(replace(state, caught=torch.zeros_like(state.caught)))


class Ghosts(Pursuit):
    """Illegal moves are carried out, but for those into the wall."""

    def transition(self, state: State, action: Tensor, noise: Tensor) -> State:
        bare = F.pad(torch.zeros_like(state.blocked[:, 1:-1, 1:-1]), (1, 1, 1, 1), value=True)
        after = super().transition(replace(state, blocked=bare), action, noise)
        return replace(after, blocked=state.blocked)


class Swapped(Pursuit):
    """Obstacles by column and row."""

    def obstructed(self, state: State) -> Tensor:
        return super().obstructed(replace(state, blocked=state.blocked.mT))


class Turned(Pursuit):
    """The other pursuers in order of their numbers."""

    def observe(self, state: State) -> ChoiceObs:
        obs, (low, high) = super().observe(state), (6, 6 + 2 * (self.pursuers - 1))
        features = obs.features.clone()
        others = features[:, 1, low:high]
        features[:, 1, low:high] = others.roll(2, -1)
        return ChoiceObs(features, obs.legal)


class Posthumous(Pursuit):
    """Pursuers pay for time after the end."""

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        paid = super().reward(state, action, after)
        late = state.caught.all(1, keepdim=True) * self.time_cost
        return torch.cat((paid[:, : self.pursuers] - late, paid[:, self.pursuers :]), 1)


class Selfish(Pursuit):
    """The catch is paid to one pursuer."""

    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        paid = super().reward(state, action, after)
        new = (after.caught & ~state.caught).sum(1)
        return torch.cat((paid[:, :1], paid[:, 1:2] - self.catch_reward * new[:, None], paid[:, 2:]), 1)


class Endless(Pursuit):
    """Evaders' tasks end together."""

    def terminated(self, state: State) -> Tensor:
        return super().terminated(replace(state, caught=state.caught.all(1, keepdim=True).expand_as(state.caught)))


class Late(Pursuit):
    """The step of a catch does not count as survived."""

    def measure(self, state: State, action: Tensor, after: State) -> dict[str, Tensor]:
        return super().measure(after, action, after)


MUTANTS = {
    Through: "caught",
    Escape: "caught",
    Lively: "legal",
    Ghosts: "pos",
    Swapped: "pos",
    Turned: "obs",
    Posthumous: "reward",
    Selfish: "reward",
    Endless: "ended",
    Late: "survival",
}


@pytest.mark.parametrize(("mutant", "name"), MUTANTS.items(), ids=lambda each: str(each))
def test_comparison_catches_mutants(mutant: type[Pursuit], name: str) -> None:
    with pytest.raises(AssertionError, match=f"^{name}: "):
        compare(mutant(pursuers=3, side=5, obstacles=4), steps=80)


# ---- what holds in every world ----


def starts(env: Pursuit, worlds: int = 50) -> State:
    noise = torch.rand(worlds, env.spec.initial_noise, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return env.initial(noise)


def moves(env: Pursuit, worlds: int = 50, seed: int = 4) -> Tensor:
    return torch.randint(len(MOVES), (worlds, env.spec.agents), generator=torch.Generator().manual_seed(seed))


def crowded(state: State) -> int:
    """Return in how many worlds UAVs and obstacles do not have cells of their own."""
    count = 0
    for places, blocked in zip(state.pos.tolist(), state.blocked[:, 1:-1, 1:-1], strict=True):
        obstacles = {(x, y) for y, x in blocked.nonzero().tolist()}
        cells = {(int(x), int(y)) for x, y in places}
        count += len(cells) < len(places) or bool(cells & obstacles)
    return count


class Anywhere(Pursuit):
    def initial(self, noise: Tensor) -> State:
        state = super().initial(noise)
        unit = noise[:, : 2 * self.spec.agents].unflatten(1, (-1, 2))
        return replace(state, pos=(unit * self.side).floor())


@pytest.mark.parametrize("env", [Pursuit(), Pursuit(side=4, obstacles=10), Pursuit(side=3, obstacles=0)])
def test_all_start_in_cells_of_their_own(env: Pursuit) -> None:
    state = starts(env)
    assert crowded(state) == 0
    assert state.blocked[:, 1:-1, 1:-1].sum((1, 2)).unique().tolist() == [env.obstacles]
    assert len(state.pos.flatten(1).unique(dim=0)) == 50  # and not always in the same


def test_starts_in_one_cell_would_be_seen() -> None:
    assert crowded(starts(Anywhere())) > 0


def quarter(state: State, side: int) -> State:
    """Turn worlds by a quarter to the left: x, y becomes side - 1 - y, x."""
    x, y = state.pos.unbind(-1)
    return replace(state, pos=torch.stack((side - 1 - y, x), -1), blocked=state.blocked.mT.flip(2))


def turned(env: Pursuit, steps: int = 30) -> float:
    """Return how much rewards, catches and legal moves change if worlds and moves are turned by a quarter."""
    state = starts(env)
    other, differences = quarter(state, env.side), []
    left = torch.tensor([STAY, WEST, NORTH, EAST, SOUTH])  # where each move leads after the turn
    for number in range(steps):
        differences.append((env.legal(state) != env.legal(other)[:, :, left]).sum())
        action, before, old = moves(env, seed=number), state, other
        state, other = env.transition(state, action, NOTHING), env.transition(other, left[action], NOTHING)
        differences.append((state.caught != other.caught).sum())
        differences.append((env.reward(before, action, state) - env.reward(old, action, other)).abs().max())
    return max(float(each) for each in differences)


class Flat(Pursuit):
    def nearest(self, state: State) -> Tensor:
        return super().nearest(replace(state, pos=state.pos * state.pos.new_tensor([1.0, 0.0])))


def test_no_direction_is_special() -> None:
    assert turned(Pursuit()) < 1e-12
    assert turned(Swapped()) > 0.5
    assert turned(Flat()) > 1e-3


def renumbered(env: Pursuit) -> float:
    """Return how much results of pursuers change if they are renumbered in turn, apart from their order."""

    def roll(each: Tensor) -> Tensor:
        pursuers, evaders = env.groups(each)
        return torch.cat((pursuers.roll(1, 1), evaders), 1)

    state, action = starts(env), moves(env)
    other = replace(state, pos=roll(state.pos))
    after, later = env.transition(state, action, NOTHING), env.transition(other, roll(action), NOTHING)
    own = slice(0, env.pursuers)
    pairs = [
        (env.observe(after).features[:, own].roll(1, 1), env.observe(later).features[:, own]),
        (env.reward(state, action, after)[:, own].roll(1, 1), env.reward(other, action, later)[:, own]),
    ]
    return max((a - b).abs().max().item() for a, b in pairs)


def test_no_pursuer_is_special() -> None:
    assert renumbered(Pursuit()) < 1e-12
    assert renumbered(Turned()) > 0.05


def totals(env: Pursuit) -> Tensor:
    """Return the sums of rewards (B A) over twice the horizon of random moves, past the end."""
    state = starts(env)
    total = torch.zeros(50, env.spec.agents, dtype=torch.float64)
    for number in range(2 * env.horizon):
        action = moves(env, seed=number)
        before, state = state, env.transition(state, action, NOTHING)
        total += env.reward(before, action, state)
    return total


class Twice(Pursuit):
    def reward(self, state: State, action: Tensor, after: State) -> Tensor:
        return super().reward(replace(state, caught=torch.zeros_like(state.caught)), action, after)


def test_a_catch_is_paid_once() -> None:
    """Without costs, no pursuer gets more than the number of evaders, and no evader less than -1."""
    bare = {"time_cost": 0.0, "distance_cost": 0.0, "survival_reward": 0.0}
    total = totals(Pursuit(**bare))
    assert (total[:, :4].amin(), total[:, :4].amax(), total[:, 4:].amin(), total[:, 4:].amax()) == (0, 2, -1, 0)
    assert totals(Twice(**bare))[:, :4].amax() > 2


def test_results_have_the_type_of_the_noise_and_the_contract_is_kept() -> None:
    env = Pursuit(side=4, obstacles=3)
    report = check_env(env, steps=60)
    assert report.terminated > 10
    assert report.truncated > 10
    kinds = {name: leaf.dtype for name, leaf in leaves(env.initial(torch.rand(2, 16)))}
    assert kinds == {"pos": torch.float32, "blocked": torch.bool, "caught": torch.bool, "step": torch.int64}


def test_too_many_for_the_grid_are_refused() -> None:
    [(names, holds, message)] = Pursuit.rules
    assert set(names) <= {field.name for field in fields(Pursuit)}
    assert holds(4, 2, 3, 3)
    assert not holds(4, 2, 4, 3)
    assert message.format(4, 2, 4, 3).startswith("pursuers 4 + evaders 2 + obstacles 4 > side 3 squared")
