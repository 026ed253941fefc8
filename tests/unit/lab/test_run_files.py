"""Parts of a run are read on their own: what is damaged leaves a note and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from uavlab.core.errors import ConfigError
from uavlab.experiment.run_dir import read_config
from uavlab.lab.run_files import RunFiles, Scoring


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFiles:
    shutil.copytree(finished, tmp_path / "run")
    return RunFiles(tmp_path / "run", "run", read_config(tmp_path / "run"), Scoring(3))


def test_a_complete_run(run: RunFiles) -> None:
    assert run.status["status"] == "complete"
    assert run.rows[-1]["update"] == 8
    assert run.trained is not None
    assert run.figures is not None
    assert (result := run.summarize(run.figures)) is not None
    assert result.count == "3 episodes"
    assert run.flight is not None
    assert run.machine["python"] == run.status["machine"]["python"]
    assert (run.environment, run.flies, run.exported, run.notes) == ("LeaderFollower", True, False, [])


def test_without_a_checkpoint_there_is_no_policy(run: RunFiles) -> None:
    shutil.rmtree(run.folder / "checkpoints")
    assert (run.trained, run.figures, run.flight) == (None, None, None)
    assert len(run.notes) == 1
    assert run.notes[0].startswith(f"No policy: {run.folder}/checkpoints")
    assert len(run.rows) == 5


def test_damaged_metrics_and_status(run: RunFiles) -> None:
    (run.folder / "metrics.jsonl").write_text("half\n")
    (run.folder / "run.json").write_text("[")
    assert (run.rows, run.status, run.machine) == ([], {}, {})
    assert [note.partition(":")[0] for note in run.notes] == ["No metrics", "No status"]
    assert run.trained is not None


def test_an_error_of_any_kind_is_a_note(run: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(run.config.evaluation), "measure", lambda *words: 1 / 0)
    assert run.figures is None
    assert run.notes == ["No scores: ZeroDivisionError: division by zero"]
    assert run.trained is not None


@pytest.mark.parametrize(
    ("scoring", "message"),
    [
        ({"episodes": 0}, "episodes=0; expected a whole number from 1 up"),
        ({"episodes": "3"}, "episodes='3'; expected a whole number"),
        ({"seed": -1}, "seed=-1; expected a whole number from 0 up"),
        ({"device": "tpu"}, "device='tpu'; expected one of auto, cpu, cuda"),
    ],
)
def test_scoring_that_does_not_work_is_refused(scoring: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scoring(**scoring)
