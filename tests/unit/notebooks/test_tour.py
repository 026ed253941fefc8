"""Widgets hold a run's settings and estimate its time; the published figures are those of the paper, in our units."""

from pathlib import Path

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.installation import ROOT
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.evaluation import COMMON
from uavlab.experiment.config import configure
from uavlab.experiment.fit import Pace
from uavlab.storage.files import read_json
from uavlab_lab.lessons import tour
from uavlab_lab.lessons.tour import COLUMNS, MADDPG, MASAC, PAPER, ROWS, Choices, free_folder

SHARES = {"completion", "collision", "timeout", "formation_strict", "formation_mean"}


def pretend(eval_followers: int, obstacles: int, sight: int) -> Pace:
    return Pace(40, 0.4, "", update_s=0.006 if sight else 0.003, warm_up_s=0.0, score_s=None, apart="")


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that updates take 3 ms, 6 ms with several obstacles."""
    monkeypatch.setattr(tour, "measure_pace", pretend)


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
        assert "1 leader, 4 follower(s), 1 obstacle(s): about 2 minutes here" in choices.status.value
        choices.updates.value = 10_000
        assert "about 30 seconds here for 10,000 updates, from 40 in 0.4 s" in choices.status.value
        choices.obstacles.value = 2
        assert "2 obstacle(s): about 60 seconds here" in choices.status.value

    def test_numbers_outside_the_range_are_pulled_in(self) -> None:
        choices = Choices(4, 1, 0, 100)
        choices.followers.value, choices.obstacles.value = 99, -3
        assert (choices.followers.value, choices.obstacles.value) == (16, 1)

    def test_a_failure_shows_until_the_next_success(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(obstacles: int, **others: int) -> Pace:
            if obstacles == 3:
                raise ConfigError("no more than <2> obstacles")
            return pretend(obstacles=obstacles, **others)

        monkeypatch.setattr(tour, "measure_pace", refuse)
        choices = Choices(4, 1, 0, 100)
        choices.obstacles.value = 3
        assert choices.status.value == "<b role='alert'>ConfigError: no more than &lt;2&gt; obstacles</b>"
        choices.obstacles.value = 2
        assert "2 obstacle(s)" in choices.status.value

    def test_headless_it_saves_a_stable_text(self) -> None:
        texts = [Choices(4, 1, seed, 100)._repr_mimebundle_()["text/plain"] for seed in (0, 1)]
        assert texts[0] == texts[1]
        assert "then run the next cell" in texts[0]


def test_the_pace_of_a_choice_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tour, "TRIAL_S", 0.0)  # one update after the first one
    pace = tour.measure_pace.__wrapped__(eval_followers=2, obstacles=3, sight=2)
    assert (pace.measured, pace.apart, list(tmp_path.iterdir())) == (1, "", [])
    assert pace.update_s > 0


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


def test_paths_are_pixels() -> None:
    """The published path sums speed / 30 over steps of 0.1 s: 1 is 30 px/s for 0.1 s, so 3 px."""
    assert (PAPER["path"], MADDPG["path"]) == pytest.approx((151.2 * 3, 186.3 * 3))
    slowest, fastest = 10 * PUBLISHED.dt, 20 * PUBLISHED.dt  # px per step of the leader
    for column in COLUMNS.values():
        assert slowest * column["flight_time"] < column["path"] < fastest * column["flight_time"]


def test_a_column_has_one_source() -> None:
    """What the shipped weights do and what the paper shows are never mixed; the measurements show the same figures."""
    record = read_json(ROOT / "figures" / "records" / "literature.json")["leader_follower"]
    for column, name in ((MASAC, "weights"), (PAPER, "paper")):
        assert column == pytest.approx({key: record[name][key] for key in column})
    assert PAPER["energy"] > 1.4 * MASAC["energy"]  # so that a mixture would be seen


def test_every_row_is_a_figure_of_ours() -> None:
    ours = {metric.name for metric in (*LeaderFollower.metrics, *COMMON)}
    keys = [key for key, _, _ in ROWS]
    assert set(keys) == ours - {"return"}
    assert set().union(*COLUMNS.values()) <= set(keys)
    assert len(set(keys)) == len(keys)
    for key, label, shape in ROWS:
        assert f"{0.5:{shape}}"
        assert label.endswith(")") is (key not in SHARES)  # every row that is no share names its unit


def test_shares_are_shares() -> None:
    for column in COLUMNS.values():
        assert all(0 <= value <= 1 for key, value in column.items() if key in SHARES)
        assert all(value > 1 for key, value in column.items() if key not in SHARES)
    assert abs(MASAC["completion"] + MASAC["collision"] + MASAC["timeout"] - 1) < 1e-9  # a flight ends in one way


def test_figures_side_by_side() -> None:
    ours = {
        "completion": {"mean": 0.5, "low": 0.25, "high": 0.756},
        "flight_time": {"mean": 212, "low": 200, "high": 220},
    }
    rows = (("completion", "completion (share)", ".2f"), ("flight_time", "flight time (steps)", ".0f"))
    table = tour.comparison({"ours": ours, "theirs": {"flight_time": 264.9}}, rows)
    assert table.heads == ["", "ours", "theirs"]
    assert table.rows == [
        ["completion (share)", "0.50  [0.25, 0.76]", "not published"],
        ["flight time (steps)", "212  [200, 220]", "265"],
    ]
