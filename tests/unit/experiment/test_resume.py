"""A run goes on from its newest checkpoint, and no bit of its result changes."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.fixtures_config import tiny, train_tiny
from tests.unit.experiment.test_run import everything, rows, status, steps, timeless, until
from uavlab import api
from uavlab.core.errors import FileError
from uavlab.core.rng import Streams
from uavlab.experiment.run import Run


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("stopped", [3, 4])
@pytest.mark.parametrize("evaluate_every", [2, 8])
def test_a_break_changes_no_bit(tmp_path: Path, runs: int, stopped: int, evaluate_every: int) -> None:
    whole = train_tiny(tmp_path / "whole", runs=runs, evaluate_every=evaluate_every)
    until(Run(tiny(runs=runs, evaluate_every=evaluate_every), tmp_path / "broken"), stopped)
    assert status(tmp_path / "broken")["update"] == stopped
    resumed = Run.resume(tmp_path / "broken")
    assert (resumed.number, resumed.done) == (stopped, False)
    assert [progress.number for progress in resumed.train()] == list(range(stopped + 1, 9))
    expected, got = everything(whole), everything(resumed)
    assert set(expected) == set(got)
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    assert timeless(rows(tmp_path / "whole")) == timeless(rows(tmp_path / "broken"))
    assert timeless(resumed.recorder.rows) == timeless(whole.recorder.rows)
    assert status(tmp_path / "broken")["status"] == "complete"


def test_a_lost_stream_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_tiny()
    until(Run(tiny(), tmp_path / "broken"), 4)
    monkeypatch.setattr(Streams, "load_state_dict", lambda self, state: None)  # the mutant
    resumed = Run.resume(tmp_path / "broken")
    list(resumed.train())
    assert not torch.equal(whole.learner.parameters(), resumed.learner.parameters())


def test_from_an_earlier_checkpoint_the_later_rows_are_made_again(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints" / "ckpt-000000000008")
    resumed = Run.resume(folder)
    assert [row["update"] for row in resumed.recorder.rows] == [1, 2, 4]
    assert rows(folder) == rows(finished)  # loading changes no file
    next(steps := resumed.train())
    assert [row["update"] for row in rows(folder)] == [1, 2, 4]
    list(steps)
    assert timeless(rows(folder)) == timeless(rows(finished))


def test_a_complete_run_has_nothing_to_do(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run = Run.resume(tmp_path / "run")
    assert run.done
    assert list(run.train()) == []
    record, before = status(tmp_path / "run"), status(finished)
    assert record.pop("saves")["count"] == 0
    del record["machine"]["load"], before["machine"]["load"]
    assert record == {key: value for key, value in before.items() if key != "saves"}
    assert steps(tmp_path / "run") == [4, 8]


def test_an_exported_copy_cannot_go_on(finished: Path, tmp_path: Path) -> None:
    api.export(finished, tmp_path / "copy")
    with pytest.raises(FileError, match="an exported copy holds the policy alone; resume the run"):
        Run.resume(tmp_path / "copy")


def test_a_damaged_checkpoint_is_told(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/learner.npz"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"no intact checkpoint.*learner\.npz has"):
        Run.resume(tmp_path / "run")
