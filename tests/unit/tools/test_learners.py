"""The page about learners says what its record holds, and exists where the record does."""

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tools import learners
from tools.tables import records
from uavlab.experiment.names import PRESETS, Preset
from uavlab_lab.headless import pictures
from uavlab_lab.suites.learners import MEASURED, learners_suite

SMALL = {"minutes": None, "updates": 4, "evaluate_every": 2, "evaluate_episodes": 2, "horizon": 4, "rollout_steps": 4}
MACHINE = {"cpu": "Here", "cpu_id": "model 1", "load": 0.5, "dirty": False, "torch": "2.13.0"}
Record = dict[str, Any]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Make a tiny record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "spread_quick", Preset("spread", "Small.", {"worlds": 2, "hidden": 8}))
        folder = tmp_path_factory.mktemp("study")
        options: Record = {"seeds": 2, "pairs": ["spread:mappo", "spread:ippo"], "folder": folder, "settings": SMALL}
        origin = {"command": f"{learners.MAKE} --json", "machine": MACHINE}
        return {**origin, **learners_suite(3, "cpu", **options, say=lambda line: None)}


@pytest.fixture
def stored(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store the record in a folder like that of the repository, and replace the browser."""
    for name in ("docs", "figures/records"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(records, "RECORDS", tmp_path / "figures" / "records")
    (records.RECORDS / "bench_learners.json").write_text(json.dumps(record), encoding="utf-8")

    def draw(figures: list[go.Figure], width: int) -> list[str]:
        return [f'<svg width="{width}" height="{figure.layout.height}"/>' for figure in figures]

    monkeypatch.setattr(pictures, "draw", draw)
    return tmp_path


def test_page_and_picture_exist_where_the_record_does() -> None:
    there = (records.RECORDS / f"{learners.NAME}.json").exists()
    files = [learners.ROOT / name for name in (learners.PAGE, learners.PICTURE)]
    assert [file.exists() for file in files] == [there, there]
    if there:
        assert files[0].read_text(encoding="utf-8") == learners.page(records.read(learners.NAME))


def test_the_commands_are_listed() -> None:
    text = (learners.ROOT / "tools" / "records.sh").read_text(encoding="utf-8")
    assert all(f"  {command}\n" in text for command in (learners.MAKE, learners.DRAW))


def test_page_and_picture_are_written(stored: Path, record: Record) -> None:
    assert learners.main(stored) == 0
    text = (stored / "docs" / "learners.md").read_text(encoding="utf-8")
    assert text == learners.page(record)
    assert (stored / "figures" / "learners.svg").read_text(encoding="utf-8").startswith('<svg width="700" height="')
    assert "](../figures/learners.svg)" in text
    assert "](../figures/records/bench_learners.json)" in text


def test_without_a_record_nothing_is_written(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (records.RECORDS / "bench_learners.json").unlink()
    assert learners.main(stored) == 1
    assert not (stored / "docs" / "learners.md").exists()
    assert f"`{learners.MAKE}` makes it" in capsys.readouterr().err


def test_the_page_says_what_the_record_holds(record: Record) -> None:
    first, second = record["rows"]
    row = {**first, "share": {"mean": 0.5, "low": 0.25, "high": 1.0}}  # of few episodes there may be none
    text, best = learners.page({**record, "rows": [row, {**second, "share": None}]}), row["best"]
    line = next(line for line in text.splitlines() if line.startswith("| spread | mappo | 4 | "))
    assert f" | {best['mean']:.3f} [{best['low']:.3f}, {best['high']:.3f}] | " in line
    assert line.endswith(" | 0.50 [0.25, 1.00] |")
    assert next(line for line in text.splitlines() if line.startswith("| spread | ippo | ")).endswith(" | - |")
    assert f" | assignment: {row['plans']['assignment']['mean']:.3f} [" in line
    assert "2 seeds side by side in one process, which share 10 minutes" in text
    assert "spread: covered landmarks - 0.01 collisions." in text
    assert f"`{learners.DRAW}`, from [their record]" in text
    assert f": `{learners.MAKE.partition(' --out')[0]}`. Here, model 1, load 0.5 before, torch 2.13.0." in text
    assert f"\n{row['trained']['command']}\n" in text
    assert learners.page({**record, "minutes": 7.5}) != text


def test_a_run_that_failed_has_dashes_and_a_sentence(record: Record) -> None:
    first, second = record["rows"]
    failed = {**first, **dict.fromkeys(MEASURED), "share": None, "failed": "DivergedError: no.", "validation": []}
    text = learners.page({**record, "rows": [failed, second]})
    assert "| spread | mappo | - | - | - | - | " in text
    assert "mappo on spread has no figures: DivergedError: no." in text


def test_the_picture_names_time_and_seeds(record: Record) -> None:
    figure = learners.picture(record)
    assert figure.layout.title.text == "Scores over 10 minutes of training, which the 2 seeds of a pair share"
    assert learners.picture({**record, "seeds": 1}).layout.title.text == "Scores over 10 minutes of training"
    assert "Validation scores" in figure.layout.title.subtitle.text
