"""The record of whole runs as a figure: joined run by run, told by the seconds to a goal."""

from pathlib import Path

import pytest

from uavlab.core.errors import FileError
from uavlab_notebooks.learning_record import by_the_clock, recorded, together


def row(setting: str, first: float, seconds: float, score: float, goal: float | None) -> dict:
    return {
        "setting": setting,
        "first_update_s": first,
        "to_goal_s": goal,
        "to_goal_warm_s": None if goal is None else goal - first,
        "curve": [[10, seconds, 0.5], [20, 2 * seconds, score]],
    }


ROWS = [row("plain", 1.0, 10.0, 1.0, 20.0), row("laptop", 2.0, 4.0, 0.9, 8.0), row("plain", 3.0, 30.0, 0.8, 40.0)]


def test_runs_of_a_setting_are_joined() -> None:
    plain, laptop = together(ROWS)
    assert (plain["setting"], plain["first_update_s"]) == ("plain", 2.0)
    assert plain["curve"][1] == {"update": 20, "seconds": 40.0, "each": {"completion": [1.0, 0.8]}}
    assert laptop["curve"][0] == {"update": 10, "seconds": 4.0, "each": {"completion": [0.5]}}


@pytest.mark.parametrize(("warm", "said"), [(False, "plain 30 s (20 to 40), laptop 8 s"), (True, "plain 28 s")])
def test_the_title_tells_the_seconds_to_the_goal(warm: bool, said: str) -> None:
    figure = by_the_clock(ROWS, 0.95, warm=warm)
    assert said in figure.layout.title.text.replace("<br>", " ")
    line = next(trace for trace in figure.data if trace.name == "plain")
    assert list(line.x) == ([18.0, 38.0] if warm else [20.0, 40.0])


def test_a_run_that_never_gets_there_is_told() -> None:
    figure = by_the_clock([*ROWS, row("laptop", 2.0, 4.0, 0.5, None)], 0.95)
    assert "laptop not in every run" in figure.layout.title.text.replace("<br>", " ")


def test_the_record_is_there_and_a_missing_one_is_told(tmp_path: Path) -> None:
    assert {len(row["curve"]) for row in recorded()["rows"]} == {16}
    with pytest.raises(FileError):
        recorded(tmp_path / "none.json")
