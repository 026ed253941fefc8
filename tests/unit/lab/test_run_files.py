"""Parts of a run are read on their own: what is damaged leaves a note and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import tiny, train_tiny
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab_lab.run_files import RunFiles, Scoring, open_run, open_runs


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


class TestOpen:
    def test_a_run_of_this_process_has_the_parts_of_its_folder(self, tmp_path: Path) -> None:
        run = train_tiny(tmp_path / "own")
        here, there = open_run(run), open_run(tmp_path / "own")
        assert here.status == there.status
        assert (here.rows, here.name, here.exported) == (there.rows, "own", False)
        assert here.trained is not None
        assert there.trained is not None
        assert here.trained.parameters.equal(there.trained.parameters)

    def test_a_run_in_memory_is_what_it_is_now(self) -> None:
        run = Run(tiny(updates=2))
        for _ in run:
            assert (open_run(run).status["update"], open_run(run).rows) == (run.number, run.recorder.rows)
        assert open_run(run).name == "leader_follower in memory"

    def test_each_once_with_a_name_of_its_own(self, finished: Path, tmp_path: Path) -> None:
        again = shutil.copytree(finished, tmp_path / "finished")
        memory = [Run(tiny()), Run(tiny())]
        runs, notes = open_runs([finished, again, str(finished), *memory, memory[0], tmp_path, "pursuit", again / ".."])
        assert [run.name for run in runs] == [
            *(str(finished), str(again)),
            *("leader_follower in memory 3", "leader_follower in memory 4"),
        ]
        assert ["missing" in note or "is a preset" in note for note in notes] == [True, True, True]

    def test_what_is_no_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="missing"):
            open_run(tmp_path)
        with pytest.raises(ConfigError, match="expected the folder of a run"):
            open_run(3)  # type: ignore[arg-type]


def test_remarks_are_what_run_json_says(run: RunFiles) -> None:
    symptoms = [{"symptom": "loss_grows", "update": 3, "text": "it grows"}, {"symptom": "unknown"}]
    vars(run)["status"] = {
        "symptoms": symptoms,
        "toggles": {"fell_back": {"a": "b"}},
        "not_exact": ["x"],
        "reason": "y",
    }
    assert run.symptoms == ["Symptom at update 3: it grows."]
    assert run.fell_back == ["The toggle a fell back: b"]
    assert run.not_exact == ["Not bit for bit repeatable: x"]
    assert run.remarks == ["It ended because: y", *run.not_exact, *run.symptoms, *run.fell_back]
