"""A record of scores holds a row for each run, whatever was told on the way."""

from pathlib import Path

import pytest

from tests.tiny import trained
from uavlab.app import kept
from uavlab.app.scores import score
from uavlab.core.errors import ConfigError, FileError


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trained(folder)
    return folder


def test_each_run_is_told_and_recorded(finished: Path) -> None:
    lines: list[str] = []
    record = score([str(finished), str(finished)], 3, 1, True, "cpu", lines.append)
    expected = kept.evaluate(kept.load(finished), 3, 1, True)
    assert record["rows"] == 2 * [{**expected, "run": str(finished), "episodes": 3, "seed": 1, "action": "mean"}]
    assert [trained["status"] for trained in record["trained"]] == ["complete", "complete"]
    assert record["machine"]["threads"] >= 1
    assert len(lines) == 2 * (1 + len(expected))
    assert lines[0] == f"{finished}: policy of update <= 8, 3 episodes x 1 run(s)"
    path = expected["path"]
    assert f"path               {path['mean']:10.3f}   [{path['low']:.3f}, {path['high']:.3f}] px" in lines


def test_nothing_flies_before_all_are_read(finished: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for second, error in (("nobody", ConfigError), (str(tmp_path), FileError)):
        with pytest.raises(error):
            score([str(finished), second], 3, 0, False, None, lines.append)
    assert lines == []
