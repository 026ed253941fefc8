"""Scores come by the clock; figures have their intervals; a command trains its run again."""

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import tiny, train_run
from uavlab.core.errors import ResourceError
from uavlab.core.statistics import student
from uavlab.core.text import yaml_value
from uavlab.experiment.config import Config, configure, gather
from uavlab.experiment.fit import Pace
from uavlab_lab import study

TABLE = {"metric": "completion", "stages": [{"present": [1, 1], "mark": 0.9}, {}]}


class TestPace:
    """Twenty scores in 10 minutes are one every 30 s."""

    @pytest.mark.parametrize(
        ("update_s", "score_s", "points", "updates"),
        [
            (0.1, 2.0, 20, 280),  # 28 s of updates and 2 s of a score
            (0.1, 10.0, 20, 400),  # a score takes more than a fifth: 40 s of updates for one of 10 s
            (50.0, 1.0, 20, 1),
            (1.0, None, 20, 30),
            (1.0, 2.0, 60, 8),  # 8 s of updates and 2 s of a score, both limits at once
            (1.0, 1.0, 60, 9),
        ],
    )
    def test_scores_come_by_the_clock(self, update_s: float, score_s: float | None, points: int, updates: int) -> None:
        pace = Pace(1, 1.0, "", update_s, 0.0, score_s, "")
        assert study.updates_between_scores(pace, 10.0, points) == updates

    def test_a_run_that_ends_by_updates_keeps_its_intervals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(study, "measure", lambda config: Pace(1, 1.0, "", 1.0, 0.0, 0.0, ""))
        config = tiny()
        assert study.paced(config, 60) is config
        paced = study.paced(tiny(minutes=10.0), 60)
        assert (paced.run.evaluate_every, paced.run.checkpoint_every) == (10, 10)


class TestFigures:
    def test_bounds_of_a_score(self) -> None:
        """Of spread: covered landmarks from 0 to 1, minus a hundredth of collisions, of which there is no most."""
        assert study.score_bounds(configure("spread").env) == (float("-inf"), 1.0)
        assert study.score_bounds(configure("pursuit").env) == (0.0, 1.0)

    def test_intervals_end_at_the_bounds(self) -> None:
        values = torch.tensor([[1.0, 1.0], [0.0, 0.5]])
        figure = study.figure_of(values, (0.0, 1.0))
        assert figure == {"mean": 0.625, "low": 0.0, "high": 1.0, "each": [1.0, 0.25]}
        assert study.over_seeds([1.0, 0.25], (0.0, 1.0)) == figure
        assert "each" not in study.figure_of(values[:1], (0.0, 1.0))

    def test_without_bounds_they_are_those_of_student(self) -> None:
        """Of 1 and 0.25: the mean and 12.7062 times 0.375 on both sides."""
        figure = study.over_seeds([1.0, 0.25])
        assert (figure["low"], figure["high"]) == pytest.approx((0.625 - 4.76483, 0.625 + 4.76483), abs=1e-4)
        assert (figure["mean"], figure["low"], figure["high"]) == pytest.approx(student([1.0, 0.25]), rel=1e-5)

    def test_validation_has_the_stages_of_the_seeds(self) -> None:
        table = {**TABLE, "stages": [{"obstacle_speed": 0.0, "patience": 1}, {}]}
        run = train_run(tiny(runs=2, obstacle_speed=10.0, curriculum=table))
        points = study.validation(run)
        rows = [row for row in run.recorder.rows if "eval/stage" in row]
        assert [point["stages"] for point in points] == [row["each"]["eval/stage"] for row in rows]
        assert points[0]["stages"] == [1, 1]
        weights = run.config.evaluation.score
        for point, row in zip(points, rows, strict=True):
            each = [sum(weights[name] * row["each"][f"eval/{name}"][at] for name in weights) for at in range(2)]
            assert point["each"] == pytest.approx(each, rel=1e-5)
            assert point["mean"] == pytest.approx(sum(each) / 2, rel=1e-5)
        assert "stages" not in study.validation(train_run(tiny()))[0]


class TestRuns:
    def test_an_attempt_that_fails_says_why(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(config: Config, folder: Path, points: int) -> Any:
            raise ResourceError("the disk\nis full")

        monkeypatch.setattr(study, "train", full)
        assert study.attempt(tiny(), tmp_path) == (None, "ResourceError: the disk\\nis full")

    def test_a_folder_that_cannot_be_written_is_refused_before_any_run(self, tmp_path: Path) -> None:
        (tmp_path / "mine").touch()
        with pytest.raises(ResourceError, match="cannot be written"):
            study.changes(tiny(), tmp_path / "mine" / "run")
        assert study.changes(tiny(), tmp_path / "new" / "run") is None

    def test_times_are_of_training(self) -> None:
        run = train_run(tiny())
        run.seconds = 12.0
        assert study.times(run) == {"updates": 8, "minutes": 0.2, "update_ms": 1500.0}


class TestCommand:
    def test_a_run_by_the_clock(self) -> None:
        config = configure("spread", {"runs": 5, "minutes": 10.0, "evaluate_every": 30})
        assert study.command(config) == (
            "uavlab train spread --learner masac --runs 5 --minutes 10 --set evaluate_every=30"
        )

    def test_tables_lists_and_nothing_are_read_as_they_were(self) -> None:
        """Python's own texts of None, of a tuple and of a table are no YAML, or another value."""
        given = {"followers": 2, "present": [1, 2], "curriculum": TABLE, "patience": None, "lr": 1e-5, "plateau": {}}
        config = configure("leader_follower", given)
        words = shlex.split(study.command(config))
        assert words[:5] == ["uavlab", "train", "leader_follower", "--learner", "masac"]
        texts = [word for option, word in pairwise(words) if option == "--set"]
        assert configure("leader_follower", gather(None, texts, {})).values == config.values
        staged = configure("leader_follower_curriculum", {"curriculum": None})
        assert study.command(staged).endswith(" --set curriculum=null")
        assert yaml_value("null", "") is None
