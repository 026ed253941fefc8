"""Rows of metrics reach both files, and a resumed run rewinds them to its checkpoint."""

import errno
import json
import os
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
        recorder.recover(3)
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

        board = EventAccumulator(str(tmp_path))
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
        before = path.read_bytes()
        assert not again.recover(4)  # it knows no digest of them yet
        again.saved_digest = again.digest()
        assert again.recover(4)
        assert path.read_bytes() == before  # loading changes no file
        again.rewind()
        assert again.rows == first.rows[:3]
        assert numbers(path) == [1, 2, 4]
        again.append(6, 0.0, {"q": 6.5})
        assert numbers(path) == [1, 2, 4, 6]
        assert {name.partition(".")[0] for name in os.listdir(tmp_path)} == {"metrics", "events"}


DAMAGED = [
    "half a row",
    "[1]",
    '{"q": 1}',
    "[" * 5000,
    "\x1b[2J",
    '{"update": 2}',
    '{"update": 2, "seconds": "x"}',
    "é",
]
DAMAGED += ['{"update": 2, "seconds": 1, "each": 3}', '{"update": 2, "seconds": 1, "each": {"q": [null]}}']


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_row_is_left_out_and_the_file_put_aside(tmp_path: Path, line: str) -> None:
    path, good = tmp_path / "metrics.jsonl", '{{"update": {}, "seconds": 0.5}}\n'
    path.write_text(f"{good.format(1)}{line}\n{good.format(3)}{good.format(4)}")
    before = path.read_bytes()
    recorder = Recorder(tmp_path)
    with pytest.raises(FileError, match=r"metrics\.jsonl:2: expected a row of metrics, got "):
        recorder.read()
    recorder.saved_rows = 3
    with pytest.warns(UserWarning, match=r"metrics\.jsonl:2: .*Going on without; the file will be put aside"):
        assert not recorder.recover(3)
    assert path.read_bytes() == before
    recorder.rewind()
    assert path.read_text() == good.format(1) + good.format(3)
    assert (tmp_path / "metrics.jsonl.damaged-1").read_bytes() == before
    assert [row["update"] for row in recorder.rows] == [1, 3]


def test_damage_behind_the_rows_of_a_checkpoint_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "seconds": 0.5}\nhalf\n')
    recorder = Recorder(tmp_path)
    recorder.saved_rows = 1
    recorder.recover(1)
    recorder.rewind()
    assert path.read_text() == '{"update": 1, "seconds": 0.5}\n'
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_file_that_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    recorder = Recorder(tmp_path)
    recorder.saved_rows = 1
    with pytest.warns(UserWarning, match="not a regular file"):
        recorder.recover(1)
    recorder.rewind()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert (tmp_path / "metrics.jsonl.damaged-1").is_fifo()


def test_rows_that_are_gone_are_counted_and_later_ones_do_not_take_their_place(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.saved_rows, recorder.saved_digest = 3, "of three rows"
    assert not recorder.recover(2)
    for update in (1, 6):
        recorder.append(update, 0.5, {"q": 2.0})
    assert not recorder.recover(2)
    assert [row["update"] for row in recorder.rows] == [1]


def test_a_disk_that_refuses_rows_is_told_and_one_that_refuses_curves_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path)
    recorder.append(1, 0.5, {"q": 2.0})
    recorder.close()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", refuse)
    recorder = Recorder(tmp_path)
    with pytest.warns(UserWarning, match=r"^TensorBoard: OSError: .*No space left on device; no more rows for it\."):
        recorder.append(2, 0.6, {"q": 2.0})
    recorder.append(3, 0.7, {"q": 2.0})
    assert numbers(tmp_path / "metrics.jsonl") == [1, 2, 3]
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(ResourceError, match=r"metrics\.jsonl: cannot be written \(Is a directory\); free some space\."):
        recorder.append(4, 0.8, {"q": 2.0})
