"""The newest policy flies, not the best one, and the run goes on as if nobody had looked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import uavlab as ul
from tests.support.fixtures_config import sizes, tiny
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import digest
from uavlab_lab.explore.flight import flight_of
from uavlab_lab.plots import flight

Look = Callable[[Run], Any]


def drawn(trained: policy.TrainedPolicy, seed: int) -> str:
    return flight.animate(trained.config.evaluation, [*policy.fly(trained, seed)]).to_json()


def digest_after(look: Look) -> str:
    """Train a run, look at it after each update, and return the digest of its end."""
    run = Run(tiny(updates=4, evaluate_every=2))
    for _ in run:
        before = digest(run)
        look(run)
        assert digest(run) == before
    return run.digest


class TestPolicy:
    def test_a_run_amid_training_flies_by_its_parameters_as_they_are(self) -> None:
        run = Run(tiny(updates=8, evaluate_every=1))
        steps = run.train()
        while torch.equal(run.best, run.learner.parameters()):
            next(steps)
        assert run.status == "running"
        assert flight_of(run, 3).to_json() == drawn(run.trained("last"), 3) != drawn(run.trained(), 3)
        assert len(flight_of(run).frames) > 1

    def test_a_folder_flies_by_its_newest_checkpoint(self, finished: Path) -> None:
        assert flight_of(finished).to_json() == drawn(policy.load(finished, which="last"), 0)
        assert flight_of(str(finished), 1).to_json() != flight_of(finished).to_json()

    def test_a_copy_flies_by_the_only_policy_that_it_has(self, finished: Path, tmp_path: Path) -> None:
        policy.export(policy.load(finished), tmp_path / "copy")
        assert flight_of(tmp_path / "copy").to_json() == drawn(policy.load(finished), 0)


class TestNothingChanges:
    def test_the_digest_is_that_of_a_run_at_which_nobody_looked(self) -> None:
        assert digest_after(flight_of) == digest_after(lambda run: None)

    def test_a_flight_by_the_streams_of_the_run_is_caught(self) -> None:
        def draw(run: Run) -> None:
            env = run.config.evaluation
            next(policy.fly_policy(env, run.policy().function, run.rng))

        with pytest.raises(AssertionError):
            digest_after(draw)

    def test_folders_stay_as_they_are(self, finished: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
        flight_of(finished)
        assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


class TestBadInput:
    def test_a_task_without_a_team_says_so(self) -> None:
        run = ul.start(configure("telemetry").preset, settings=sizes("telemetry"))
        with pytest.raises(ConfigError, match="has no team that flies"):
            flight_of(run)

    @pytest.mark.parametrize("seed", [-1, 0.5, "0", None])
    def test_a_seed_that_is_none(self, seed: Any, finished: Path) -> None:
        with pytest.raises(ConfigError, match="expected a whole number from 0 up"):
            flight_of(finished, seed)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="missing"):
            flight_of(tmp_path)
        with pytest.raises(ConfigError, match="is a preset, expected a run"):
            flight_of("mapping_quick")
        with pytest.raises(ConfigError, match="expected the folder of a run"):
            flight_of(5)  # type: ignore[arg-type]
