"""Pages and findings of runs have what was run, and nothing else; what is damaged leaves a note."""

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

import uavlab as ul
from tests.support.fixtures_config import sizes, tiny, train_tiny
from tests.support.sweeps import table
from tests.support.web_page import loaded_addresses
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.evaluation import COMMON
from uavlab.experiment import policy, scores
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab.experiment.run_state import digest
from uavlab.sweeps.table import SweepTable
from uavlab_lab import seeds, sweep_report
from uavlab_lab.comparison import differences, over_seeds
from uavlab_lab.explore import compare_runs, flight_of, verdict
from uavlab_lab.page import Page
from uavlab_lab.plots import flight
from uavlab_lab.plots.tables import Table
from uavlab_lab.report import write_report
from uavlab_lab.run_files import RunFiles, Scoring, open_run, open_runs
from uavlab_lab.seeds import Group, describe, group_runs, pool_rows
from uavlab_lab.sweep_report import write_sweep_report


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train_tiny(folder := tmp_path_factory.mktemp("runs") / "second", seed=3, runs=2, lr=0.002)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> RunFiles:
    """A run that a test may damage."""
    shutil.copytree(finished, tmp_path / "run")
    return RunFiles(tmp_path / "run", "run", read_config(tmp_path / "run"), Scoring(3))


def text(folders: list[Path], path: Path, missing: int = 0) -> str:
    """Return what a report writes besides plotly itself."""
    written, notes = write_report(folders, path, Scoring(3))
    assert (written, len(notes)) == (path, missing)
    page = path.read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    return page.partition("<body>")[2].partition("<script>")[0] + page.rpartition("<script>")[2]


# The page itself


def test_a_page_shows_text_runs_its_own_scripts_and_loads_nothing(tmp_path: Path) -> None:
    page = Page("A & B")
    page.add("p", "<b>bold\x1b</b>", "note")
    page.add_table(Table(["x"], [["<i>"]]), "All <1>")
    page.add_figure(go.Figure(go.Scatter(y=[1, 2], name="</script>")))
    html = page.html()
    assert "<p class='note'>&lt;b&gt;bold\\x1b&lt;/b&gt;</p>" in html
    assert "<details><summary>All &lt;1&gt;</summary>" in html
    [allowed] = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    assert len(scripts) == 2
    assert allowed.startswith("default-src 'none'; ")
    assert allowed.partition("script-src ")[2] == " ".join(f"'sha256-{each}'" for each in digests)
    assert loaded_addresses(html) == []
    page.write(tmp_path / "deep" / "page.html")
    with pytest.raises(ResourceError, match=r"page\.html: cannot be written .*; choose another page\."):
        page.write(tmp_path / "deep" / "page.html" / "page.html")


# Reports


def test_a_report_of_a_run(finished: Path, tmp_path: Path) -> None:
    page = text([finished], tmp_path / "r.html")
    result = scores.evaluate(policy.load(finished), 3, 0, False)["completion"]
    assert f">{result['mean']:.3f} [{result['low']:.3f}, {result['high']:.3f}]</td>" in page
    assert "Each seed of a run was scored on 3 episodes, sampled actions, episodes of seed 0." in page
    assert f"uavlab resume {finished}\nuavlab evaluate {finished} --episodes 3\nuavlab fly {finished}</pre>" in page
    assert ">formation_radius</td>" in page
    assert "Settings that differ" not in page
    assert page.count("class='figure'") == 3  # scores, what training logged, flight


def test_a_report_of_runs_that_differ_by_seed_and_setting(finished: Path, second: Path, tmp_path: Path) -> None:
    train_tiny(tmp_path / "path", seed=1)  # whose name is that of a metric
    page = text([finished, second, tmp_path / "path"], tmp_path / "r.html")
    alone = [policy.load(folder).parameters for folder in (finished, tmp_path / "path")]
    both = replace(train_tiny(runs=2).trained(), parameters=torch.cat(alone))
    pooled = scores.evaluate(both, 3, 0, False)["completion"]
    assert f">{pooled['mean']:.3f} [{pooled['low']:.3f}, {pooled['high']:.3f}]</td>" in page
    assert "finished and 1 more: the runs finished, path differ by their seed alone. Seeds 0, 1 are pooled" in page
    differ = page.partition("Settings that differ")[2].partition("</table>")[0]
    assert [row.partition("</td>")[0].rpartition(">")[2] for row in differ.split("<tr>")[2:]] == ["seed", "runs", "lr"]
    assert {"finished and 1 more", "second"} <= set(re.findall(r'"name":"([^"]*)"', page))


def test_equal_runs_and_an_exported_copy(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "finished")
    page = text([finished, tmp_path / "finished"], tmp_path / "r.html")
    assert "The same seed twice is no independent sample, so they are not pooled." in page
    assert "These runs have equal settings, machines and versions." in page
    assert f"<h2>{tmp_path}/finished</h2>" in page  # the names alone would be equal
    policy.export(policy.load(finished), tmp_path / "copy")
    page = text([tmp_path / "copy"], tmp_path / "c.html")
    assert "exported copy of a run: complete" in page
    assert "uavlab resume" not in page


def test_damaged_parts_are_notes(run: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(run.config.evaluation), "measure", lambda *words: 1 / 0)
    assert run.figures is None
    assert run.notes == ["No scores: ZeroDivisionError: division by zero"]
    monkeypatch.undo()
    shutil.rmtree(run.folder / "checkpoints")
    (run.folder / "metrics.jsonl").write_text("half\n")
    record: dict[str, Any] = {"status": "failed", "reason": "disk full", "not_exact": ["minutes"], "seconds": None}
    record |= {
        "toggles": {"fell_back": {"a": "b"}},
        "symptoms": [{"symptom": "entropy_low", "update": 1200, "text": "x"}],
    }
    (run.folder / "run.json").write_text(json.dumps(record))
    page = text([run.folder], tmp_path / "r.html", missing=2)
    notes = ["It ended because: disk full", "Not bit for bit repeatable: minutes", "Symptom at update 1,200: x."]
    for note in (
        *notes,
        "The toggle a fell back: b",
        "No metrics: ",
        "No policy: ",
        "There is no score and no metric.",
    ):
        assert f"<p class='note'>{note}" in page, note
    assert all(note in repr(verdict(run.folder)) for note in notes)
    for odd in ("[", '{"toggles": 3, "symptoms": {"a": 1}, "not_exact": "x", "seconds": "y", "update": 1.5}'):
        (run.folder / "run.json").write_text(odd)
        assert "by masac: unknown" in repr(verdict(run.folder))
        text([run.folder], tmp_path / "r.html", missing=2 + (odd == "["))


def test_runs_are_opened_once_under_names_of_their_own(finished: Path, tmp_path: Path) -> None:
    again = shutil.copytree(finished, tmp_path / "finished")
    memory = [Run(tiny()), Run(tiny())]
    runs, notes = open_runs([finished, again, str(finished), *memory, memory[0], tmp_path, "pursuit"])
    names = [str(finished), str(again), "leader_follower in memory 3", "leader_follower in memory 4"]
    assert ([each.name for each in runs], len(notes)) == (names, 2)
    trained = train_tiny(tmp_path / "own")
    here, there = open_run(trained), open_run(tmp_path / "own")
    assert (here.status, here.rows, here.name) == (there.status, there.rows, "own")
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        open_run(3)  # type: ignore[arg-type]


# Seeds that are pooled


def pretended(name: str, status: str = "complete", update: int = 8, **changes: Any) -> RunFiles:
    """Return a run of two logged rows and two episodes for each seed, whose numbers follow from its seeds."""
    files = RunFiles(Path(name), name, config := tiny(**changes))
    own = [float(seed) for seed in seeds.seeds_of(files)]
    names = [metric.name for metric in (*config.evaluation.metrics, *COMMON)]
    vars(files).update(
        status={"status": status, "update": update},
        rows=[{"update": at, "seconds": at + own[0], "loss": at + sum(own) / len(own)} for at in (1, 2)],
        figures=dict.fromkeys(names, torch.tensor(own)[:, None].expand(-1, 2)),
        trained=type("Trained", (), {"rt": type("Here", (), {"device": torch.device("cpu")})}),
    )
    return files


def names_of(groups: list[Group]) -> list[list[str]]:
    return [[each.name for each in group.runs] for group in groups]


def test_runs_that_differ_by_their_seed_alone_are_together() -> None:
    runs = [
        pretended("a"),
        pretended("b", lr=0.002),
        pretended("c", seed=2),
        pretended("again"),
        pretended("d", seed=1),
    ]
    assert names_of(group_runs(runs)) == [["a"], ["b"], ["c", "d"], ["again"]]
    early = [pretended("a"), pretended("b", "interrupted", 1, seed=1), pretended("c", "interrupted", 1, seed=2)]
    assert names_of(group_runs(early)) == [["a"], ["b", "c"]]
    overlap = [pretended("a", runs=2), pretended("b", seed=1, runs=2)]
    assert names_of(group_runs(overlap)) == [["a"], ["b"]]
    assert describe(group_runs(overlap))[0].startswith("a, b: these runs have equal settings and seeds in common.")


@pytest.mark.parametrize(
    ("changes", "mean", "reach"),
    [
        # means 0, 1, 5: t of two degrees of freedom 4.30265, standard error sqrt(14 / 2 / 3) = 1.527525
        ([{"seed": 0}, {"seed": 1}, {"seed": 5}], 2, 6.57241),
        # means 0, 1, 8, 9: t of three degrees of freedom 3.18245, standard error sqrt(65 / 3 / 4) = 2.327373
        ([{"seed": 0, "runs": 2}, {"seed": 8, "runs": 2}], 4.5, 7.40673),
    ],
)
def test_intervals_are_over_all_seeds(changes: list[dict[str, Any]], mean: float, reach: float) -> None:
    [group] = group_runs([pretended(f"run {n}", **each) for n, each in enumerate(changes)])
    assert group.scores is not None
    interval = [group.scores["return"][end] for end in ("mean", "low", "high")]
    assert interval == pytest.approx([mean, mean - reach, mean + reach], abs=1e-4)


def test_rows_are_pooled_where_they_were_logged_at_the_same_updates() -> None:
    logs: list[Any] = [
        [{"update": 5, "seconds": 2.0, "loss": 1.5, "each": {"loss": [1.0, 2.0]}}],
        [{"update": 5, "seconds": 4.0, "loss": 6.0, "each": {"loss": [4.0, 8.0]}}],
    ]
    assert pool_rows(logs) == [{"update": 5, "seconds": 3, "loss": 3.75, "each": {"loss": [1, 2, 4, 8]}}]
    assert pool_rows([logs[0], [{"update": 6, "seconds": 2.0, "loss": 1.0}]]) is None


def test_differences_and_bounds() -> None:
    differ = differences([Group((pretended("a"), pretended("b", seed=1))), Group((pretended("c", lr=0.5),))])
    assert differ.rows == [["seed", "0, 1", "0"], ["lr", "0.001", "0.5"]]
    env = tiny().env  # Student's factor of two values is 12.706, times the half distance
    assert over_seeds([0.25, 0.75], "completion", env) == pytest.approx((0.5, 0.0, 1.0))
    assert over_seeds([9.0, 11.0], "flight_time", env) == pytest.approx((10.0, -2.706, 22.706), abs=1e-3)


# Findings


def log(folder: Path, *scored: tuple[float, float]) -> None:
    """Write the metrics of a run: completion and strict formation of each score, and flights of 1000 steps."""
    keys = ("eval/completion", "eval/formation_strict", "eval/flight_time")
    rows = [
        {"update": 10 * n, "seconds": 1.0 * n, **dict(zip(keys, (*two, 1000.0), strict=True))}
        for n, two in enumerate(scored, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_findings_of_runs(finished: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_tiny(tmp_path / "b", updates=8, seed=1)
    shutil.copytree(finished, tmp_path / "a")
    log(tmp_path / "a", (0.5, 0.25), (1.0, 0.5))
    log(tmp_path / "b", (1.0, 0.75), (0.0, 0.5))
    monkeypatch.setattr(scores, "measure", lambda *words: 1 / 0)  # nothing is scored
    found = compare_runs(tmp_path / "a", tmp_path / "b", second, tmp_path / "none")
    table, figure = found.tables["scores"], found.figure
    # scores, 3 x completion + strict formation - 0.5, are 1.25 and 3.0 of a, 3.25 and 0.0 of b: the last are
    # 3.0 and 0.0; Student's factor of two values is 12.706, times the half distance
    assert table.rows[0][:5] == ["a and 1 more", "0, 1", "complete", "8", "1.500 [-17.559, 20.559]"]
    assert table.rows[0][5:] == ["0.500 [0.000, 1.000]", "0.500", "1000.000"]
    assert [row[0] for row in found.tables["settings that differ"].rows] == ["seed", "runs", "lr"]
    assert isinstance(figure, go.Figure)
    [line] = [trace for trace in figure.data if trace.name == "a and 1 more" and trace.visible]
    assert (list(line.x), list(line.y)) == ([10, 20], [0.75, 0.5])
    assert [sentence.partition(":")[0] for sentence in found.sentences] == ["a and 1 more", "Left out"]
    assert "seed | 0, 1 | " in repr(found)
    assert found._repr_html_().count("<table") == 2
    for nothing in ((), (tmp_path / "none",)):
        with pytest.raises(ConfigError, match=r"^compare_runs: "):
            compare_runs(*nothing)


def test_a_verdict_has_the_numbers_of_the_log(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    log(tmp_path / "run", (0.5, 0.5), (0.0, 0.0))
    found = verdict(tmp_path / "run")
    assert found.sentences[0].startswith("run trains leader_follower by masac: complete, update 8 of 8. It makes ")
    formula = "3 completion + strict formation - 0.0005 flight time"
    assert found.sentences[1] == (
        f"Its last score in training is -0.500, the highest of 2 is 1.500 ({formula}; higher is better)."
    )
    assert "No symptom of training that fails" in found.sentences[2]
    rows = [["completion", "0.000"], ["strict formation", "0.000"], ["flight time (steps)", "1000.000"]]
    assert found.tables["figures of the run"].rows == rows
    new = verdict(Run(tiny()))
    assert new.sentences[1] == "It was not scored yet."
    assert "<table" not in new._repr_html_()
    with pytest.raises(FileError):
        verdict(tmp_path)


def test_the_newest_policy_flies_and_nothing_changes(finished: Path, tmp_path: Path) -> None:
    def drawn(trained: policy.TrainedPolicy, seed: int) -> str:
        return flight.animate(trained.config.evaluation, [*policy.fly(trained, seed)]).to_json()

    run = Run(tiny(updates=4, evaluate_every=2))
    for _ in run:
        before = digest(run)
        assert flight_of(run, 3).to_json() == drawn(run.trained("last"), 3)
        verdict(run)
        assert digest(run) == before
    assert run.digest == train_tiny(updates=4, evaluate_every=2).digest
    assert flight_of(finished).to_json() == drawn(policy.load(finished, which="last"), 0)
    policy.export(policy.load(finished), tmp_path / "copy")
    assert flight_of(tmp_path / "copy").to_json() == drawn(policy.load(finished), 0)
    with pytest.raises(ConfigError, match="has no team that flies"):
        flight_of(ul.start("telemetry", settings=sizes("telemetry")))
    with pytest.raises(ConfigError, match="expected a whole number from 0 up"):
        flight_of(finished, -1)


# The page of a sweep


def page_of(own: SweepTable) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a page, and its figures."""
    page = write_sweep_report(own).read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    drawn = re.search(r"const figures = (\{.*\});\n", page)
    figures = json.loads(drawn[1]) if drawn else {}
    return page.partition("<body>")[2].partition("<script>")[0], list(figures.values())


def test_a_sweep_of_a_grid_on_two_presets(tmp_path: Path) -> None:
    two: Any = {("leader_follower", 0.1): [0.2, 0.4, 0.6], ("leader_follower", 0.2): [0.1, None]}
    text, (means, profiles) = page_of(table(tmp_path, {**two, ("pursuit", 0.1): [5.0, 9.0]}, grid={"lr": [0.1, 0.2]}))
    assert "6 of 7 trials have a score" in text
    assert "&lt;b&gt;nan&lt;/b&gt;" in text
    dots = means["data"][0]  # of 0.2, 0.6, 1, 0, 1 and of 0: the best first
    assert (dots["x"], dots["y"]) == ([0.56, 0.0], ["lr=0.1", "lr=0.2"])
    shares = next(trace["y"] for trace in profiles["data"] if trace.get("name") == "lr=0.1")
    assert (shares[0], shares[-1]) == (0.8, 0.0)


def test_a_search_is_drawn_in_its_order_and_nothing_without_a_score(tmp_path: Path) -> None:
    search = {"ranges": {"lr": {"low": 0.1, "high": 1.0}}, "trials": 3}
    scores: Any = {("pursuit", 0.3): [1.0, 3.0], ("pursuit", 0.1): [4.0, 6.0], ("pursuit", 0.2): [None, 9.0]}
    _, (_, drawn, _) = page_of(table(tmp_path, scores, search=search))
    proposals, best = drawn["data"]
    assert (proposals["x"], proposals["y"], best["y"]) == ([1, 2], [2.0, 5.0], [2.0, 5.0])
    text, figures = page_of(table(tmp_path, {("pursuit", 0.1): [None]}))
    assert ("0 of 1 trials have a score" in text, figures) == (True, [])
    own = table(tmp_path, {("pursuit", 0.1): [1.0]})
    for name, env in (("mine.py:make", " --env mine.py:make"), ("pursuit", "")):
        command = sweep_report._commands(own, {"preset": name, "trial": "t"})[0]
        assert command == f"uavlab{env} evaluate {tmp_path}/trials/t"
