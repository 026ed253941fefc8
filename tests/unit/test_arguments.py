"""Tasks, settings and runs become the objects that they name, or an error that quotes what was given."""

import os
from pathlib import Path

import pytest

from tests.support.fixtures_config import TINY, tiny
from uavlab.api import config_of, layers, run_folders, task_config, trained_policy
from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import policy
from uavlab.experiment.run import Run


def test_settings_are_one_layer_over_a_named_set() -> None:
    named, own = layers("plain", {"lr": 0.002}, {"updates": 5, "seed": None})
    assert named["update"] == "loop"
    assert own == {"lr": 0.002, "updates": 5}
    assert own.origins == {"lr": "settings", "updates": "an argument"}
    with pytest.raises(ConfigError, match="lr is given twice, by toggles and by settings"):
        layers({"lr": 0.001}, {"lr": 0.002}, {})


def test_settings_of_a_task_a_run_and_a_folder(finished: Path) -> None:
    own = {name: value for name, value in TINY.items() if name not in ("horizon", "formation_radius")}
    config = task_config(LeaderFollower(horizon=6, formation_radius=130.0), None, own, {})
    assert config.values == tiny().values == config_of(finished).values
    run = Run(config)
    assert config_of(run) is run.config
    assert config_of("leader_follower", "cpu").values["device"] == "cpu"


def test_a_policy_of_a_run_and_a_folder(finished: Path) -> None:
    loaded = policy.load(finished)
    assert trained_policy("fly", loaded) is loaded
    assert trained_policy("fly", str(finished)).folder == finished
    with pytest.raises(ConfigError, match=r"^fly: got 3; expected a run"):
        trained_policy("fly", 3)


class TestRunFolders:
    def test_one_or_several_each_once_in_their_order(self, finished: Path, tmp_path: Path) -> None:
        loaded, other = policy.load(finished), policy.export(policy.load(finished), tmp_path / "other")
        assert run_folders("report", loaded) == run_folders("report", str(finished)) == [finished]
        assert run_folders("report", (other, finished, loaded, str(other))) == [other, finished]
        assert run_folders("report", iter([finished])) == [finished]

    def test_another_path_to_a_run_is_the_same_run(self, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(finished.parent)
        assert len(run_folders("report", [finished.name, finished, f"./{finished.name}{os.sep}"])) == 1

    def test_a_run_is_not_iterated(self, tmp_path: Path) -> None:
        run = Run(tiny(), tmp_path / "run")
        assert run_folders("report", run) == run_folders("report", [run]) == [tmp_path / "run"]
        assert run.number == 0
        with pytest.raises(ConfigError, match=r"^report: <Run of .* has no folder; train it with out=FOLDER"):
            run_folders("report", Run(tiny()))

    @pytest.mark.parametrize("runs", [3, None, [], [3], {}, [[]]])
    def test_what_is_no_run(self, runs: object) -> None:
        with pytest.raises(ConfigError, match=r"^report: got "):
            run_folders("report", runs)
