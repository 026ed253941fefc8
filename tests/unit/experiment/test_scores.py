"""Scores: equal calls give equal figures, of runs and of baselines; they are printed and recorded."""

import dataclasses
from pathlib import Path

import pytest

from tests.support.fixtures_config import SMALL_MISSION, tiny, train_tiny
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import policy, scores
from uavlab.experiment.presets import PRESETS, Preset
from uavlab.experiment.run import Run

EPISODES = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two runs in one process, evaluated with more followers than they were trained with."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "pair", runs=2, eval_followers=3, eval_horizon=9)


@pytest.fixture(scope="module")
def loaded(pair: Run) -> policy.TrainedPolicy:
    assert pair.folder is not None
    return policy.load(pair.folder)


class TestEvaluate:
    def test_the_same_call_gives_the_same_figures(self, pair: Run, loaded: policy.TrainedPolicy) -> None:
        first = scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert first == scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert first == scores.evaluate(pair.trained(), EPISODES, 0, mean_action=False)
        assert list(first)[:2] == ["completion", "formation_strict"]
        assert all(figure["low"] <= figure["mean"] <= figure["high"] for figure in first.values())

    def test_another_seed_or_the_mean_action_gives_others(self, loaded: policy.TrainedPolicy) -> None:
        first = scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert scores.evaluate(loaded, EPISODES, 1, mean_action=False)["return"] != first["return"]
        assert scores.evaluate(loaded, EPISODES, 0, mean_action=True)["energy"] != first["energy"]

    def test_on_another_task(self, loaded: policy.TrainedPolicy) -> None:
        task = dataclasses.replace(loaded.config.evaluation, horizon=2)
        assert scores.evaluate(loaded, EPISODES, 0, mean_action=False, env=task)["flight_time"]["mean"] == 2

    def test_runs_are_scored_on_starts_of_their_own(self, loaded: policy.TrainedPolicy) -> None:
        """Both runs hold the same policy here, so equal starts would give equal figures."""
        twins = dataclasses.replace(loaded, parameters=loaded.parameters[:1].expand(2, -1, -1))
        alone = dataclasses.replace(
            loaded, parameters=loaded.parameters[:1], config=tiny(eval_followers=3, eval_horizon=9)
        )
        both, one = (scores.evaluate(each, EPISODES, 0, mean_action=True)["return"] for each in (twins, alone))
        assert both["mean"] != one["mean"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_tiny(folder)
    return folder


def test_each_run_is_told_and_recorded(finished: Path) -> None:
    lines: list[str] = []
    record = scores.score([str(finished), str(finished)], 3, 1, True, "cpu", lines.append)
    expected = scores.evaluate(policy.load(finished), 3, 1, True)
    assert record["rows"] == 2 * [{**expected, "run": str(finished), "episodes": 3, "seed": 1, "action": "mean"}]
    assert [trained["status"] for trained in record["trained"]] == ["complete", "complete"]
    assert record["machine"]["threads"] >= 1
    assert len(lines) == 2 * (1 + len(expected))
    best = policy.load(finished).updates[0]
    assert lines[0] == f"{finished}: policy of update {best}, 3 episodes x 1 run(s)"
    path = expected["path"]
    assert f"path               {path['mean']:10.3f}   [{path['low']:.3f}, {path['high']:.3f}] px" in lines


def test_nothing_flies_before_all_are_read(finished: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for second, error in (("nobody", ConfigError), (str(tmp_path), FileError)):
        with pytest.raises(error):
            scores.score([str(finished), second], 3, 0, False, None, lines.append)
    assert lines == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "small_mapping", Preset("mapping", "Small.", SMALL_MISSION))
    return "small_mapping"


@pytest.mark.parametrize("plan", ["random", "information_gain", "sweep"])
def test_plans_are_scored_like_policies(small: str, plan: str) -> None:
    lines: list[str] = []
    record = scores.score_plan([small], plan, 6, 2, "cpu", lines.append)
    (row,) = record["rows"]
    assert (row["preset"], row["policy"], row["episodes"], row["seed"]) == (small, plan, 6, 2)
    assert row["entropy"]["low"] <= row["entropy"]["mean"] <= row["entropy"]["high"] <= 1
    assert lines[0] == f"{small}: {plan}, 6 episodes"
    again = scores.score_plan([small], plan, 6, 2, "cpu", lines.append)
    assert again["rows"] == record["rows"]
    assert scores.score_plan([small], plan, 6, 3, "cpu", lines.append)["rows"] != record["rows"]


def test_plans_that_are_not_there_are_told(small: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'sweep'.*Known: random, information_gain, sweep"):
        scores.score_plan([small], "sweeep", 2, 0, None, print)
    with pytest.raises(ConfigError, match=r"leader_follower: unknown\. Known: random\."):
        scores.score_plan(["leader_follower"], "sweep", 2, 0, None, print)
