"""A run that trains in a cell draws each of its scores at once, says how long it takes, and can be stopped."""

import asyncio
import re
from typing import Any

import pytest

from tests.support.fixtures_config import tiny
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab.telemetry.flights import Telemetry
from uavlab_lab import live_run
from uavlab_lab.headless.strip_outputs import FIGURE
from uavlab_lab.live_run import describe, training_curves
from uavlab_lab.widgets import Stop


class Screen:
    """Stands for the notebook: what was displayed, and each picture that an output had."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.pictures: list[Any] = []

    def display(self, item: Any, display_id: bool = False) -> "Screen | None":
        (self.pictures if display_id else self.shown).append(item)
        return self if display_id else None

    def update(self, item: Any, raw: bool = False) -> None:
        self.pictures.append(item)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(live_run, "display", screen.display)
    return screen


def points(picture: Any) -> int:
    return len(re.findall("<circle", picture.data)) // 2  # one drawing for a wide page, and one for a narrow one


class TestTrain:
    def test_each_score_is_drawn_at_once_and_the_last_picture_is_a_figure(self, screen: Screen) -> None:
        run = Run(tiny(updates=4))
        asyncio.run(live_run.train(run))
        [stop], [*pictures, last] = screen.shown, screen.pictures
        assert [points(picture) for picture in pictures] == [0, 2, 4]  # two metrics, scored after updates 2 and 4
        scored = [row["eval/completion"] for row in run.recorder.rows if "eval/completion" in row]
        assert last[FIGURE]["data"][0]["x"] == [2, 4]
        assert last[FIGURE]["data"][0]["y"] == scored
        assert "finished after 4 updates" in stop.status.value
        assert run.status == "complete"

    def test_the_last_score_of_a_short_run_is_drawn_too(self, screen: Screen) -> None:
        asyncio.run(live_run.train(Run(tiny(updates=2, evaluate_every=100))))
        assert screen.pictures[-1][FIGURE]["data"][0]["x"] == [2]

    def test_stop_leaves_the_run_as_it_is(self, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
        run = Run(tiny(updates=100))
        monkeypatch.setattr(live_run, "describe", lambda progress: screen.shown[0].button.click() or "")
        asyncio.run(live_run.train(run))
        assert isinstance(screen.shown[0], Stop)
        assert "stopped after" in screen.shown[0].status.value
        assert 0 < run.number < 100


def test_the_status_line() -> None:
    progress = Progress(number=50, target=200, seconds=10.0)  # 150 updates at 5 per second
    assert describe(progress) == "update 50 of 200, 30 s to go; 5 updates per second"
    assert describe(Progress(number=50, target=None, seconds=10.0)) == "update 50; 5 updates per second"


class TestTrainingCurves:
    ROWS = (
        {"update": 1, "q": 0.5},
        {"update": 2, "eval/completion": 0.25, "eval/formation_strict": 0.5},
        {"update": 4, "eval/completion": 0.75, "eval/formation_strict": 0.125},
    )

    def test_only_scores_are_drawn(self) -> None:
        figure = training_curves(LeaderFollower(), self.ROWS, "Learning")
        assert [list(trace.x) for trace in figure.data] == [[2, 4], [2, 4]]
        assert [list(trace.y) for trace in figure.data] == [[0.25, 0.75], [0.5, 0.125]]
        assert len({trace.line.dash for trace in figure.data}) == 2  # distinct without colour
        assert [trace.name for trace in figure.data] == ["completion (of episodes)", "strict formation (of steps)"]
        assert (figure.layout.title.text, figure.layout.xaxis.title.text) == ("Learning", "updates")
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.range) == (
            "share of episodes or steps",
            (-0.02, 1.02),
        )

    def test_before_the_first_score(self) -> None:
        assert [list(trace.x) for trace in training_curves(LeaderFollower()).data] == [[], []]

    def test_an_environment_may_only_name_its_score(self) -> None:
        figure = training_curves(Telemetry(), [{"update": 3, "eval/mean_r2": -0.5}])
        assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [("mean R²", [3], [-0.5])]
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.range) == ("mean R²", None)

    def test_another_environment_has_its_own_metric_and_unit(self) -> None:
        [line] = training_curves(TINY_MISSION, [{"update": 3, "eval/entropy": 0.5, "eval/f1": 0.9}]).data
        assert (line.name, list(line.x), list(line.y)) == ("entropy of cells with targets (bit)", [3], [0.5])
