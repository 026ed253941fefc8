"""Runs are pooled as in reports and compared by their logs; what cannot be read is a note."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.support.fixtures_config import tiny, train_tiny
from uavlab.core.errors import ConfigError
from uavlab.experiment import scores
from uavlab.experiment.run import Run
from uavlab_lab.comparison import scores_while_training
from uavlab_lab.explore import runs as module
from uavlab_lab.explore.runs import compare_runs

KEYS = ("eval/completion", "eval/formation_strict", "eval/flight_time")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs of two updates: two that differ by their seed, and below a folder one of another rate."""
    root = tmp_path_factory.mktemp("root")
    for name, changes in {"a": {"seed": 0}, "b": {"seed": 1}, "sweep/c": {"lr": 0.01}}.items():
        train_tiny(root / name, updates=2, **changes)
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """The same with logs of two scores each, a folder with damaged settings, one of a foreign preset, and no runs."""
    shutil.copytree(trained, tmp_path / "runs")
    log(tmp_path / "runs" / "a", (0.5, 0.25), (1.0, 0.5))
    log(tmp_path / "runs" / "b", (1.0, 0.75), (0.0, 0.5))
    log(tmp_path / "runs" / "sweep" / "c", (0.0, 1.0), (0.0, 1.0))
    for name, text in {"damaged": "[", "foreign": '{"preset": "elsewhere", "values": {}}'}.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.json").write_text(text)
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


def log(folder: Path, *scored: tuple[float, float]) -> None:
    """Write the metrics of a run: completion and strict formation of each score, and flights of 1000 steps."""
    rows = [
        {"update": 10 * n, "seconds": float(n), **dict(zip(KEYS, (*two, 1000.0), strict=True))}
        for n, two in enumerate(scored, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


class TestComparison:
    def test_seeds_are_pooled_and_scores_are_those_of_the_log(self, root: Path) -> None:
        table = compare_runs(root / "a", root / "b", root / "sweep" / "c").scores
        heads = ["run", "seeds", "status", "updates", "last score in training"]
        assert table.heads == [*heads, "last completion", "last strict formation", "last flight time"]
        pooled, alone = table.rows
        # scores, 3 x completion + strict formation - 0.5, are 1.25 and 3.0 of a, 3.25 and 0.0 of b: the last are
        # 3.0 and 0.0; Student's factor of two values is 12.706, times the half distance
        assert pooled[:5] == ["a and 1 more", "0, 1", "complete", "2", "1.500 [-17.559, 20.559]"]
        assert pooled[5:] == ["0.500 [0.000, 1.000]", "0.500", "1000.000"]
        assert alone[:5] == ["c", "0", "complete", "2", "0.500"]

    def test_differences(self, root: Path) -> None:
        differ = compare_runs(root / "a", root / "b", root / "sweep" / "c").differences
        assert differ.heads == ["setting", "a and 1 more", "c"]
        assert differ.rows == [["seed", "0, 1", "0"], ["lr", "0.001", "0.01"]]
        assert compare_runs(root / "a").differences.rows == []

    def test_the_figure_is_a_plain_one_with_a_line_for_each_group(self, root: Path) -> None:
        comparison = compare_runs(root / "a", root / "b", root / "sweep" / "c")
        assert type(comparison.figure) is go.Figure
        lines = [trace for trace in comparison.figure.data if trace.name and trace.visible]
        assert [(line.name, list(line.x), list(line.y)) for line in lines] == [
            ("a and 1 more", [10, 20], [0.75, 0.5]),
            ("c", [10, 20], [0.0, 0.0]),
        ]

    def test_notes_say_what_is_pooled_and_what_is_left_out(self, root: Path) -> None:
        (root / "sweep" / "c" / "metrics.jsonl").write_text("half\n")
        comparison = compare_runs(root / "a", root / "b", root / "damaged", root / "foreign", root / "sweep" / "c")
        pooled, unread, damaged, foreign = comparison.notes
        assert pooled.startswith("a and 1 more: the runs a, b differ by their seed alone. Seeds 0, 1 are pooled")
        assert unread.startswith("c: No metrics: ")
        assert damaged.startswith(f"Left out: {root}/damaged/config.json: damaged")
        assert "elsewhere" in foreign
        assert [row[0] for row in comparison.scores.rows] == ["a and 1 more", "c"]
        assert comparison.scores.rows[1][4:5] == ["-"]

    def test_nothing_is_scored_and_no_file_is_written(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scores, "measure", lambda *words: 1 / 0)
        before = contents(root)
        comparison = compare_runs(root / "a", root / "b")
        assert "a and 1 more" in repr(comparison)
        assert "No scores" not in comparison._repr_html_()
        assert contents(root) == before

    def test_runs_of_this_process_beside_folders_each_once(self, root: Path) -> None:
        run = Run.resume(root / "a")
        memory = [Run(tiny(seed=5)), Run(tiny(seed=5))]
        comparison = compare_runs(run, root / "a", *memory, memory[0])
        assert [row[0] for row in comparison.scores.rows] == [
            "a",
            "leader_follower in memory 2",
            "leader_follower in memory 3",
        ]
        assert any("have seeds in common" in note for note in comparison.notes)

    def test_before_the_first_score_there_is_no_figure(self) -> None:
        comparison = compare_runs(Run(tiny()))
        assert (comparison.figure, comparison.metrics) == (None, [])
        assert comparison.scores.rows == [["leader_follower in memory", "0", "new", "0", "-"]]

    def test_a_notebook_shows_a_figure_and_tables_with_text(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[Any] = []
        monkeypatch.setattr(module, "display", lambda what, raw=False: shown.append(what))
        comparison = compare_runs(root / "a", root / "sweep" / "c")
        comparison._ipython_display_()
        assert shown == [comparison.figure, {"text/html": comparison._repr_html_(), "text/plain": repr(comparison)}]

    @pytest.mark.parametrize("names", [(), ("damaged",), ("none", "foreign")])
    def test_without_a_run_it_is_an_error(self, root: Path, names: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError, match=r"^compare_runs: "):
            compare_runs(*(root / name for name in names))


class TestBrokenVariants:
    @pytest.mark.parametrize(
        ("name", "broken", "test"),
        [
            ("group_runs", lambda opened: [module.Group((each,)) for each in opened], "seeds_are_pooled_and_scores"),
            ("student", lambda values: (sum(values) / len(values),) * 3, "seeds_are_pooled_and_scores"),
            ("scores_while_training", lambda logs, metrics: scores_while_training(logs[:1], metrics), "figure"),
            ("describe", lambda groups, scored: [], "notes"),
        ],
    )
    def test_is_caught(self, name: str, broken: Any, test: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, broken)
        tests = {
            "figure": TestComparison().test_the_figure_is_a_plain_one_with_a_line_for_each_group,
            "notes": TestComparison().test_notes_say_what_is_pooled_and_what_is_left_out,
            "seeds_are_pooled_and_scores": TestComparison().test_seeds_are_pooled_and_scores_are_those_of_the_log,
        }
        self.require_caught(lambda: tests[test](root))

    def require_caught(self, test: Callable[[], None]) -> None:
        with pytest.raises((AssertionError, ValueError)):
            test()
