"""Each range that makes no sense is refused, with the reason."""

from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab.sweeps.spec import read_sweep, search_problems


def problems(**given: Any) -> list[str]:
    return search_problems({"ranges": {"x": given}}).get("search.ranges.x", [])


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
        ({"low": 2, "high": 1}, "`low <= high` must hold, but got (low=2, high=1)"),
        ({"low": 0, "high": 1, "log": True}, "`low >= 1` must hold for `log=True`, but got (low=0, high=1)"),
        ({"low": 0.0, "high": 1, "log": True}, "`low > 0` must hold for `log=True`, but got (low=0.0, high=1)"),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "Samplers and other components in Optuna only accept step"),
        ({"low": 1, "high": 9, "step": 0}, "`step > 0` must hold, but got step=0"),
        ({"values": [1], "low": 0}, "expected low and high, with log or step, or values alone, got values, low"),
        ({"high": 1}, "expected low and high, with log or step, or values alone, got high"),
        ({}, "expected low and high, with log or step, or values alone, got nothing"),
        ({"low": 1, "high": 2, "lwo": 3}, "unknown setting 'lwo' (did you mean 'low'?)"),
        ({"low": 1, "high": None}, "expected low and high, with log or step, or values alone, got low"),
        ({"values": []}, "values: list should have at least 1 item after validation, not 0, got []"),
        ({"low": True, "high": 2}, "low: input should be a valid integer, got True"),
    ],
)
def test_a_range_is_refused(given: dict[str, Any], problem: str) -> None:
    first, *_ = problems(**given)  # of a number that may be whole or not, one for each kind
    assert first.startswith(problem)


def test_numbers_of_a_search_have_limits() -> None:
    search = {"ranges": {"lr": {"values": [1]}}, "trials": 0}
    with pytest.raises(ConfigError, match=r"^sweep: search: trials: input should be greater than or equal to 1, got 0"):
        read_sweep({"presets": ["pursuit"], "search": search})


@pytest.mark.parametrize("search", [{}, {"ranges": 5}, {"ranges": ["lr"]}, {"ranges": {"lr": 5}}, {"ranges": {}}])
def test_a_search_without_ranges_is_refused(search: Any) -> None:
    with pytest.raises(ConfigError, match=r"^sweep: search: ranges: "):
        read_sweep({"presets": ["pursuit"], "search": search})
