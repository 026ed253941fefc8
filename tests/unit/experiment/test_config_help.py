"""The list of settings says of each what the code and its docstrings say, and leaves none out."""

from dataclasses import dataclass

import pytest

from tests.support.cli_runner import uavlab
from uavlab.core.errors import ConfigError
from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import configure
from uavlab.experiment.config_help import describe, table
from uavlab.experiment.presets import presets


@pytest.mark.parametrize("preset", presets())
def test_every_setting_is_there_with_its_value_and_a_meaning(preset: str) -> None:
    rows, values = describe(preset), configure(preset).values
    shown = {row["name"]: row["value"] for row in rows}
    assert shown == {name: value for name, value in values.items() if not name.startswith("eval_")}
    assert [row["name"] for row in rows if not row["meaning"].endswith(".") or not row["kind"]] == []


def test_a_row_says_what_a_person_must_know() -> None:
    [row] = [row for row in describe("leader_follower_quick") if row["name"] == "gamma"]
    assert row == {"name": "gamma", "value": 0.95, "kind": "float >= 0, <= 1", "meaning": "Discount per step."}
    line, last = table([row]).splitlines()
    assert line == f"{'gamma':20} {'0.95':10} {'float >= 0, <= 1':34} Discount per step."
    assert last.endswith("eval_horizon.")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^unknown preset 'x'"):
        describe("x")


def test_an_own_environment_without_words_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gusty = dataclass(frozen=True)(type("Gusty", (LeaderFollower,), {"__doc__": None}))
    monkeypatch.setitem(ENVIRONMENTS, "gusty", Environment(gusty))
    assert {row["name"] for row in describe("gusty")} == {row["name"] for row in describe("leader_follower")}


def test_the_command() -> None:
    ended = uavlab("settings", "leader_follower_quick", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == {"rows": describe("leader_follower_quick")}
    assert ended.out.startswith(table(ended.json["rows"]))
