"""Widgets hold a run's settings and tell the time it will take; the curve grows with the run's scores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures_config import TINY, tiny
from uavlab.core.errors import ConfigError
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.experiment.run import Progress, Run
from uavlab.lab.widgets import training
from uavlab.lab.widgets.training import Choices, LiveRun, free_folder, seconds_per_update


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that updates take 3 ms, 6 ms with several obstacles."""
    monkeypatch.setattr(training, "seconds_per_update", lambda obstacles: 0.006 if obstacles > 1 else 0.003)


@pytest.mark.usefixtures("speed")
class TestChoices:
    def test_values_are_settings(self) -> None:
        choices = Choices(followers=4, obstacles=1, seed=7, updates=2000)
        assert choices.values() == {"eval_followers": 4, "obstacles": 1, "sight": 0, "seed": 7, "updates": 2000}
        choices.obstacles.value, choices.followers.value, choices.updates.value = 3, 2, 500
        assert choices.values() == {"eval_followers": 2, "obstacles": 3, "sight": 2, "seed": 7, "updates": 500}

    @pytest.mark.parametrize("obstacles", [1, 2, 8])
    @pytest.mark.parametrize("followers", [1, 16])
    def test_every_choice_is_valid(self, followers: int, obstacles: int) -> None:
        config = configure("leader_follower_published", Choices(followers, obstacles, 0, 1).values())
        assert (config.evaluation.followers, config.evaluation.obstacles) == (followers, obstacles)  # type: ignore[attr-defined]

    def test_the_estimate_follows_the_choice(self) -> None:
        choices = Choices(4, 1, 0, 40_000)  # 40 000 x 3 ms = 120 s
        assert "1 leader, 4 follower(s), 1 obstacle(s): about 2.0 min" in choices.status.value
        choices.updates.value = 10_000  # 30 s
        assert "about 0.5 min" in choices.status.value
        choices.obstacles.value = 2  # 60 s
        assert "2 obstacle(s): about 1.0 min" in choices.status.value

    def test_numbers_outside_the_range_are_pulled_in(self) -> None:
        choices = Choices(4, 1, 0, 100)
        choices.followers.value, choices.obstacles.value = 99, -3
        assert (choices.followers.value, choices.obstacles.value) == (16, 1)

    def test_a_failure_shows_until_the_next_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(obstacles: int) -> float:
            if obstacles == 3:
                raise ConfigError("no more than <2> obstacles")
            return 0.003

        monkeypatch.setattr(training, "seconds_per_update", refuse)
        choices = Choices(4, 1, 0, 100)
        choices.obstacles.value = 3
        assert choices.status.value == "<b role='alert'>ConfigError: no more than &lt;2&gt; obstacles</b>"
        choices.obstacles.value = 2
        assert "2 obstacle(s)" in choices.status.value

    def test_headless_it_saves_a_stable_text(self) -> None:
        shown = [Choices(4, 1, seed, 100)._repr_mimebundle_()[0]["text/plain"] for seed in (0, 1)]
        assert shown[0] == shown[1]
        assert "then run the next cell" in shown[0]


class TestLiveRun:
    def test_the_curve_grows_with_the_scores(self) -> None:
        run = Run(tiny(updates=4))
        shown, lengths = LiveRun(run), []
        for progress in run.train():
            shown.show(progress)
            lengths.append(len(shown.figure.data[0].x or ()))
        assert lengths == [0, 1, 1, 2]
        scored = [row for row in run.recorder.rows if "eval/completion" in row]
        assert [list(trace.x) for trace in shown.figure.data] == [[2, 4], [2, 4]]
        assert list(shown.figure.data[0].y) == [row["eval/completion"] for row in scored]
        assert list(shown.figure.data[1].y) == [row["eval/formation_strict"] for row in scored]

    def test_the_status_line(self) -> None:
        shown = LiveRun(Run(tiny()))
        shown.show(Progress(number=50, target=200, seconds=10.0, metrics={"q": 1.0}))
        assert "update 50 of 200, 5 per second, 30 s to go" in shown.stop.status.value  # 150 updates at 5 per second
        shown.show(Progress(number=51, target=200, seconds=10.2))
        assert "update 50" in shown.stop.status.value

    def test_the_last_score_of_a_short_run_is_drawn_too(self) -> None:
        run = Run(tiny(updates=2, evaluate_every=100))
        shown = LiveRun(run)
        for progress in run.train():
            shown.show(progress)
        assert list(shown.figure.data[0].x) == [2]


def test_the_estimate_is_the_mean_of_a_few_updates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ticks: Iterator[float] = iter([10.0, 12.0])
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(training, "configure", lambda preset, chosen: configure(preset, TINY, chosen))
    monkeypatch.setattr(build, "figures", None)  # scoring is no part of it
    monkeypatch.chdir(tmp_path)
    measure = seconds_per_update.__wrapped__
    assert measure(3) == 2.0 / training.TRIAL_UPDATES
    assert list(tmp_path.iterdir()) == []


class TestFreeFolder:
    def test_counts_on_until_a_folder_is_free(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "notebooks").mkdir()
        monkeypatch.chdir(tmp_path / "notebooks")  # where JupyterLab starts kernels
        assert free_folder("runs/tour") == tmp_path / "runs" / "tour"
        for name in ("tour", "tour-2"):
            (tmp_path / "runs" / name).mkdir(parents=True)
            (tmp_path / "runs" / name / "run.json").touch()
        (tmp_path / "runs" / "tour-3").mkdir()  # empty, so free
        assert free_folder("runs/tour") == tmp_path / "runs" / "tour-3"

    def test_without_a_repository_it_lies_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert free_folder("tour") == tmp_path / "tour"
        assert free_folder("") is None
