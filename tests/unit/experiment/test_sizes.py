"""Batches that are ``auto`` have the published sizes, the record says why, and a resumed run keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import TINY, stop_and_resume, tiny, train_run
from uavlab.core.errors import ConfigError
from uavlab.experiment import sizes
from uavlab.experiment.config import configure
from uavlab.experiment.run_dir import read_config
from uavlab.experiment.sizes import Sweep, batch_for, count_entities


@pytest.mark.parametrize(
    ("entities", "rows"), [(1, 128), (8, 128), (9, 64), (16, 64), (17, 32), (24, 32), (25, 16), (999, 16)]
)
def test_the_published_table(entities: int, rows: int) -> None:
    assert batch_for(entities) == rows


def test_no_entities() -> None:
    with pytest.raises(ConfigError, match="got 0 entities; expected at least 1"):
        batch_for(0)


def test_entities_are_what_is_listed_or_agents() -> None:
    assert count_entities(configure("assignment", {"uavs": [2, 5], "targets": [1, 3]}).env.spec) == 8
    assert count_entities(configure("assignment", {"slots": [20, 15, 10]}).env.spec) == 35
    assert count_entities(configure("leader_follower", {"followers": 8}).env.spec) == 9


@pytest.mark.parametrize(("followers", "rows"), [(7, 128), (8, 64), (30, 16)])
def test_a_batch_from_replay(followers: int, rows: int) -> None:
    config = configure("leader_follower", {"followers": followers, "batch": "auto"})
    assert (config.values["batch"], config.source.batch) == (rows, rows)
    assert config.chosen == {"batch": f"{rows} rows, published for {followers + 1} entities"}


@pytest.mark.parametrize(
    ("preset", "settings", "count", "size"),
    [
        ("assignment_quick", {}, 128, 64),  # 512 x 16 steps, 6 + 4 entities
        ("assignment_quick", {"worlds": 2, "rollout_steps": 3}, 1, 64),  # less than one minibatch
        ("assignment_quick", {"worlds": 3, "rollout_steps": 32}, 2, 64),  # 96 / 64 = 1.5, to the even number
        ("pursuit", {"worlds": 10_000, "rollout_steps": 1_000}, 1000, 128),  # the most that are allowed
        ("mapping", {"worlds": 10}, 1, 128),  # COMA: 10 missions of 14 steps
    ],
)
def test_minibatches(preset: str, settings: dict[str, Any], count: int, size: int) -> None:
    config = configure(preset, settings, {"minibatches": "auto"})
    assert (config.values["minibatches"], config.learner.minibatches) == (count, count)
    assert config.chosen["minibatches"].startswith(f"{count} of about {size} rows, published for ")


def test_numbers_are_taken_as_they_are() -> None:
    assert configure("leader_follower", {"followers": 30, "batch": 77}).chosen == {}
    assert configure("leader_follower", {"batch": "auto"}, {"batch": 77}).values["batch"] == 77


@pytest.mark.parametrize(
    ("preset", "settings", "message"),
    [
        ("telemetry", {"batch": "auto"}, "telemetry: batch=auto counts the entities of a team, and there is none"),
        ("leader_follower", {"minibatches": "auto"}, "unknown setting 'minibatches'"),
        ("leader_follower", {"batch": "automatic"}, "batch: input should be a valid integer"),
        ("telemetry", {"worlds": "auto"}, "unknown setting 'worlds'"),
        ("leader_follower", {"batch": "auto", "capacity": 100, "worlds": 4, "learning_starts": 9}, "batch 128 > capac"),
    ],
)
def test_what_is_refused(preset: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(preset, settings)


def test_the_record_says_why_and_a_resumed_run_keeps_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, why = tiny(batch="auto", capacity=1000), {"batch": "128 rows, published for 2 entities"}
    whole = train_run(config, tmp_path / "whole")
    monkeypatch.setattr(sizes, "PUBLISHED", {8: 99})  # as if a later version had another table
    resumed = stop_and_resume(config, tmp_path / "run")
    assert (resumed.digest, resumed.config.values["batch"]) == (whole.digest, 128)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["chosen"] == why
    assert read_config(tmp_path / "run").chosen == why
    assert configure("leader_follower", TINY, {"batch": "auto", "capacity": 1000}).values["batch"] == 99
    train_run(tiny(), tmp_path / "plain")
    assert "chosen" not in json.loads((tmp_path / "plain" / "run.json").read_text())


@pytest.fixture
def knee(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let a sweep return 3 worlds; return the runs that were measured."""
    measured: list[Any] = []

    def sweep(config: Any, **limits: Any) -> Sweep:
        measured.append(config)
        return Sweep({1: 10.0, 3: 30.0}, "agent-steps", "4 do not fit")

    monkeypatch.setattr(sizes, "sweep_worlds", sweep)
    return measured


def test_worlds_are_measured_once_and_a_resumed_run_keeps_the_number(tmp_path: Path, knee: list[Any]) -> None:
    plain = train_run(tiny(worlds=3))
    config = tiny(worlds="auto")
    whole = train_run(config, tmp_path / "whole")
    resumed = stop_and_resume(config, tmp_path / "run")
    assert len(knee) == 1
    assert plain.digest == whole.digest == resumed.digest
    assert resumed.config.values["worlds"] == 3
    why = json.loads((tmp_path / "run" / "run.json").read_text())["chosen"]["worlds"]
    assert why.startswith(
        "3 worlds, 30 agent-steps per second, the fewest within 2% of the best rate of 1 to 3 worlds;"
    )
    assert read_config(tmp_path / "run").chosen == {"worlds": why}


def test_measuring_changes_no_bit_of_the_run() -> None:
    config = tiny(worlds="auto", capacity=2, batch=2, learning_starts=2)  # at most 2 worlds
    assert train_run(config).digest == train_run(tiny(**{**config.values, "learner": None})).digest


def test_worlds_are_measured_with_the_batch_and_minibatches_are_of_these_worlds(knee: list[Any]) -> None:
    config = configure("leader_follower", {"worlds": "auto", "batch": "auto"})
    assert (knee[0].source.batch, config.source.batch, config.source.worlds) == (128, 128, 3)
    settings = {"worlds": "auto", "minibatches": "auto", "rollout_steps": 640, "learner": "mappo"}
    assert configure("leader_follower", settings).values["minibatches"] == 15  # 3 x 640 of 128
