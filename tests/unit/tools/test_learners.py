"""The page about learners says what its record holds, and exists where the record does."""

from pathlib import Path

import pytest

from tools import learners
from tools.tables import records
from uavlab_lab.headless import pictures

RECORD = records.read(learners.NAME)


def test_the_page_is_the_record_and_its_commands_are_listed() -> None:
    assert (records.ROOT / learners.PAGE).read_text(encoding="utf-8") == learners.page(RECORD)
    assert (records.ROOT / learners.PICTURE).exists()
    text = (records.ROOT / "tools" / "records.sh").read_text(encoding="utf-8")
    assert all(f"  {command}\n" in text for command in (learners.MAKE, learners.DRAW))


def test_page_and_picture_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docs", "figures"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(pictures, "draw", lambda figures, width: [f'<svg width="{width}"/>'])
    assert learners.main(tmp_path) == 0
    assert (tmp_path / learners.PAGE).read_text(encoding="utf-8") == learners.page(RECORD)
    assert (tmp_path / learners.PICTURE).read_text(encoding="utf-8") == '<svg width="700"/>'
    title = learners.picture(RECORD).layout.title.text
    assert title == "Scores over 10 minutes of training, which the 5 seeds of a pair share"


def test_a_run_that_failed_has_dashes_and_a_sentence() -> None:
    row, other = RECORD["rows"][:2]
    failed = {**row, **dict.fromkeys(("updates", "update_ms", "best", "last", "share")), "failed": "DivergedError: no."}
    text = learners.page({**RECORD, "rows": [failed, {**other, "share": {"mean": 0.5, "low": 0.25, "high": 1.0}}]})
    assert f"| {row['environment']} | {row['learner']} | - | - | - | - | " in text
    assert " | 0.50 [0.25, 1.00] |" in text
    assert f"{row['learner']} on {row['environment']} has no figures: DivergedError: no." in text
