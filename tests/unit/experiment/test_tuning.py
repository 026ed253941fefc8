"""The log of a search lists runs in the order of time, with what changed and what it did; the best settings train."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import TINY
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import tuning as module
from uavlab.experiment.config import Config, configure, read_yaml
from uavlab.experiment.run import Run
from uavlab.experiment.tuning import Tuning, changes, effect, own_settings, scores, tuning
from uavlab.storage.metrics_log import Recorder


def config(preset: str = "leader_follower", **settings: Any) -> Config:
    return configure(preset, TINY, settings)


def write_run(folder: Path, time: int, values: Sequence[Sequence[float]], preset: str = "", **settings: Any) -> None:
    """Write the folder of a run whose seeds had these scores, one after another, as at this time."""
    own = config(preset or "leader_follower", **{"runs": len(values), **settings})
    Run(own, folder)
    recorder = Recorder(folder)
    for update, each in enumerate(zip(*values, strict=True), 1):
        seeds = {f"eval/{name}": [0.0] * len(each) for name in own.env.score}
        seeds["eval/completion"] = [value / own.env.score["completion"] for value in each]
        recorder.append(update, 1.0, {name: sum(x) / len(x) for name, x in seeds.items()}, seeds)
    recorder.close()
    os.utime(folder / "config.json", (time, time))


def rounded(values: Mapping[int, float]) -> dict[int, float]:
    """Return scores without the last bits, which the files of several seeds do not hold."""
    return {seed: round(value, 5) for seed, value in values.items()}


@pytest.fixture
def log(tmp_path: Path) -> Tuning:
    """Three trials: the first one of two runs, whose names are not in the order of time."""
    write_run(tmp_path / "c", 1, [[0.1, 0.4, 0.2]])
    write_run(tmp_path / "b", 2, [[0.2, 0.5], [0.7, 0.6]], lr=5e-4)
    write_run(tmp_path / "a", 3, [[0.3, 0.6]], seed=1)
    write_run(tmp_path / "d", 4, [[0.9, 0.9]], crash_cost=7.0, updates=5)
    return tuning(tmp_path)


def test_trials_are_in_the_order_of_time_and_seeds_are_pooled(log: Tuning) -> None:
    assert [trial.runs for trial in log.trials] == [("c", "a"), ("b",), ("d",)]
    assert [rounded(trial.best) for trial in log.trials] == [{0: 0.4, 1: 0.6}, {0: 0.5, 1: 0.7}, {0: 0.9}]
    assert [rounded(trial.last) for trial in log.trials] == [{0: 0.2, 1: 0.6}, {0: 0.5, 1: 0.6}, {0: 0.9}]


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


def test_a_seed_that_was_trained_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "first", 1, [[0.5]])
    write_run(tmp_path / "again", 2, [[0.9]])
    (trial,) = tuning(tmp_path).trials
    assert (trial.runs, rounded(trial.best)) == (("first", "again"), {0: 0.5})
    assert trial.score == (0.5, 0.5, 0.5)


def test_the_best_mean_is_the_best(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, [[0.9], [0.1]])
    write_run(tmp_path / "b", 2, [[0.6], [0.7]], lr=5e-4)
    write_run(tmp_path / "c", 3, [[0.2], [0.2]], lr=2e-4)
    assert tuning(tmp_path).best.runs == ("b",)


def test_scores_of_a_curriculum_are_those_of_its_highest_stage() -> None:
    rows = [{"eval/a": value, "eval/stage": stage} for value, stage in ((0.9, 1.0), (0.5, 2.0), (0.4, 2.0), (0.8, 1.0))]
    assert scores(rows, {"a": 1.0}, 1) == [[0.5, 0.4]]


def test_scores_of_other_stages_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "stuck", 1, [[0.95]])
    write_run(tmp_path / "far", 2, [[0.6]], lr=5e-4)
    highest = iter(([1.0], [4.0]))
    monkeypatch.setattr(module, "highest_stages", lambda rows, seeds: next(highest))
    monkeypatch.setattr(module, "scores", lambda rows, score, seeds: [[row["eval/completion"] for row in rows]])
    log = tuning(tmp_path)
    assert [(trial.comparable, trial.effect) for trial in log.trials] == [(True, None), (False, None)]
    assert log.best.runs == ("far",)


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
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["trials"] == json.loads(json.dumps(log.rows()))
    assert f"best settings, of d: {out}" in ended.out
    text = out.read_text()
    assert text.startswith("# uavlab train leader_follower --config best.yaml\n# best score 0.900, of d\n")
    assert configure("leader_follower", read_yaml(out)) == log.trials[2].config
    first = ended.out.splitlines()[1]
    assert first.split() == [
        *("1", "0.500", "[-0.771,", "1.771]", "0.400", "2", "c,", "a:", "leader_follower"),
    ]


def test_runs_that_cannot_be_read_are_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, [[0.5]])
    write_run(tmp_path / "b", 2, [[0.5]])
    (tmp_path / "b" / "metrics.jsonl").write_text("no row\n")
    log = ul.tuning(tmp_path)
    assert [trial.runs for trial in log.trials] == [("a",)]
    assert "b/metrics.jsonl:1: expected a row of metrics" in log.notes[0]


def test_folders_without_runs_or_scores(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"expected a folder of runs, such as runs; got no run in it"):
        tuning(tmp_path)
    Run(config(), tmp_path / "a")
    log = tuning(tmp_path)
    assert "1                          -        -     0" in str(log)
    with pytest.raises(ConfigError, match="no run on the task of the last one has a score"):
        _ = log.best


def test_names_alone_would_not_be_the_order_of_time(log: Tuning) -> None:
    for number, name in enumerate("abcd"):
        os.utime(log.folder / name / "config.json", (number, number))
    assert [trial.runs for trial in tuning(log.folder).trials] == [("a", "c"), ("b",), ("d",)]
