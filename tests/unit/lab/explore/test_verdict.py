"""The verdict has the numbers of the log, what run.json says, and baselines in equal episodes."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import tiny
from uavlab.core.errors import ConfigError, FileError, MissingPackageError
from uavlab.experiment import policy, scores
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import digest
from uavlab_lab.explore.verdict import Verdict, verdict
from uavlab_lab.plots.tables import Table

module = import_module("uavlab_lab.explore.verdict")  # whose name is that of its function in the package
ROWS = (  # of two seeds; the score is 3 x completion + strict formation - 0.0005 x flight time
    {"update": 4, "seconds": 1.0, **{f"eval/{name}": 0.5 for name in ("completion", "formation_strict")}},
    {"update": 8, "seconds": 2.0, **{f"eval/{name}": 0.0 for name in ("completion", "formation_strict")}},
)
FLIGHT_TIMES = ((10.0, 30.0), (20.0, 20.0))
Change = Callable[..., Path]


@pytest.fixture
def change(finished: Path, tmp_path: Path) -> Change:
    """Return a function that copies a run with other rows of metrics and another status."""

    def change(rows: Any = None, **status: Any) -> Path:
        folder = tmp_path / "run"
        shutil.copytree(finished, folder)
        record = json.loads((folder / "run.json").read_text()) | status
        (folder / "run.json").write_text(json.dumps(record))
        if rows is not None:
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return folder

    return change


def column(judged: Verdict, head: str) -> dict[str, str]:
    place = judged.table.heads.index(head)
    return {row[0]: row[place] for row in judged.table.rows}


class TestLog:
    def test_one_seed(self, change: Change) -> None:
        rows = [{**row, "eval/flight_time": times[0]} for row, times in zip(ROWS, FLIGHT_TIMES, strict=True)]
        judged = verdict(change(rows, seconds=2.0))
        first, second, *_ = judged.sentences
        assert first == "run trains leader_follower by masac: complete, update 8 of 8. It makes 4 updates per second."
        formula = "3 completion + strict formation - 0.0005 flight time"
        assert (
            second == f"Its last score in training is -0.010, the highest of 2 is 1.995 ({formula}; higher is better)."
        )
        assert column(judged, "last score in training") == {
            "completion": "0.000",
            "strict formation": "0.000",
            "flight time (steps)": "20.000",
        }

    def test_two_seeds_have_intervals_that_end_where_the_metric_does(self) -> None:
        run = Run(tiny(runs=2))
        each = {"eval/completion": [0.25, 0.75], "eval/flight_time": [10.0, 30.0]}
        run.recorder.rows = [
            {"update": 8, "seconds": 1.0, "eval/completion": 0.5, "eval/flight_time": 20.0, "each": each}
        ]
        # Student's factor of two values is 12.706, times the half distance
        assert column(verdict(run), "last score in training") == {
            "completion": "0.500 [0.000, 1.000]",
            "flight time (steps)": "20.000 [-107.062, 147.062]",
        }

    def test_before_the_first_score(self) -> None:
        judged = verdict(Run(tiny()))
        assert judged.sentences[0] == "leader_follower in memory trains leader_follower by masac: new, update 0 of 8."
        assert judged.sentences[1] == "It was not scored yet."
        assert judged.table.rows == []
        assert "<table" not in judged._repr_html_()


class TestHealth:
    WELL = ("No symptom of training that fails was seen.", "No toggle fell back.", "It can be repeated bit for bit")

    def test_nothing_ails_it(self, finished: Path) -> None:
        text = repr(verdict(finished))
        assert all(sentence in text for sentence in self.WELL)

    def test_what_ails_it_with_advice_and_reasons(self, change: Change) -> None:
        symptom = {"symptom": "entropy_low", "update": 1200, "text": "the entropy collapsed; try alpha=0.1 (now 1)"}
        toggles = {"fell_back": {"compile": "no compiler"}}
        folder = change(
            symptoms=[symptom], toggles=toggles, not_exact=["minutes: x"], status="failed", reason="disk full"
        )
        judged = verdict(folder)
        for sentence in (
            "It ended because: disk full",
            "Symptom at update 1,200: the entropy collapsed; try alpha=0.1 (now 1).",
            "The toggle compile fell back: no compiler",
            "Not bit for bit repeatable: minutes: x",
        ):
            assert sentence in judged.sentences
        assert not any(sentence in repr(judged) for sentence in self.WELL)

    def test_without_a_status_nothing_is_known(self, change: Change) -> None:
        folder = change()
        (folder / "run.json").write_text("[")
        judged = verdict(folder)
        assert judged.sentences[0] == "run trains leader_follower by masac: unknown."
        assert any(sentence.startswith("No status: ") for sentence in judged.sentences)
        assert not any(sentence in repr(judged) for sentence in self.WELL)

    @pytest.mark.parametrize(
        "status",
        [{"update": 10**400}, {"seconds": float("nan")}, {"toggles": 3, "symptoms": {"a": 1}, "not_exact": "x"}],
    )
    def test_an_odd_status_is_no_error(self, change: Change, status: dict[str, Any]) -> None:
        assert "run trains leader_follower by masac" in repr(verdict(change(**status)))


class TestBaselines:
    def test_policy_and_baselines_are_scored_in_equal_episodes(self, finished: Path) -> None:
        judged, config = verdict(finished, episodes=3, seed=2), policy.load(finished).config
        expected = {
            "best policy": scores.evaluate(policy.load(finished), 3, 2, False),
            **{name: scores.evaluate_baseline(config, name, 3, 2) for name in scores.baselines(config)},
        }
        assert judged.table.heads == ["figure", "last score in training", *expected]
        for name, figures in expected.items():
            mean = figures["completion"]["mean"]
            assert column(judged, name)["completion"].startswith(f"{mean:.3f}")
        assert "Best policy and baselines: 3 episodes of seed 2." in judged.sentences
        steer = expected["steer"]
        value = (
            3 * steer["completion"]["mean"] + steer["formation_strict"]["mean"] - 0.0005 * steer["flight_time"]["mean"]
        )
        assert f"steer {value:.3f}." in next(text for text in judged.sentences if text.startswith("Scores: "))

    def test_by_default_nothing_is_scored(self, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scores, "measure_policy", lambda *words: 1 / 0)
        assert verdict(finished).table.heads == ["figure", "last score in training"]

    def test_a_baseline_that_fails_leaves_a_note(self, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(config: Any, name: str, *rest: Any) -> Any:
            raise MissingPackageError(f"{name} needs ortools")

        monkeypatch.setattr(scores, "evaluate_baseline", fail)
        judged = verdict(finished, episodes=1)
        assert judged.table.heads == ["figure", "last score in training", "best policy"]
        assert "No steer: steer needs ortools" in judged.sentences

    @pytest.mark.parametrize(("episodes", "seed"), [(-1, 0), (1.5, 0), (1, -1)])
    def test_numbers_out_of_range_are_refused(self, finished: Path, episodes: Any, seed: int) -> None:
        with pytest.raises(ConfigError, match="expected a whole number"):
            verdict(finished, episodes, seed)


class TestForms:
    def test_html_and_text_say_the_same(self, finished: Path) -> None:
        judged = verdict(finished)
        html, text = judged._repr_html_(), repr(judged)
        assert all(sentence in text for sentence in judged.sentences)
        assert html.count("<p ") == len(judged.sentences)
        assert len(re.findall("<tr>", html)) == 1 + len(judged.table.rows)

    def test_a_run_of_this_process_is_not_changed(self) -> None:
        run = Run(tiny(updates=2))
        for _ in run:
            before = digest(run)
            verdict(run, episodes=1)
            assert digest(run) == before

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(FileError):
            verdict(tmp_path)


class TestBrokenVariants:
    def test_the_first_row_in_place_of_the_last_is_caught(
        self, change: Change, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def first(files: Any) -> Mapping[str, Any]:
            row = files.rows[0]
            return {name.removeprefix("eval/"): (row[name],) * 3 for name in row if name.startswith("eval/")}

        monkeypatch.setattr(module, "_last", first)
        with pytest.raises(AssertionError):
            TestLog().test_one_seed(change)

    def test_a_table_of_markup_is_caught(self) -> None:
        judged = Verdict(("<b>",), Table(["<i>"], [["<i>"]]))
        assert "<b>" not in judged._repr_html_()
        assert "<i>" not in judged._repr_html_()
