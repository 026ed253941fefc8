"""The log of a search lists runs in the order of time, with what changed and what it did; the best settings train."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import TINY, tiny, train_run
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import tuning as module
from uavlab.experiment.config import Config, configure, read_yaml
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config, read_status
from uavlab.experiment.tuning import Tuning, changes, effect, own_settings, tuning
from uavlab.storage.files import write_json


def config(preset: str = "leader_follower", **settings: Any) -> Config:
    return configure(preset, TINY, settings)


def write_run(folder: Path, time: int, values: Sequence[float], preset: str = "", **settings: Any) -> None:
    """Write the folder of a run whose seeds kept policies with these scores, as at this time."""
    Run(config(preset or "leader_follower", **{"runs": len(values), **settings}), folder)
    write_json(folder / "run.json", {"update": 1, "scores": list(values)})
    os.utime(folder / "config.json", (time, time))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run have the scores that ``write_run`` wrote."""

    def from_status(folder: Path, episodes: int) -> dict[int, float]:
        return dict(enumerate(read_status(folder)["scores"], read_config(folder).run.seed))

    monkeypatch.setattr(module, "policy_scores", from_status)


@pytest.fixture
def log(tmp_path: Path, scripted: None) -> Tuning:
    """Three trials: the first one of two runs, whose names are not in the order of time."""
    write_run(tmp_path / "c", 1, [0.4])
    write_run(tmp_path / "b", 2, [0.5, 0.7], lr=5e-4)
    write_run(tmp_path / "a", 3, [0.6], seed=1)
    write_run(tmp_path / "d", 4, [0.9], crash_cost=7.0, updates=5)
    return tuning(tmp_path)


def test_trials_are_in_the_order_of_time_and_seeds_are_pooled(log: Tuning) -> None:
    assert [trial.runs for trial in log.trials] == [("c", "a"), ("b",), ("d",)]
    assert [trial.scores for trial in log.trials] == [{0: 0.4, 1: 0.6}, {0: 0.5, 1: 0.7}, {0: 0.9}]


def test_changes_are_those_to_the_trial_before(log: Tuning) -> None:
    assert [dict(trial.changes) for trial in log.trials] == [
        {},
        {"lr": (1e-3, 5e-4)},
        {"updates": (8, 5), "lr": (5e-4, 1e-3), "crash_cost": (500.0, 7.0)},
    ]
    assert changes(config(), config("leader_follower_quick", seed=5))["preset"] == (
        "leader_follower",
        "leader_follower_quick",
    )


def test_effects_are_of_pairs_of_seeds(log: Tuning) -> None:
    assert log.trials[1].effect == pytest.approx((0.1, 0.1, 0.1), abs=1e-5)  # both seeds gained as much
    assert effect({0: 0.0, 1: 1.0, 2: 5.0}, {0: 1.0, 1: 4.0}) == pytest.approx((2.0, -10.706, 14.706), abs=1e-3)
    assert effect({0: 1.0}, {1: 4.0, 2: 6.0}) == (4.0, 4.0, 4.0)  # no pair, so no width
    assert effect({}, {0: 1.0}) is None


def test_scores_of_another_task_are_not_compared(log: Tuning) -> None:
    assert [(trial.comparable, trial.effect is None) for trial in log.trials] == [
        (True, True),
        (True, False),
        (False, True),
    ]
    assert "another task" in str(log).splitlines()[3]
    assert log.best.runs == ("d",)  # the only one on the task of the last


def test_a_seed_that_was_trained_twice_counts_once(scripted: None, tmp_path: Path) -> None:
    write_run(tmp_path / "first", 1, [0.5])
    write_run(tmp_path / "again", 2, [0.9])
    (trial,) = tuning(tmp_path).trials
    assert (trial.runs, trial.scores) == (("first", "again"), {0: 0.5})
    assert trial.score == (0.5, 0.5, 0.5)


def test_the_best_mean_is_the_best(scripted: None, tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, [0.9, 0.1])
    write_run(tmp_path / "b", 2, [0.6, 0.7], lr=5e-4)
    write_run(tmp_path / "c", 3, [0.2, 0.2], lr=2e-4)
    assert tuning(tmp_path).best.runs == ("b",)


def test_noisier_scores_in_training_have_no_effect(tmp_path: Path) -> None:
    """Nothing learns: the highest of 20 scores of one episode is far above that of 20 scores of 30 episodes."""
    still = {"lr": 1e-12, "alpha_lr": 1e-12, "updates": 20, "evaluate_every": 1, "checkpoint_every": 20, "runs": 3}
    highest = {}
    for name, episodes in (("many", 30), ("few", 1)):
        run = train_run(tiny(**still, evaluate_episodes=episodes), tmp_path / name)
        highest[name] = dict(enumerate(run.best_score.tolist()))
    by_highest = effect(highest["many"], highest["few"])
    assert by_highest is not None
    assert by_highest[1] > 0.1  # which would be called an effect
    log = tuning(tmp_path, episodes=30)
    assert dict(log.trials[1].changes) == {"evaluate_episodes": (30, 1)}
    assert log.trials[1].effect is not None
    mean, low, high = log.trials[1].effect
    assert low <= 0 <= high
    assert abs(mean) < 0.01


def test_scores_are_those_of_an_evaluation(tmp_path: Path) -> None:
    """Of policies that a curriculum chose at its stages, too: all trials are scored on the task itself."""
    stages = [{"mark": 0.0, "passes": 1, "obstacle_speed": 5.0}, {"obstacle_speed": 10.0}]
    settings = {"obstacle_speed": 10.0, "obstacles": 1}
    train_run(tiny(runs=2, seed=4, **settings), tmp_path / "plain")
    table = {"metric": "completion", "stages": stages}
    train_run(tiny(runs=2, seed=4, curriculum=table, **settings), tmp_path / "staged")
    log = tuning(tmp_path, episodes=5)
    assert [[*trial.scores] for trial in log.trials] == [[4, 5], [4, 5]]
    for trial in log.trials:
        figures = ul.evaluate(tmp_path / trial.runs[0], episodes=5)
        weights = trial.config.evaluation.score
        wanted = [sum(w * figures[name]["each"][seed] for name, w in weights.items()) for seed in range(2)]
        assert [*trial.scores.values()] == pytest.approx(wanted, rel=1e-5)
    assert log.trials[1].comparable


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("leader_follower_quick", {"lr": 1e-5, "eval_followers": 3}),
        ("leader_follower_quick", {"minutes": 3.0, "updates": 8000}),
        ("leader_follower_quick", {"learner": "mappo", "minutes": 2.0}),
        ("assignment_curriculum", {"curriculum": None, "uavs": [2, 3], "alarms": [{"figure": "x", "below": 0.5}]}),
    ],
)
def test_the_file_of_the_best_trains_the_same(preset: str, settings: dict[str, Any], tmp_path: Path) -> None:
    own = configure(preset, settings, {"device": "cpu"})
    (tmp_path / "best.yaml").write_text(
        "".join(f"{name}: {json.dumps(value)}\n" for name, value in own_settings(own).items())
    )
    assert configure(preset, read_yaml(tmp_path / "best.yaml")).values == own.values


def test_a_file_without_the_target_would_train_another_run(tmp_path: Path) -> None:
    own = configure("leader_follower_quick", {"minutes": 3.0, "updates": 8000})
    assert configure("leader_follower_quick", {"minutes": 3.0}).values != own.values
    assert own_settings(own) == {"minutes": 3.0, "updates": 8000}


def test_the_command_writes_the_best(log: Tuning) -> None:
    out = log.folder / "best.yaml"
    ended = uavlab("tuning", log.folder, "--best", out, "--json")
    assert ended.json["episodes"] == log.episodes == 100
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["trials"] == json.loads(json.dumps(log.rows()))
    assert f"best settings, of d: {out}" in ended.out
    text = out.read_text()
    assert text.startswith("# uavlab train leader_follower --config best.yaml\n# score 0.900 of d, the highest of 3\n")
    assert configure("leader_follower", read_yaml(out)) == log.trials[2].config
    first = ended.out.splitlines()[1]
    assert first.split() == [
        *("1", "0.500", "[-0.771,", "1.771]", "2", "c,", "a:", "leader_follower"),
    ]


def test_runs_that_cannot_be_read_or_scored_are_noted(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        train_run(tiny(), tmp_path / name)
    (tmp_path / "b" / "config.json").write_text("no settings\n")
    shutil.rmtree(tmp_path / "c" / "checkpoints")
    log = ul.tuning(tmp_path, episodes=2)
    assert [(trial.runs, len(trial.scores)) for trial in log.trials] == [(("a", "c"), 1)]
    assert sorted(name for name in "abc" for note in log.notes if f"{tmp_path / name}/" in note) == ["b", "c"]
    with pytest.raises(ConfigError, match=r"got episodes=0; expected at least 1"):
        ul.tuning(tmp_path, episodes=0)


def test_folders_without_runs_or_scores(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"expected a folder of runs, such as runs; got no run in it"):
        tuning(tmp_path)
    Run(config(), tmp_path / "a")
    log = tuning(tmp_path)
    assert "1                          -     0" in str(log)
    with pytest.raises(ConfigError, match="no run on the task of the last one has a score"):
        _ = log.best


def test_names_alone_would_not_be_the_order_of_time(log: Tuning) -> None:
    for number, name in enumerate("abcd"):
        os.utime(log.folder / name / "config.json", (number, number))
    assert [trial.runs for trial in tuning(log.folder).trials] == [("a", "c"), ("b",), ("d",)]
