"""A record of scores has a row for each run, equal to what is printed."""

from pathlib import Path

import pytest

from tests.support.fixtures_config import SMALL_MISSION, train_tiny
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import policy
from uavlab.experiment.presets import PRESETS, Preset
from uavlab.experiment.score import score, score_plan


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train_tiny(folder)
    return folder


def test_each_run_is_told_and_recorded(finished: Path) -> None:
    lines: list[str] = []
    record = score([str(finished), str(finished)], 3, 1, True, "cpu", lines.append)
    expected = policy.evaluate(policy.load(finished), 3, 1, True)
    assert record["rows"] == 2 * [{**expected, "run": str(finished), "episodes": 3, "seed": 1, "action": "mean"}]
    assert [trained["status"] for trained in record["trained"]] == ["complete", "complete"]
    assert record["machine"]["threads"] >= 1
    assert len(lines) == 2 * (1 + len(expected))
    assert lines[0] == f"{finished}: policy of update <= 8, 3 episodes x 1 run(s)"
    path = expected["path"]
    assert f"path               {path['mean']:10.3f}   [{path['low']:.3f}, {path['high']:.3f}] px" in lines


def test_nothing_flies_before_all_are_read(finished: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for second, error in (("nobody", ConfigError), (str(tmp_path), FileError)):
        with pytest.raises(error):
            score([str(finished), second], 3, 0, False, None, lines.append)
    assert lines == []


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "small_mapping", Preset("mapping", "Small.", SMALL_MISSION))
    return "small_mapping"


@pytest.mark.parametrize("plan", ["random", "information_gain", "sweep"])
def test_plans_are_scored_like_policies(small: str, plan: str) -> None:
    lines: list[str] = []
    record = score_plan([small], plan, 6, 2, "cpu", lines.append)
    (row,) = record["rows"]
    assert (row["preset"], row["policy"], row["episodes"], row["seed"]) == (small, plan, 6, 2)
    assert row["entropy"]["low"] <= row["entropy"]["mean"] <= row["entropy"]["high"] <= 1
    assert lines[0] == f"{small}: {plan}, 6 episodes"
    again = score_plan([small], plan, 6, 2, "cpu", lines.append)
    assert again["rows"] == record["rows"]
    assert score_plan([small], plan, 6, 3, "cpu", lines.append)["rows"] != record["rows"]


def test_plans_that_are_not_there_are_told(small: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'sweep'.*Known: random, information_gain, sweep"):
        score_plan([small], "sweeep", 2, 0, None, print)
    with pytest.raises(ConfigError, match="leader_follower has none"):
        score_plan(["leader_follower"], "sweep", 2, 0, None, print)
