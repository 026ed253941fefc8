"""A resumed run equals an uninterrupted one bit for bit, and an incomplete checkpoint is refused."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

import uavlab as ul
from tests.support.fixtures_config import LONG, tiny, train_until
from uavlab.core.errors import FileError
from uavlab.experiment import resume, run_state
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab.storage import checkpoint


def test_a_run_stopped_again_and_again_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole = train_until(tmp_path / "whole", -1)
    for point in (3, 8, 28, -1):
        run = train_until(tmp_path / "broken", point)
    assert (run.digest, run.parts.not_exact_reasons) == (whole.digest, [])


def test_the_clock_goes_on(tmp_path: Path) -> None:
    train_until(tmp_path / "run", 4)
    before = json.loads((tmp_path / "run" / "run.json").read_text())["seconds"]
    run = train_until(tmp_path / "run", -1)
    assert [row["seconds"] for row in run.recorder.rows] == sorted(row["seconds"] for row in run.recorder.rows)
    assert run.seconds > before > 0


def test_a_state_is_one_digest() -> None:
    run, again = Run(tiny()), Run(tiny())
    assert run_state.digest(run) == run_state.digest(again) != run_state.digest(Run(tiny(seed=1)))
    again.seconds = 5.0
    again.recorder.rows.append({"update": 1, "seconds": 1.0, "q": 2.0})
    with_a_row = run_state.digest(again)
    again.recorder.rows[0]["seconds"] = 3.0
    assert run_state.digest(again) == with_a_row != run_state.digest(run)


def test_saves_take_over_the_rows_that_did_not_change(tmp_path: Path) -> None:
    train_until(tmp_path / "run", -1, checkpoint_every=2)
    *_, before, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    shared = [path.name for path in newest.iterdir() if path.stat().st_nlink > 1]
    assert all((before / name).samefile(newest / name) for name in shared)
    segments = sorted(path.name for path in newest.iterdir() if path.name.startswith(resume.SEGMENT))
    assert shared
    assert sorted(shared) == segments[: len(shared)]
    assert len(segments) in (4, 5)


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path: Path) -> None:
    saved = checkpoint.load(train_until(tmp_path / "run", 3).last)  # type: ignore[arg-type]
    del saved.groups["learner"]["target"]
    with pytest.raises(
        FileError, match=rf"^{re.escape(str(saved.path))}: does not fit the settings of its run \('target'\)"
    ):
        resume.restore(Run(tiny(**LONG)), saved)


def test_differences_of_machines_are_listed() -> None:
    here = {"device": "H200", "cpu": "x", "cpu_id": "model 1", "threads": 1, "torch": "2.13.0", "uavlab": "0.1.0"}
    here |= {"code": "a", "cores": 4}
    assert run_state.machine_differences(here, {**here, "cores": 2}) == []
    assert run_state.machine_differences(here, {**here, "cpu_id": "model 2"}) == ["cpu_id model 1 -> model 2"]
    assert run_state.machine_differences(here, {**here, "torch": "2.11.0", "threads": 2}) == [
        "threads 1 -> 2",
        "torch 2.13.0 -> 2.11.0",
    ]


SHORT = {"updates": 4, "worlds": 2, "rollout_steps": 3, "hidden": 8, "log_every": 2, "evaluate_every": 4}


def test_each_update_is_reported() -> None:
    run = ul.start("spread", learner="ippo", settings={**SHORT, "evaluate_episodes": 2, "runs": 2})
    steps: list[Progress] = list(run)
    assert [step.number for step in steps] == [1, 2, 3, 4]
    assert {step.target for step in steps} == {4}
    assert [step.metrics is not None for step in steps] == [True, True, False, True]  # the first one, too
    assert [step.score is not None for step in steps] == [False, False, False, True]
    assert all(a.seconds <= b.seconds for a, b in pairwise(steps))
    last = steps[-1]
    assert last.each is not None
    assert last.score is not None
    for name, values in last.each.items():
        assert len(values) == 2
        assert last.score[f"eval/{name}"] == pytest.approx(sum(values) / 2)
