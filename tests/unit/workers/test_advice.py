"""Whoever follows the advice of a refusal has an environment that is served: each is refused, mended and stepped."""

import importlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformAction, TransformObservation

from tests.support.foreign import CLOSED, Fleet, NoSeed, Spot, acting_in, legacy
from tests.support.strangers import Hill, Meadow, huge
from uavlab.core.errors import ConfigError
from uavlab.experiment.names import parse_external
from uavlab.workers.spaces import Refusal, memory_bytes, rows_in
from uavlab.workers.team import Adapter, Team, make

HERE = "tests.support.foreign"


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
    with pytest.raises((Refusal, ConfigError), match=text):
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


@pytest.mark.parametrize("mask", ["other", "avail", "infos_other"])
def test_a_mask_of_the_right_name(mask: str) -> None:
    (note,) = steps(Fleet(mask=mask)).describe().notes
    assert "call it action_mask, with a 1 for each open move and a 0 for the others" in note
    renamed = steps(Fleet(mask="infos" if mask == "infos_other" else "beside")).describe()
    assert (renamed.notes, renamed.agents[0].masked) == ((), True)


def test_a_mask_from_a_function() -> None:
    class Asked(Spot):
        def action_masks(self) -> Any:
            return np.array([True, False])

    class Answered(Asked):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], {"action_mask": self.action_masks()}

        action_masks = None  # type: ignore[assignment]

        def step(self, action: Any) -> Any:
            assert action == 0
            return *super().step(action)[:4], {"action_mask": np.array([True, False])}

    Answered.reset = lambda self, **options: (Spot.reset(self, **options)[0], {"action_mask": CLOSED[1:]})  # type: ignore[method-assign]
    (note,) = steps(Asked()).describe().notes
    assert note == "its action_masks() is not used: return the mask as action_mask in infos, of reset and step"
    assert steps(Answered()).describe().agents[0].masked


def test_results_as_the_contract_says() -> None:
    class Four(Spot):
        def step(self, action: Any) -> Any:
            seen, reward, end, over, info = super().step(action)
            return seen, reward, end or over, info

    class Five(Four):
        def step(self, action: Any) -> Any:
            seen, reward, over, info = super().step(action)
            return seen, reward, False, over, info

    class Seeded(NoSeed):
        def reset(self, seed: Any = None, options: Any = None) -> Any:  # type: ignore[override]
            return Spot.reset(self, seed=seed)

    class Both(Spot):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options), {}

    refused("return what ended the task as terminated, and a limit of time as truncated", lambda: steps(Four()))
    steps(Five())
    refused(
        "reset takes no seed; expected reset.self, seed=None, options=None.",
        lambda: make("factory", HERE, "NoSeed", {}),
    )
    steps(Seeded())
    refused("return both", lambda: steps(Spot("alone")))
    steps(Both("alone"))
    for fault, advice, value in (
        ("pair", "return a float, such as the sum of its parts", sum),
        ("word", "return a float", lambda word: float(len(word))),
    ):

        class Mended(Spot):
            def step(self, action: Any, value: Any = value) -> Any:
                seen, reward, *rest = super().step(action)
                return seen, value(reward), *rest

        refused(advice, lambda fault=fault: steps(Spot(fault)))
        steps(Mended(fault))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PettingZoo, at each import of tictactoe_v3
def test_agents_that_take_turns() -> None:
    from pettingzoo.classic.tictactoe.tictactoe import env as tictactoe
    from pettingzoo.utils import aec_to_parallel, turn_based_aec_to_parallel

    mpe = importlib.import_module("mpe2.simple_spread_v3")
    refused(
        "turn_based_aec_to_parallel", lambda: make("pettingzoo", "pettingzoo.classic.tictactoe_v3", "parallel_env", {})
    )
    refused("or aec_to_parallel.env.", lambda: make("factory", "mpe2.simple_spread_v3", "env", {}))
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


def test_names_that_are_corrected(tmp_path: Path) -> None:
    refused(r"versions here: simple_spread_v3", lambda: make("pettingzoo", "mpe2.simple_spread_v2", "parallel_env", {}))
    assert make("pettingzoo", "mpe2.simple_spread_v3", "parallel_env", {}).possible_agents
    refused("name one that exists, or an absolute path", lambda: make("factory", "mine.py", "Meadow", {}))
    (tmp_path / "mine.py").write_text("from tests.support.strangers import Meadow\n")
    assert make("factory", str(tmp_path / "mine.py"), "Meadow", {}).possible_agents == Meadow.possible_agents
    refused("let a function of your own hold the arguments", lambda: parse_external(f"{HERE}:Spot,fault={'x' * 5000}"))
    refused("its arguments: fault", lambda: make("factory", HERE, "Spot", {"size": 3}))
    assert make("factory", HERE, "Spot", {"fault": ""})
