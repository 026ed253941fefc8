"""Each part declares its settings once: types, limits, meanings, and what a resumed run may change."""

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt

from tests.support.cli_runner import uavlab
from uavlab.core.registry import ENVIRONMENTS, Environment, Resume
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.config import configure, parts
from uavlab.experiment.names import presets
from uavlab.experiment.settings import describe_settings, format_kind, format_settings, settings_of
from uavlab.runtime.toggles import TOGGLES, Toggles


@pytest.mark.parametrize(
    ("hint", "text"),
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
def test_kinds(hint: Any, text: str) -> None:
    assert format_kind(hint) == text


def open_ended(kind: Any) -> bool:
    """Return whether a type is a number without a smallest or a largest value."""
    if not hasattr(kind, "__metadata__"):
        return kind in (int, float) or any(map(open_ended, get_args(kind)))
    limits = {name for limit in kind.__metadata__ for name in ("gt", "ge", "lt", "le") if hasattr(limit, name)}
    inside = get_args(kind)[0]
    return open_ended(inside) if inside not in (int, float) else not (limits & {"gt", "ge"} and limits & {"lt", "le"})


def test_every_number_has_a_smallest_and_a_largest_value() -> None:
    for environment in ("leader_follower", "mapping", "telemetry", "assignment"):
        settings = [each for part in parts(configure(environment).task.settings) for each in settings_of(part)]
        assert [each.name for each in settings if open_ended(each.kind)] == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (float, True),
        (Annotated[float, Gt(0), Resume.YES], True),
        (Annotated[Annotated[int, Ge(1)] | None, Resume.SAME], True),
        (tuple[Annotated[float, Lt(1)], ...], True),
        (Annotated[float, Gt(0), Le(1)] | None, False),
        (str, False),
        (bool, False),
    ],
)
def test_a_range_without_an_end_is_caught(kind: Any, expected: bool) -> None:
    assert open_ended(kind) is expected


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

    meanings = {each.name: each.about for each in settings_of(Windy)}
    assert meanings["wind"] == "Speed of the wind in px/s: from the left."
    assert meanings["dt"] == "Another step."
    assert meanings["goal_reward"].endswith(".")


def test_toggles_declare_themselves() -> None:
    assert [each.name for each in settings_of(Toggles)] == list(TOGGLES)
    assert all(each.about.endswith(".") for each in settings_of(Toggles))


def test_a_mark_says_what_a_resumed_run_may_change() -> None:
    @dataclass(frozen=True)
    class Part:
        width: int = 8
        lr: Annotated[float, Gt(0), Resume.YES] = 0.1
        minutes: Annotated[Annotated[float, Gt(0)] | None, Resume.SAME] = None

    marks = [each.resume for each in settings_of(Part)]
    assert marks == [Resume.NO, Resume.YES, Resume.SAME]
    assert format_kind(settings_of(Part)[2].kind) == "float > 0 or null"


def describe(preset: str) -> list[dict[str, Any]]:
    config = configure(preset)
    return describe_settings(parts(config.task.settings), config.values)


@pytest.mark.parametrize("preset", presets())
def test_every_setting_is_there_with_its_value_and_a_meaning(preset: str) -> None:
    rows, values = describe(preset), configure(preset).values
    listed = {row["name"]: row["value"] for row in rows}
    assert listed == {name: value for name, value in values.items() if not name.startswith("eval_")}
    assert [row["name"] for row in rows if not row["meaning"].endswith(".") or not row["kind"]] == []


def test_a_row_says_what_a_person_must_know() -> None:
    [row] = [row for row in describe("leader_follower_quick") if row["name"] == "gamma"]
    assert row == {"name": "gamma", "value": 0.95, "kind": "float >= 0, <= 1", "meaning": "Discount per step."}
    line, last = format_settings([row], LeaderFollower).splitlines()
    assert line == f"{'gamma':20} {'0.95':10} {'float >= 0, <= 1':34} Discount per step."
    assert last.endswith(", such as eval_followers.")


@dataclass(frozen=True)
class Bare:
    """No settings."""


def test_the_recommended_setting_exists() -> None:
    assert format_settings([], Bare) == ""
    for name in presets():
        env = configure(name).task.settings[-1]
        example = format_settings([], env).rpartition(" ")[2].removesuffix(".")
        assert example in configure(name).values


def test_an_own_environment_without_words_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    gusty = dataclass(frozen=True)(type("Gusty", (LeaderFollower,), {"__doc__": None}))
    monkeypatch.setitem(ENVIRONMENTS, "gusty", Environment(gusty))
    assert {row["name"] for row in describe("gusty")} == {row["name"] for row in describe("leader_follower")}


def test_the_command() -> None:
    assert uavlab("settings", "x").err.startswith("ConfigError: unknown preset 'x'")
    ended = uavlab("settings", "leader_follower_quick", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json == {"rows": describe("leader_follower_quick")}
    assert ended.out.startswith(format_settings(ended.json["rows"], LeaderFollower))
