"""The record of whole runs as a figure: joined run by run, titled with the seconds to a goal."""

import pytest

from uavlab.storage.files import read_json
from uavlab_lab.lessons.learning_record import RECORD, curves_over_time, join_runs


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
    plain, laptop = join_runs(ROWS)
    assert (plain["setting"], plain["first_update_s"]) == ("plain", 2.0)
    assert plain["curve"][1] == {"update": 20, "seconds": 40.0, "each": {"completion": [1.0, 0.8]}}
    assert laptop["curve"][0] == {"update": 10, "seconds": 4.0, "each": {"completion": [0.5]}}


@pytest.mark.parametrize(("warm", "text"), [(False, "plain 30 s (20 to 40), laptop 8 s"), (True, "plain 28 s")])
def test_the_title_tells_the_seconds_to_the_goal(warm: bool, text: str) -> None:
    figure = curves_over_time(ROWS, 0.95, warm=warm)
    assert text in figure.layout.title.text.replace("<br>", " ")
    line = next(trace for trace in figure.data if trace.name == "plain")
    assert list(line.x) == ([18.0, 38.0] if warm else [20.0, 40.0])


def test_a_run_that_never_gets_there_is_told() -> None:
    figure = curves_over_time([*ROWS, row("laptop", 2.0, 4.0, 0.5, None)], 0.95)
    assert "laptop not in every run" in figure.layout.title.text.replace("<br>", " ")


def test_the_record_is_there() -> None:
    assert {len(row["curve"]) for row in read_json(RECORD)["rows"]} == {16}
