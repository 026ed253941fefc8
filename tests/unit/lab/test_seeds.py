"""Runs that differ by their seed alone are pooled, those with a seed in common are not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import tiny
from uavlab.evaluation import COMMON
from uavlab.experiment import scores
from uavlab_lab import seeds
from uavlab_lab.run_files import RunFiles
from uavlab_lab.seeds import Group, describe, group_runs, pool_rows, scores_in_training, sharing


def run(name: str, status: str = "complete", update: int = 8, **changes: Any) -> RunFiles:
    """Return a run of two logged rows and two episodes for each seed, whose numbers follow from its seeds."""
    files = RunFiles(Path(name), name, config := tiny(**changes))
    own = [float(seed) for seed in seeds.seeds_of(files)]
    names = [metric.name for metric in (*config.evaluation.metrics, *COMMON)]
    vars(files).update(
        status={"status": status, "update": update},
        rows=[{"update": at, "seconds": at + own[0], "loss": at + sum(own) / len(own)} for at in (1, 2)],
        figures=dict.fromkeys(names, torch.tensor(own)[:, None].expand(-1, 2)),
    )
    return files


def names(groups: list[Group]) -> list[list[str]]:
    return [[each.name for each in group.runs] for group in groups]


class TestGroups:
    def test_seeds_of_equal_settings_are_together_in_the_order_of_the_first(self) -> None:
        runs = [run("a", seed=0), run("b", seed=0, lr=0.002), run("c", seed=2), run("d", seed=1)]
        groups = group_runs(runs)
        assert names(groups) == [["a", "c", "d"], ["b"]]
        assert [group.name for group in groups] == ["a and 2 more", "b"]

    @pytest.mark.parametrize("change", [{"gamma": 0.5}, {"horizon": 7}, {"eval_horizon": 9}, {"runs": 2}])
    def test_another_setting_is_another_run(self, change: dict[str, Any]) -> None:
        assert names(group_runs([run("a", seed=0), run("b", seed=1, **change)])) == [["a"], ["b"]]

    def test_a_seed_twice_is_not_pooled_whatever_the_order(self) -> None:
        runs = [run("a", seed=0), run("b", seed=1), run("c", seed=2), run("again", seed=0)]
        assert sharing(runs) == ["a", "again"]
        assert names(group_runs(runs)) == [["a"], ["b", "c"], ["again"]]
        assert names(group_runs(runs[::-1])) == [["again"], ["c", "b"], ["a"]]

    @pytest.mark.parametrize(("second", "together"), [(1, False), (2, True)])
    def test_runs_of_several_seeds_are_pooled_unless_they_overlap(self, second: int, together: bool) -> None:
        runs = [run("a", seed=0, runs=2), run("b", seed=second, runs=2)]
        assert names(group_runs(runs)) == ([["a", "b"]] if together else [["a"], ["b"]])

    def test_a_run_that_ended_earlier_is_another(self) -> None:
        runs = [run("a", seed=0), run("b", "interrupted", 1, seed=1), run("c", "interrupted", 1, seed=2)]
        assert names(group_runs(runs)) == [["a"], ["b", "c"]]

    def test_the_machine_does_not_matter(self) -> None:
        runs = [run("a", seed=0), run("b", seed=1)]
        runs[1].status["machine"] = {"device": "another"}
        assert len(group_runs(runs)) == 1


class TestScores:
    def interval(self, *runs: RunFiles) -> list[float]:
        for each in runs:
            vars(each)["trained"] = type("Trained", (), {"rt": type("Here", (), {"device": torch.device("cpu")})})
        [group] = group_runs(runs)
        assert group.scores is not None
        return [group.scores["return"][end] for end in ("mean", "low", "high")]

    def test_seeds_of_runs_of_one(self) -> None:
        # means 0, 1, 5: t of two degrees of freedom 4.30265, standard deviation sqrt(14 / 2), standard error 1.527525
        pooled = self.interval(run("a", seed=0), run("b", seed=1), run("c", seed=5))
        assert pooled == pytest.approx([2, 2 - 6.57241, 2 + 6.57241], abs=1e-4)

    def test_all_seeds_of_runs_of_two(self) -> None:
        # means 0, 1, 8, 9: t of three degrees of freedom 3.18245, standard error sqrt(65 / 3 / 4) = 2.327373
        pooled = self.interval(run("a", seed=0, runs=2), run("b", seed=8, runs=2))
        assert pooled == pytest.approx([4.5, 4.5 - 7.40673, 4.5 + 7.40673], abs=1e-4)
        # over the means 0.5 and 8.5 of both runs it would be 12.7062 * 4
        assert abs(pooled[2] - (4.5 + 50.825)) > 40

    def test_a_run_without_a_policy_is_left_out(self) -> None:
        runs = [run("a", seed=0), run("b", seed=1), run("c", seed=9)]
        vars(runs[2])["figures"] = None
        assert self.interval(*runs)[0] == 0.5
        [text] = describe(group_runs(runs))
        assert "The scores lack c, without a policy that could be scored." in text

    def test_figures_that_do_not_fit_are_a_note(self) -> None:
        runs = [run("a", seed=0), run("b", seed=1)]
        vars(runs[1])["figures"] = {name: torch.zeros(1, 3) for name in runs[1].figures or {}}
        [group] = group_runs(runs)
        assert group.scores is None
        assert runs[0].notes[0].startswith("No pooled scores: RuntimeError: ")


class TestRows:
    def test_means_and_every_seed(self) -> None:
        logs = [
            [{"update": 5, "seconds": 2.0, "loss": 1.5, "memory": 10, "each": {"loss": [1.0, 2.0]}}],
            [{"update": 5, "seconds": 4.0, "loss": 6.0, "memory": 30, "each": {"loss": [4.0, 8.0]}}],
        ]
        [row] = pool_rows(logs) or []
        each = {"loss": [1, 2, 4, 8], "memory": [10, 30]}
        assert row == {"update": 5, "seconds": 3, "loss": 3.75, "memory": 20, "each": each}

    @pytest.mark.parametrize("other", [{"update": 6, "loss": 1.0}, {"update": 5, "gain": 1.0}])
    def test_other_updates_are_not_pooled(self, other: dict[str, Any]) -> None:
        rows = [{"update": 5, "seconds": 2.0, "loss": 1.0}]
        assert pool_rows([rows, [{"seconds": 2.0, **other}]]) is None
        assert pool_rows([rows, rows * 2]) is None
        assert pool_rows([rows, rows]) is not None

    def test_lines_are_one_or_as_many_as_runs(self) -> None:
        runs = [run("a", seed=0), run("b", seed=4)]
        [group] = group_runs(runs)
        assert [(log.name, [row["loss"] for row in log.rows]) for log in group.logs] == [("a and 1 more", [3, 4])]
        assert "Seeds 0, 4 are pooled like seeds of one run. Lines are means over these seeds" in describe([group])[0]
        runs[1].rows.pop()
        [group] = group_runs(runs)
        assert [log.name for log in group.logs] == ["a", "b"]
        assert "each has a line of its own" in describe([group])[0]

    def test_a_run_without_metrics_leaves_the_others(self) -> None:
        runs = [run("a", seed=0), run("b", seed=1)]
        runs[0].rows.clear()
        [group] = group_runs(runs)
        assert [log.name for log in group.logs] == ["b"]
        assert describe([group])[0].endswith("The lines lack a, without metrics.")


def test_why_runs_are_not_pooled() -> None:
    groups = group_runs([run("a", seed=0), run("again", seed=0), run("b", seed=0, lr=0.002)])
    [text] = describe(groups)
    assert text.startswith("a, again: these runs have equal settings apart from their seeds, and have seeds in common.")
    assert describe(group_runs([run("a", seed=0)])) == []


def test_without_scores_no_policy_is_evaluated() -> None:
    runs = [run("a", seed=0), run("b", seed=1)]
    for each in runs:
        vars(each).pop("figures")
        vars(each)["trained"] = None
    groups = group_runs(runs)
    assert "The scores lack a, b" in describe(groups)[0]
    assert "scores lack" not in describe(groups, scored=False)[0]
    vars(runs[0]).pop("figures")
    describe(groups, scored=False)
    assert "figures" not in vars(runs[0])


def test_scores_of_a_curriculum_are_those_of_its_highest_stage() -> None:
    rows = [{"eval/a": value, "eval/stage": stage} for value, stage in ((0.9, 1.0), (0.5, 2.0), (0.4, 2.0), (0.8, 1.0))]
    assert scores_in_training(rows, {"a": 1.0}, 1) == [[0.5, 0.4]]


class TestBrokenVariants:
    def test_means_of_runs_instead_of_seeds_are_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mean(figures: Any) -> Any:
            return {name: torch.stack([each[name].mean(0) for each in figures]) for name in figures[0]}

        monkeypatch.setattr(scores, "pool", mean)
        with pytest.raises(AssertionError):
            TestScores().test_all_seeds_of_runs_of_two()

    def test_a_mean_of_intervals_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mean(group: Group) -> Any:
            each = [run.summarize(run.figures or {}) or {} for run in group.runs]
            ends = ("mean", "low", "high")
            return {"return": {end: sum(one["return"][end] for one in each) / len(each) for end in ends}}

        monkeypatch.setattr(Group, "scores", property(mean))
        for test in (TestScores().test_seeds_of_runs_of_one, TestScores().test_all_seeds_of_runs_of_two):
            with pytest.raises(AssertionError):
                test()

    def test_pooling_a_seed_twice_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(seeds, "sharing", lambda runs: [])
        with pytest.raises(AssertionError):
            TestGroups().test_a_seed_twice_is_not_pooled_whatever_the_order()

    def test_lines_of_other_updates_pooled_are_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(seeds, "pool_rows", lambda logs: logs[0])
        with pytest.raises(AssertionError):
            TestRows().test_lines_are_one_or_as_many_as_runs()
