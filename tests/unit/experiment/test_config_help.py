"""The list of settings says of each what the code and its docstrings say, and leaves none out."""

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt

from tests.support.cli_runner import uavlab
from uavlab.core.errors import ConfigError
from uavlab.envs import ENVS
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import configure
from uavlab.experiment.config_help import described, kind, meanings, table
from uavlab.experiment.presets import presets


@pytest.mark.parametrize("preset", presets())
def test_every_setting_is_there_with_its_value_and_a_meaning(preset: str) -> None:
    rows, values = described(preset), configure(preset).values
    shown = {row["name"]: row["value"] for row in rows}
    assert shown == {name: value for name, value in values.items() if not name.startswith("eval_")}
    assert [row["name"] for row in rows if not row["meaning"].endswith(".") or not row["kind"]] == []


def test_a_row_says_what_a_person_must_know() -> None:
    [row] = [row for row in described("leader_follower_quick") if row["name"] == "gamma"]
    assert row == {"name": "gamma", "value": 0.95, "kind": "float >= 0, <= 1", "meaning": "Discount per step."}
    line, last = table([row]).splitlines()
    assert line == f"{'gamma':20} {'0.95':10} {'float >= 0, <= 1':34} Discount per step."
    assert last.endswith("eval_horizon.")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^unknown preset 'x'"):
        described("x")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (bool, "bool"),
        (NoneType, "null"),
        (Annotated[int, Ge(0), Le(2**31)], "int >= 0, <= 2,147,483,648"),
        (Annotated[float, Gt(0), Lt(1)] | None, "float > 0, < 1 or null"),
        (Annotated[float, "a note"], "float"),
        (Literal["auto", "cpu"], "auto, cpu"),
        (int | str, "int or str"),
        (tuple[Annotated[int, Ge(1)], ...], "list of (int >= 1)"),
    ],
)
def test_kinds(hint: Any, said: str) -> None:
    assert kind(hint) == said


def test_meanings_are_those_of_the_class_and_its_bases() -> None:
    @dataclass(frozen=True)
    class Windy(LeaderFollower):
        """A task with wind.

        Attributes:
            wind: Speed of the wind
                in ``px/s``: from the left.
            dt: Another step.
        """

        wind: float = 0.0

    said = meanings(Windy)
    assert said["wind"] == "Speed of the wind in px/s: from the left."
    assert said["dt"] == "Another step."
    assert said["goal_reward"] == meanings(LeaderFollower)["goal_reward"] != ""


def test_an_own_environment_without_words_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVS, "gusty", dataclass(frozen=True)(type("Gusty", (LeaderFollower,), {"__doc__": None})))
    assert {row["name"] for row in described("gusty")} == {row["name"] for row in described("leader_follower")}


def test_the_command() -> None:
    ended = uavlab("settings", "leader_follower_quick", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == {"rows": described("leader_follower_quick")}
    assert ended.out.startswith(table(ended.json["rows"]))
