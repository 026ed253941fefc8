"""Whoever follows the advice of a refusal has an environment that is served: each is refused, mended and stepped."""

import importlib
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformAction, TransformObservation

from tests.support.foreign import Fleet, Spot, acting_in, legacy
from tests.support.strangers import Hill, huge
from uavlab.workers.spaces import Refusal, memory_bytes, rows_in
from uavlab.workers.team import Adapter, Team


def steps(env: Any, count: int = 6) -> Team:
    """Start an environment as a worker does, and step it with first moves, or actions of zeros, over an end."""
    team = Team(env if hasattr(env, "possible_agents") else Adapter(env))
    rows = rows_in(mmap.mmap(-1, memory_bytes(team.describe(), 1)), team.describe())
    team.reset(0, rows, 0)
    for number in range(count):
        rows.action[0] = 0
        team.step(rows, 0)
        if rows.end[0].all():
            team.reset(number, rows, 0)
    return team


def refused(text: str, start: Callable[[], Any]) -> None:
    with pytest.raises(Refusal, match=text):
        start()


class Wide(Fleet):
    """Its actions have no bounds."""

    def action_space(self, agent: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (2,))

    def step(self, actions: Any) -> Any:
        assert all(np.abs(action).max() <= 3 for action in actions.values())
        return super().step(dict.fromkeys(actions, 0))


class Bounded(Wide):
    """It has bounds of its own."""

    def action_space(self, agent: Any) -> Any:
        return spaces.Box(-3, 3, (2,))


@pytest.mark.parametrize("bound", [np.inf, 3.4e38, 2e6])
def test_bounds_of_ones_own(bound: float) -> None:
    env = acting_in(spaces.Box(-bound, np.float32(bound), (2,)))
    refused(r"TransformAction\(env, FUNCTION, SPACE\).*gymnasium.spaces.Box\(-1, 1, \(2,\)\)", lambda: steps(env))
    team = steps(TransformAction(env, lambda action: 5 * action, spaces.Box(-1, 1, (2,))))
    assert team.codecs[0].bounds == (-1, 1)
    refused("a parallel environment has such an action_space itself", lambda: steps(Wide()))
    assert steps(Bounded()).codecs[0].bounds == (-3, 3)


@pytest.mark.parametrize(
    ("space", "function", "own"),
    [
        (spaces.MultiDiscrete([3, 2]), lambda move: np.array(np.unravel_index(move, (3, 2))), spaces.Discrete(6)),
        (spaces.MultiBinary(3), lambda move: (move >> np.arange(3) & 1).astype(np.int8), spaces.Discrete(8)),
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), lambda move: divmod(move, 2), spaces.Discrete(6)),
        (
            spaces.Dict({"fly": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)}),
            lambda numbers: {"fly": numbers[:2], "grip": int(numbers[2] > 0)},
            spaces.Box(-1, 1, (3,)),
        ),
    ],
    ids=["switches", "bits", "tuple", "dictionary"],
)
def test_other_actions_by_a_function(space: spaces.Space, function: Any, own: spaces.Space) -> None:
    env = acting_in(space)
    refused(r"TransformAction\(env, FUNCTION, SPACE\).* a Discrete of their combinations, or a Box", lambda: steps(env))
    steps(TransformAction(env, function, own))


def test_fewer_moves_and_smaller_observations() -> None:
    env = acting_in(spaces.Discrete(20_000))
    refused("expected at most 10,000: return gymnasium.wrappers.TransformAction", lambda: steps(env))
    steps(TransformAction(env, lambda move: 100 * move, spaces.Discrete(200)))
    for seen in (huge().observation_space, spaces.Sequence(spaces.Discrete(2))):
        large = Hill()
        large.observation_space = seen
        refused(r"TransformObservation\(env, FUNCTION, SPACE\)", lambda env=large: steps(env))
        steps(TransformObservation(large, lambda seen: seen["place"], spaces.Box(-4, 4, (1,))))


def test_one_kind_of_actions_for_all() -> None:
    class Mixed(Bounded):
        def action_space(self, agent: Any) -> Any:
            return super().action_space(agent) if agent == "uav_0" else spaces.Discrete(2)

    refused("uav_1 chooses moves and others act continuously.*read a move from the sign", lambda: steps(Mixed()))
    steps(Bounded())  # each a Box


def test_spaces_of_gymnasium() -> None:
    refused("expected a space of gymnasium.spaces", lambda: steps(legacy()))
    env = legacy()
    env.observation_space = spaces.Box(-1, 1, (2,))  # the same name in that package
    steps(env)


def test_masks_that_a_function_returns_are_named() -> None:
    class Asked(Spot):
        def action_masks(self) -> Any:
            return np.array([True, False])

    (note,) = steps(Asked()).describe().notes
    assert note == "its action_masks() is not used: return the mask as action_mask in infos, of reset and step"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PettingZoo, at each import of tictactoe_v3
def test_agents_that_take_turns() -> None:
    from pettingzoo.classic.tictactoe.tictactoe import env as tictactoe
    from pettingzoo.utils import aec_to_parallel, turn_based_aec_to_parallel

    mpe = importlib.import_module("mpe2.simple_spread_v3")
    team = Team(turn_based_aec_to_parallel(tictactoe()))
    description = team.describe()
    assert [(agent.obs, agent.choices, agent.masked) for agent in description.agents] == [(18, 9, True)] * 2
    rows = rows_in(mmap.mmap(-1, memory_bytes(description, 1)), description)
    team.reset(0, rows, 0)
    moves = 0
    while not rows.end[0].any():
        rows.action[0, :, 0] = rows.legal[0].argmax(1)
        team.step(rows, 0)
        moves += 1
    assert moves == 7  # first free fields by turns: the first player has 0, 2, 4, 6
    assert rows.reward[0].tolist() == [1, -1]
    steps(aec_to_parallel(mpe.env()))
