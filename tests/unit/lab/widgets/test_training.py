"""The curve of a live run grows with the run's scores, and draws the metrics of whatever environment it trains on."""

from tests.support.fixtures_config import tiny
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.run import Progress, Run
from uavlab.lab.widgets.training import LiveRun, training_curves


class TestLiveRun:
    def test_the_curve_grows_with_the_scores(self) -> None:
        run = Run(tiny(updates=4))
        panel, lengths = LiveRun(run), []
        for progress in run.train():
            panel.show(progress)
            lengths.append(len(panel.figure.data[0].x or ()))
        assert lengths == [0, 1, 1, 2]
        scored = [row for row in run.recorder.rows if "eval/completion" in row]
        assert [list(trace.x) for trace in panel.figure.data] == [[2, 4], [2, 4]]
        assert list(panel.figure.data[0].y) == [row["eval/completion"] for row in scored]
        assert list(panel.figure.data[1].y) == [row["eval/formation_strict"] for row in scored]

    def test_the_status_line(self) -> None:
        panel = LiveRun(Run(tiny()))
        panel.show(Progress(number=50, target=200, seconds=10.0, metrics={"q": 1.0}))
        assert "update 50 of 200, 5 per second, 30 s to go" in panel.stop.status.value  # 150 updates at 5 per second
        panel.show(Progress(number=51, target=200, seconds=10.2))
        assert "update 50" in panel.stop.status.value

    def test_the_last_score_of_a_short_run_is_drawn_too(self) -> None:
        run = Run(tiny(updates=2, evaluate_every=100))
        panel = LiveRun(run)
        for progress in run.train():
            panel.show(progress)
        assert list(panel.figure.data[0].x) == [2]


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
        assert [trace.name for trace in figure.data] == ["completion (of episodes)", "formation strict (of steps)"]
        assert (figure.layout.title.text, figure.layout.xaxis.title.text) == ("Learning", "updates")
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.range) == (
            "share of episodes or steps",
            (-0.02, 1.02),
        )

    def test_before_the_first_score(self) -> None:
        assert [list(trace.x) for trace in training_curves(LeaderFollower()).data] == [[], []]

    def test_another_environment_has_its_own_metric_and_unit(self) -> None:
        [line] = training_curves(TINY_MISSION, [{"update": 3, "eval/entropy": 0.5, "eval/f1": 0.9}]).data
        assert (line.name, list(line.x), list(line.y)) == ("entropy (bit)", [3], [0.5])
