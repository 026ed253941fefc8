"""Names, types, ranges and rules of settings; every problem of a table is in the message."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le

from uavlab.core.errors import ConfigError
from uavlab.experiment.settings import as_stored, fields_of, problems_of, strict_model, violations, with_tuples


@dataclass(frozen=True)
class Wind:
    speed: Annotated[float, Ge(0), Le(50)]
    gusts: tuple[int, int] = (0, 1)
    name: str = "calm"


MODEL = strict_model(fields_of(Wind))
RULES = ((("gusts",), lambda gusts: gusts[0] <= gusts[1], "gusts {0}: expected fewest and most"),)


def test_fields_have_their_types_and_defaults() -> None:
    assert {name: default for name, (_, default) in fields_of(Wind).items()} == {
        "speed": ...,
        "gusts": (0, 1),
        "name": "calm",
    }
    assert [*fields_of(Wind, "speed")] == ["gusts", "name"]


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ({"speed": 3.0, "gusts": [1, 2]}, []),
        ({}, ["speed: field required"]),
        ({"speed": "3"}, ["speed: input should be a valid number, got '3'"]),  # no type is converted
        ({"speed": 51.0}, ["speed: input should be less than or equal to 50, got 51.0"]),
        ({"speed": 3.0, "gusts": [2, 1]}, ["gusts (2, 1): expected fewest and most"]),
        ({"speed": 3.0, "sped": 4.0}, ["unknown setting 'sped' (did you mean 'speed'?)"]),
        (
            {"speed": -1.0, "gusts": [3, 1]},
            ["speed: input should be greater than or equal to 0, got -1.0", "gusts (3, 1): expected fewest and most"],
        ),
    ],
)
def test_problems(table: dict[str, Any], problems: list[str]) -> None:
    assert [text.lower() for text in problems_of(MODEL, table, RULES)] == [text.lower() for text in problems]


def test_rules_see_other_values_and_leave_out_wrong_ones() -> None:
    rule = (("speed", "limit"), lambda speed, limit: speed <= limit, "speed {0} > limit {1}")
    assert problems_of(MODEL, {"speed": 3.0}, (rule,), {"limit": 2.0}) == ["speed 3.0 > limit 2.0"]
    assert problems_of(MODEL, {"speed": 3.0}, (rule,)) == []  # a rule on what is not there
    values = {"speed": 9.0, "limit": 2.0}
    assert violations([rule], values, {"speed"}, {}) == []
    assert violations([rule], values, set(), {"speed": " in a.yaml"}) == ["speed 9.0 > limit 2.0 (speed in a.yaml)"]


@pytest.mark.parametrize("value", [{"mark": date(2024, 1, 1)}, [{1, 2}], {"mark": b"x"}])
def test_a_table_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^curriculum: Object of type .* is not JSON serializable; expected texts, "):
        as_stored("curriculum", value)


def test_a_table_is_as_it_will_be_read_again() -> None:
    assert as_stored("curriculum", {"stages": [{"uavs": (1, 2)}]}) == {"stages": [{"uavs": [1, 2]}]}
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match=r"^alarms: Circular reference"):
        as_stored("alarms", endless)


def test_lists_become_tuples_where_tuples_are_expected() -> None:
    assert with_tuples(MODEL, {"gusts": [1, 2], "name": ["a"]}) == {"gusts": (1, 2), "name": ["a"]}
