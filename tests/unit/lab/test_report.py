"""A report has what was run and nothing else, of one or several runs, finished or not."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import train_tiny
from tests.support.web_page import loaded_addresses
from uavlab.experiment import policy, scores
from uavlab_lab import report
from uavlab_lab.report import write_report
from uavlab_lab.run_files import Scoring


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train_tiny(folder := tmp_path_factory.mktemp("runs") / "second", seed=3, runs=2, lr=0.002)
    return folder


def text(folders: list[Path], path: Path) -> str:
    """Return what a report writes besides plotly itself."""
    assert write_report(folders, path, Scoring(3)) == (path, [])
    page = path.read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    return page.partition("<body>")[2].partition("<script>")[0] + page.rpartition("<script>")[2]


def test_a_run(finished: Path, tmp_path: Path) -> None:
    page = text([finished], tmp_path / "r.html")
    result = scores.evaluate(policy.load(finished), 3, 0, False)["completion"]
    assert f">{result['mean']:.3f} [{result['low']:.3f}, {result['high']:.3f}]</td>" in page
    assert "<h1>Report of finished</h1>" in page
    assert "8 of 8" in page
    assert "Each seed of a run was scored on 3 episodes, sampled actions, episodes of seed 0." in page
    assert f"uavlab resume {finished}\nuavlab evaluate {finished} --episodes 3\nuavlab fly {finished}</pre>" in page
    assert ">formation_radius</td>" in page
    assert "A flight of seed 0" in page
    assert "Settings that differ" not in page
    assert page.count("class='figure'") == 3  # scores, what training logged, flight


def test_two_runs_and_what_differs(finished: Path, second: Path, tmp_path: Path) -> None:
    page = text([finished, second], tmp_path / "r.html")
    differ = page.partition("Settings that differ")[2].partition("</table>")[0]
    rows = [row.partition("</td>")[0].rpartition(">")[2] for row in differ.split("<tr>")[2:]]
    assert rows == ["seed", "runs", "lr"]
    assert "<h1>Report of finished, second</h1>" in page
    assert ">3, 4</td>" in page


def test_names_of_runs_are_shown_as_they_are(finished: Path, second: Path, tmp_path: Path) -> None:
    """A name with underscores, and one that is also the raw name of a metric, whose label figures would show."""
    folders = [shutil.copytree(each, tmp_path / name) for each, name in ((finished, "my_run"), (second, "path"))]
    page = text(folders, tmp_path / "r.html")
    lines = re.findall(r'"name":"([^"]*)"', page)
    assert {"my_run", "path"} <= set(lines)
    assert "my run" not in lines


def test_equal_runs_have_no_differences(finished: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / name / "run")
    page = text([tmp_path / name / "run" for name in ("a", "b")], tmp_path / "r.html")
    assert "These runs have equal settings, machines and versions." in page
    assert f"<h2>{tmp_path}/a/run</h2>" in page  # the names alone would be equal


def test_runs_of_other_seeds_are_one_column(finished: Path, second: Path, tmp_path: Path) -> None:
    train_tiny(tmp_path / "other", seed=1)
    page = text([finished, second, tmp_path / "other"], tmp_path / "r.html")
    group, both = "finished and 1 more", train_tiny(seed=0, runs=2).trained()
    alone = [policy.load(folder).parameters for folder in (finished, tmp_path / "other")]
    pooled = scores.evaluate(replace(both, parameters=torch.cat(alone)), 3, 0, False)["completion"]
    assert f">{pooled['mean']:.3f} [{pooled['low']:.3f}, {pooled['high']:.3f}]</td>" in page
    assert f"{group}: the runs finished, other differ by their seed alone. Seeds 0, 1 are pooled like seeds of" in page
    heads = [part.partition("</tr>")[0] for part in page.split("<tr>") if "</th>" in part]
    assert [head.count("</th>") for head in heads[:3]] == [8, 3, 3]  # overview, scores, settings that differ
    assert all(f">{group}</th>" in head and ">second</th>" in head for head in heads[1:3])
    differ = page.partition("Settings that differ")[2].partition("</table>")[0]
    assert ">0, 1</td>" in differ
    overview = page.partition("<table")[2].partition("</table>")[0]
    assert all(f">{name}</td>" in overview and f"<h2>{name}</h2>" in page for name in ("finished", "second", "other"))


def test_the_same_seed_twice_is_not_pooled(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "again")
    page = text([finished, tmp_path / "again"], tmp_path / "r.html")
    assert "have seeds in common. The same seed twice is no independent sample, so they are not pooled." in page
    assert "and 1 more" not in page


def test_an_exported_copy_is_not_resumed(finished: Path, tmp_path: Path) -> None:
    policy.export(policy.load(finished), tmp_path / "copy")
    page = text([tmp_path / "copy"], tmp_path / "r.html")
    assert "exported copy of a run: complete" in page
    assert "uavlab resume" not in page


def test_a_run_that_has_begun(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl"))
    record = {
        "status": "failed",
        "reason": "out of memory",
        "not_exact": ["minutes"],
        "toggles": {"fell_back": {"a": "b"}},
        "symptoms": [{"symptom": "entropy_low", "update": 1200, "text": "<b>; try x"}, {"symptom": "other"}],
    }
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    _, [missing] = write_report([tmp_path / "run"], tmp_path / "r.html", Scoring(3))
    assert missing.startswith("run: No policy: ")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for note in ("There is no score and no metric.", "It ended because: out of memory", "Not bit for bit repeatable: "):
        assert f"<p class='note'>{note}" in page
    assert "The toggle a fell back: b" in page
    assert page.count("Symptom at") == 1
    assert "Symptom at update 1,200: &lt;b&gt;; try x." in page
    assert ">unknown</td>" in page
    assert "script-src 'none'" in page  # no figure, no script


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (119, "119 s"), (120, "2.0 min"), (7200, "2.0 h"), (float("nan"), "nan s"), (None, "unknown")],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert report._duration(seconds) == expected


class TestCommand:
    def test_the_page_lies_in_the_run_or_above_several(self, finished: Path, second: Path) -> None:
        ended = uavlab("report", finished, "--episodes", "3", "--json")
        assert (ended.code, ended.err) == (0, "")
        assert ended.json == {"page": f"{finished}/report.html", "runs": [str(finished)], "missing": []}
        ended = uavlab("report", finished, second, finished, "--episodes", "3")
        assert f"2 run(s); open {finished.parent}/report.html" in ended.out

    def test_what_is_missing_is_a_warning(self, finished: Path, tmp_path: Path) -> None:
        shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
        ended = uavlab("report", tmp_path / "run")
        assert ended.code == 0
        assert ended.err.startswith("warning: run: No policy: ")

    def test_no_run_and_damaged_settings_are_refused(self, finished: Path, tmp_path: Path) -> None:
        shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
        (tmp_path / "run" / "config.json").write_text("{")
        before = sorted(tmp_path.rglob("*"))
        for folder in (tmp_path, tmp_path / "run"):
            ended = uavlab("report", folder)
            assert (ended.code, ended.out) == (3, "")
            assert ended.err.startswith("FileError: ")
        assert sorted(tmp_path.rglob("*")) == before
