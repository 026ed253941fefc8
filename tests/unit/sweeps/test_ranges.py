"""Each range that makes no sense is refused, with the reason."""

from typing import Any

import pytest

from uavlab.sweeps.spec import search_problems


def problems(**given: Any) -> list[str]:
    return list(search_problems({"ranges": {"x": given}}, lambda name: f" at {name}"))


@pytest.mark.parametrize(
    "given",
    [
        {"low": 1, "high": 2},
        {"low": -1.0, "high": 2, "step": 0.5},
        {"low": 1e-5, "high": 1.0, "log": True},
        {"values": [None, "a", 1, 0.5, True]},
    ],
)
def test_a_range_is_accepted(given: dict[str, Any]) -> None:
    assert problems(**given) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"low": 1, "high": 1}, "expected low < high, got 1 and 1"),
        ({"low": 0, "high": 1, "log": True}, "expected low > 0 with log, got 0"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "expected log or step, got both"),
        ({"low": 1, "high": 9, "step": 0}, "expected step > 0, got 0"),
        ({"values": [1], "low": 0}, "values are all; leave out low, high, step and log"),
        ({"high": 1}, "expected low and high, or values"),
        ({"values": []}, "values: list should have at least 1 item after validation, not 0, got []"),
        ({"low": True, "high": 2}, "low: input should be a valid integer, got True"),
    ],
)
def test_a_range_is_refused(given: dict[str, Any], problem: str) -> None:
    first, *_ = problems(**given)  # of a number that may be whole or not, one for each kind
    assert first.startswith(f"search.ranges.x: {problem}")
    assert first.endswith(" at search.ranges.x")


def test_numbers_of_a_search_have_limits() -> None:
    (text,) = search_problems({"ranges": {"x": {"values": [1]}}, "trials": 0}, lambda name: "")
    assert text == "search: trials: input should be greater than or equal to 1, got 0"
    assert list(search_problems(None, str)) == []
