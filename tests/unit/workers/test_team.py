"""A copy of an environment writes what each agent observes, may do and earns, and notices agents that change."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.strangers import Hill, Meadow
from uavlab.workers.spaces import GOES_ON, TERMINATED, TRUNCATED, Refusal, Rows, memory_bytes, rows_in
from uavlab.workers.team import Adapter, Team, horizon_of, make

HERE = "tests.support.strangers"


def team_of(env: Any) -> tuple[Team, Rows]:
    team = Team(env)
    return team, rows_in(mmap.mmap(-1, memory_bytes(team.describe(), 2)), team.describe())


def test_agents_are_grouped_by_name_and_spaces() -> None:
    description = Team(Meadow()).describe()
    assert [(a.name, a.group, a.obs, a.choices) for a in description.agents] == [
        ("grazer_0", "grazer", 3, 3), ("grazer_1", "grazer", 3, 3), ("wolf_0", "wolf", 4, 2)
    ]  # fmt: skip
    assert (description.horizon, description.single) == (12, False)
    continuous = Team(Meadow(moves=False)).describe()
    assert [a.action for a in continuous.agents] == [1, 1, 2]
    assert Team(Adapter(Hill())).describe().single


def test_equal_names_with_other_spaces_are_groups_of_their_own() -> None:
    env = Meadow(moves=False)
    env.possible_agents = ("wolf_0", "wolf_1")
    assert Team(env).groups == ["wolf_0", "wolf_1"]


def test_a_team_steps_as_its_environment() -> None:
    team, rows = team_of(Meadow())
    alone = Meadow()
    obs, _ = alone.reset(seed=1)
    team.reset(1, rows, 1)
    moves = {"grazer_0": 0, "grazer_1": 2, "wolf_0": 1}
    for _ in range(3):
        for number, agent in enumerate(("grazer_0", "grazer_1", "wolf_0")):
            seen = obs[agent] if agent == "wolf_0" else obs[agent]["observation"]
            assert rows.obs[1, number].tolist() == [*seen.tolist(), *[0] * (4 - len(seen))]
        assert rows.legal[1].tolist() == [
            [True, True, bool(obs["grazer_0"]["observation"][0] < 0)],
            [True, True, bool(obs["grazer_1"]["observation"][0] < 0)],
            [True, True, False],  # of the wolf, one is padding
        ]
        rows.action[1, :, 0] = [moves[name] for name in team.names]
        team.step(rows, 1)
        obs, rewards, *_ = alone.step(moves)
        assert rows.reward[1].tolist() == [np.float32(rewards[name]) for name in team.names]
        assert rows.end[1].tolist() == [GOES_ON] * 3
    assert not rows.obs[0].any()  # the other row is another copy's


def test_an_agent_that_has_ended_observes_zeros_while_others_go_on() -> None:
    team, rows = team_of(Meadow(length=4))
    env: Any = team.env
    team.reset(0, rows, 0)
    env.place = {"grazer_0": 0.0, "grazer_1": 3.0, "wolf_0": 0.0}
    rows.action[0, :, 0] = 1
    team.step(rows, 0)
    assert rows.end[0].tolist() == [TERMINATED, GOES_ON, GOES_ON]
    assert rows.obs[0, 0].any()  # what it observed last
    team.step(rows, 0)
    assert not rows.obs[0, 0].any()
    assert rows.legal[0, 0].tolist() == [True, False, False]
    assert rows.reward[0, 0] == 0
    for _ in range(2):
        team.step(rows, 0)
    assert rows.end[0].tolist() == [GOES_ON, TRUNCATED, TRUNCATED]
    team.reset(1, rows, 0)
    assert rows.obs[0, 0].any()
    assert team.live == [0, 1, 2]


def test_one_of_gymnasium_is_a_team_of_one() -> None:
    team, rows = team_of(Adapter(Hill(length=2, moves=3)))
    team.reset(3, rows, 0)
    assert rows.obs[0, 0].tolist()[1:] == [1, 0, 0]
    assert rows.legal[0, 0].tolist() == [True, False, True]
    for end in (GOES_ON, TRUNCATED):
        rows.action[0] = 1
        team.step(rows, 0)
        assert rows.end[0].tolist() == [end]


def test_environments_come_from_modules_files_and_gymnasium(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.support.strangers import Hill\ndef make(n): return Hill(length=n)\n")
    env = make("factory", str(tmp_path / "mine.py"), "make", {"n": 7})
    assert env.env.length == 7
    assert make("factory", HERE, "Meadow", {"length": 9}).max_cycles == 9
    assert horizon_of(make("gymnasium", "CartPole-v1", "", {})) == (500, "its spec")
    assert horizon_of(make("pettingzoo", "mpe2.simple_spread_v3", "parallel_env", {"max_cycles": 30})) == (
        30,
        "max_cycles",
    )
    assert horizon_of(Adapter(Hill())) == (None, "")


def test_a_team_of_both_kinds_or_of_nobody_is_refused() -> None:
    env = Meadow()
    env.action_space = lambda agent: (Meadow() if agent == "wolf_0" else Meadow(moves=False)).action_space(agent)  # type: ignore[method-assign]
    with pytest.raises(Refusal, match="expected one kind for all"):
        Team(env)
    env.possible_agents = ()  # type: ignore[assignment]
    with pytest.raises(Refusal, match="no agents"):
        Team(env)
