"""Curves have the scores of their logs, with intervals that end where a metric does; equal settings do not differ."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.support.fixtures_config import tiny
from uavlab_lab import comparison
from uavlab_lab.comparison import curve, differences, name_runs, over_seeds, scores_while_training
from uavlab_lab.run_files import RunFiles
from uavlab_lab.seeds import Group, Log

ENV = tiny().env
FIRST = Log("my_run", [{"update": 1, "seconds": 3.0, "eval/path": 2.0}, {"update": 2, "seconds": 4.0, "loss": 1.0}])
SECOND = Log(
    "b", [{"update": 1, "seconds": 5.0, "eval/path": 3.0, "eval/energy": 1.0, "each": {"eval/path": [2.0, 4.0]}}]
)


def run(name: str, device: str = "a CPU", **changes: Any) -> RunFiles:
    files = RunFiles(Path(name), name, tiny(**changes))
    vars(files)["status"] = {"machine": {"device": device}}
    return files


def test_a_curve_has_the_values_of_each_seed_where_it_was_scored() -> None:
    assert [(row["update"], row["each"]) for row in curve(FIRST, "path")] == [(1, {"path": [2.0]})]
    assert [(row["seconds"], row["each"]) for row in curve(SECOND, "path")] == [(5.0, {"path": [2.0, 4.0]})]


def test_a_figure_has_the_logs_that_have_the_metric() -> None:
    figure = scores_while_training([FIRST, SECOND], ["path", "energy", "completion"])
    assert isinstance(figure, go.Figure)
    lines = [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data if trace.mode == "lines+markers"]
    path, over_time = [("my_run", [1], [2]), ("b", [1], [3])], [("my_run", [3], [2]), ("b", [5], [3])]
    assert lines == [*path, *over_time, ("b", [1], [1]), ("b", [5], [1])]
    labels = [button.label for menu in figure.layout.updatemenus for button in menu.buttons]
    assert {"path", "energy", "updates", "time"} == set(labels)


def test_without_a_score_there_is_no_figure() -> None:
    assert scores_while_training([FIRST], ["energy"]) is None
    assert scores_while_training([], []) is None


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        # Student's factor of two values is 12.706, times the half distance
        ("completion", [0.25, 0.75], (0.5, 0.0, 1.0)),  # an outcome
        ("path", [9.0, 11.0], (10.0, 0.0, 22.706)),  # not negative
        ("flight_time", [9.0, 11.0], (10.0, -2.706, 22.706)),  # without bounds
        ("no metric", [9.0, 11.0], (10.0, -2.706, 22.706)),
        ("completion", [0.5], (0.5, 0.5, 0.5)),
    ],
)
def test_intervals_end_where_the_metric_does(name: str, values: list[float], expected: tuple[float, ...]) -> None:
    assert over_seeds(values, name, ENV) == pytest.approx(expected, abs=1e-3)


def test_names_of_runs_are_shown_as_they_are() -> None:
    figure = go.Figure([go.Scatter(name="my run"), go.Scatter(name="other")])
    assert [trace.name for trace in name_runs(figure, [FIRST]).data] == ["my_run", "other"]


class TestDifferences:
    def test_settings_and_machines_that_differ(self) -> None:
        groups = [Group((run("a"), run("b", seed=1))), Group((run("c", "a GPU", lr=0.5),))]
        table = differences(groups)
        assert table.heads == ["setting", "a and 1 more", "c"]
        assert table.rows == [
            ["seed", "0, 1", "0"],
            ["lr", "0.001", "0.5"],
            ["machine: device", "a CPU", "a GPU"],
        ]

    def test_equal_runs_have_none(self) -> None:
        assert differences([Group((run("a"),)), Group((run("b"),))]).rows == []

    def test_a_table_of_all_settings_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "_differing", lambda run: {"name": run.name})
        with pytest.raises(AssertionError):
            self.test_equal_runs_have_none()
