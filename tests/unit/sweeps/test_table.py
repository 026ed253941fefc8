"""The table has a row for each trial, figures of those that have a score, and the same content in each file."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeps import small
from uavlab.core.errors import ConfigError
from uavlab.core.statistics import MEAN, compare, summarize
from uavlab.sweeps.table import ALL, PLAIN, SweepTable, flat_row, settings_text

SCORES = {("leader_follower", 0.1): [0.0, 1.0, 0.5], ("pursuit", 0.1): [10.0, 20.0], ("pursuit", 0.2): [30.0]}


def row(number: int, preset: str, lr: Any, seed: int, score: float | None) -> dict[str, Any]:
    own = {"trial": f"{preset}-{lr}-{seed}", "preset": preset, "settings": {"lr": lr}, "seed": seed, "reason": ""}
    ended = {"status": "complete", "score": score, "figures": {"return": score, "crash": None}, "digest": f"d{number}"}
    failed = {"status": "diverged", "reason": "nan; see the log"}
    return {"number": number, **own, **(failed if score is None else ended)}


@pytest.fixture
def table(tmp_path: Path) -> SweepTable:
    rows = [(*key, seed, score) for key, own in SCORES.items() for seed, score in enumerate(own)]
    rows.append(("leader_follower", 0.2, 0, None))
    sweep = small(presets=["leader_follower", "pursuit"], settings={}, grid={"lr": [0.1, 0.2]})
    return SweepTable(tmp_path, sweep, tuple(row(number, *each) for number, each in enumerate(rows)))


def test_figures_are_those_of_the_seeds(table: SweepTable) -> None:
    own = {(each.preset, each.settings): each for each in table.summaries}
    one = own["leader_follower", "lr=0.1"]
    assert (one.strata, one.scored, one.trials) == (((0.0, 1.0, 0.5),), 3, 3)
    assert one.mean == summarize([[0.0, 1.0, 0.5]])
    none = own["leader_follower", "lr=0.2"]
    assert (none.strata, none.scored, none.trials, none.mean) == ((), 0, 1, None)
    both = own[ALL, "lr=0.1"]
    assert both.strata == ((0.0, 1.0, 0.5), (0.0, 0.5))  # 10 to 30 becomes 0 to 1
    assert both.mean == summarize(both.strata)
    assert own[ALL, "lr=0.2"].strata == ((1.0,),)
    assert table.scale == {"leader_follower": (0.0, 1.0), "pursuit": (10.0, 30.0)}
    assert not table.complete
    assert table.digests == {each["trial"]: each["digest"] for each in table.rows[:-1]}
    assert [folder.name for folder in table.folders] == list(table.digests)


def test_a_scale_of_the_sweep_counts(table: SweepTable) -> None:
    sweep = small(**{**table.sweep.stored(), "scale": {"pursuit": [0, 100]}})
    other = SweepTable(table.folder, sweep, table.rows)
    assert other.summary("lr=0.2").strata == ((0.3,),)
    assert other.scale["leader_follower"] == (0.0, 1.0)


def test_two_settings_are_compared(table: SweepTable) -> None:
    assert table.compare("lr=0.2", "lr=0.1", "pursuit") == compare([[30.0]], [[10.0, 20.0]])
    assert table.compare("lr=0.2", "lr=0.1", "pursuit")[0] == 15.0
    assert table.compare("lr=0.2", "lr=0.1") == compare([[1.0]], [[0.0, 1.0, 0.5], [0.0, 0.5]])
    with pytest.raises(ConfigError, match=r"unknown setting 'lr=1' \(did you mean 'lr=0\.1'\?\)"):
        table.compare("lr=1", "lr=0.1")
    with pytest.raises(ConfigError, match=r"'lr=0\.2' has no score"):
        table.compare("lr=0.1", "lr=0.2", "leader_follower")


def test_it_shows_itself(table: SweepTable) -> None:
    text = repr(table)
    assert "pursuit                      lr=0.1       2/2  15.000 [-48.531, 78.531]" in text  # 5 times t, 12.706
    assert "fewer than ten seeds of a preset have their plain mean with Student's 95 % interval" in text
    assert "leader_follower-0.2-0: diverged, nan; see the log" in text
    assert "1 of 7 trials have no score and are left out." in text
    assert "0 and 1 are the lowest and the highest in this table" in text
    page = table._repr_html_()
    assert "6 of 7" in page
    assert "15.000 [-48.531, 78.531]" in page
    assert MEAN in page
    (one, *_) = table.record()["summaries"]
    assert (one["method"], one["mean"]) == (MEAN, 0.5)


def test_each_file_has_the_same_rows(table: SweepTable) -> None:
    table.write()
    record = json.loads((table.folder / "table.json").read_text())
    assert record == json.loads(json.dumps(table.record()))
    assert record["rows"] == list(table.rows)
    with (table.folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [each["score"] for each in rows] == ["0.0", "1.0", "0.5", "10.0", "20.0", "30.0", ""]
    assert [each["set/lr"] for each in rows] == ["0.1"] * 5 + ["0.2"] * 2
    assert [each["eval/return"] for each in rows][-2:] == ["30.0", ""]
    assert (rows[0]["digest"], rows[-1]["reason"]) == ("d0", "nan; see the log")
    table.write()  # over the older ones


def test_a_pruned_trial_counts_with_its_score_so_far(table: SweepTable) -> None:
    rows = [{**each, "status": "pruned"} if each["trial"] == "pursuit-0.1-1" else each for each in table.rows[:-1]]
    own = SweepTable(table.folder, table.sweep, tuple(rows))
    assert (own.complete, own.failed, len(own.folders), len(own.digests)) == (True, [], 6, 5)
    assert own.summary("lr=0.1", "pursuit") == table.summary("lr=0.1", "pursuit")
    assert "1 of 6 trials were pruned, and count with the score that they had then." in repr(own)


@pytest.mark.parametrize(("value", "cell"), [(None, "null"), (True, "true"), ("a", "a"), ([1, 2], "[1, 2]")])
def test_a_cell_of_a_setting_is_what_a_file_of_a_sweep_would_hold(value: Any, cell: str) -> None:
    assert flat_row(row(0, "p", value, 0, 1.0))["set/lr"] == cell


def test_settings_are_one_text() -> None:
    several = {"lr": 1e-3, "toggles": "eager", "hidden": 8, "memory": None, "on": True, "sizes": [1, 2]}
    assert settings_text({"settings": several}) == (
        "lr=0.001, toggles=eager, hidden=8, memory=null, on=true, sizes=[1, 2]"
    )
    assert settings_text({"settings": {}}) == PLAIN
