"""Rows of metrics reach both files, and a resumed run rewinds them to its checkpoint."""

import json
import os
import shutil
from pathlib import Path

import pytest

from uavlab.core.errors import FileError, ResourceError
from uavlab.storage.metrics_log import Recorder


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["update"] for line in path.read_text().splitlines()]


class TestRecorder:
    def test_without_a_folder_rows_stay_in_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        recorder = Recorder(None)
        recorder.append(3, 1.23456, {"q": 2.0})
        recorder.rewind()
        assert recorder.rows == [{"update": 3, "seconds": 1.235, "q": 2.0}]
        assert os.listdir(tmp_path) == []

    def test_rows_go_to_both_files(self, tmp_path: Path) -> None:
        recorder = Recorder(tmp_path)
        recorder.append(1, 0.5, {"q": 2.0})
        recorder.append(2, 0.75, {"eval/completion": 1.0})
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == recorder.rows
        assert recorder.rows[1] == {"update": 2, "seconds": 0.75, "eval/completion": 1.0}
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(str(tmp_path / "tensorboard"))
        board.Reload()
        assert [(e.step, e.value) for e in board.Scalars("eval/completion")] == [(2, 1.0)]

    def test_rewind_drops_later_rows_and_a_torn_last_line(self, tmp_path: Path) -> None:
        first, path = Recorder(tmp_path), tmp_path / "metrics.jsonl"
        for number in (1, 2, 4, 6):
            first.append(number, 0.0, {"q": float(number)})
        with path.open("a") as file:
            file.write('{"update": 8, "sec')  # the machine lost power here
        again = Recorder(tmp_path)
        again.saved_rows = 3
        assert not again.rewind()  # it knows no digest of them yet
        again.saved_digest = again.digest()
        assert again.rewind()
        assert again.rows == first.rows[:3]
        assert numbers(path) == [1, 2, 4]
        again.append(6, 0.0, {"q": 6.5})
        assert numbers(path) == [1, 2, 4, 6]
        assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "tensorboard"]


@pytest.mark.parametrize("line", ["half a row", "[1]", '{"q": 1}', "[" * 5000])
def test_a_damaged_row_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"update": 1, "seconds": 0.5}}\n{line}\n{{"update": 3')
    before = path.read_bytes()
    recorder = Recorder(tmp_path)
    recorder.saved_rows = 2
    with pytest.raises(FileError, match=r"metrics\.jsonl:2: expected a row of metrics, got .*; remove that line"):
        recorder.rewind()
    assert path.read_bytes() == before
    recorder.saved_rows = 1  # what lies behind the rows of a checkpoint is dropped, whatever it is
    recorder.rewind()
    assert path.read_text() == '{"update": 1, "seconds": 0.5}\n'


def test_rows_that_are_gone_are_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.saved_rows, recorder.saved_digest = 3, "of three rows"
    assert not recorder.rewind()
    recorder.append(1, 0.5, {"q": 2.0})
    assert not recorder.rewind()


def test_a_disk_that_refuses_rows_is_told_and_one_that_refuses_curves_is_let_go(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.append(1, 0.5, {"q": 2.0})
    recorder.close()
    shutil.rmtree(tmp_path / "tensorboard")
    (tmp_path / "tensorboard").write_text("")
    with pytest.warns(UserWarning, match=r"tensorboard: .*; no more curves there\."):
        recorder.append(2, 0.6, {"q": 2.0})
    recorder.append(3, 0.7, {"q": 2.0})
    assert numbers(tmp_path / "metrics.jsonl") == [1, 2, 3]
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ResourceError, match=r"metrics\.jsonl: cannot be written \(Is a directory\); free some space\."):
        recorder.append(4, 0.8, {"q": 2.0})
