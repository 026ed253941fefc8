"""Missions of the notebook: the same start for every policy, honest names, and counts that multiply."""

from pathlib import Path

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from tests.support.fixtures_mapping import SMALL as SMALL_MISSION
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.core.errors import ConfigError
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab_lab.intervals import nested_bands
from uavlab_lab.lessons import mapping

CPU = torch.device("cpu")
SMALL = {"device": "cpu", "threads": 1, "worlds": 2, "width": 8, "hidden": 8}


def test_a_run_is_scored_beside_the_plans(tmp_path: Path) -> None:
    small = {name: getattr(TINY_MISSION, name) for name in ("cells", "cell", "lattice", "uavs", "measurements")}
    run = Run(configure("mapping_quick", SMALL, small, {"updates": 1, "evaluate_episodes": 2}), tmp_path / "run")
    for _ in run.train():
        pass
    trained, name = mapping.load_team(str(tmp_path / "run"), "cpu"), "the trained team"
    assert torch.equal(trained.parameters, policy.load(tmp_path / "run").parameters)
    scores = mapping.scores_by_policy(TINY_MISSION, {name: trained}, 0, 3, CPU)
    assert list(scores) == ["random", "information gain", "expected entropy", "sweep", name]
    for each in scores.values():
        assert {metric: value.shape for metric, value in each.items()} == {"entropy": (1, 3, 4), "f1": (1, 3, 4)}
    assert not torch.equal(scores["random"]["entropy"], scores["sweep"]["entropy"])
    assert mapping.with_view_of(TINY_MISSION, trained).centred is trained.config.env.spec.centred is True
    assert TINY_MISSION.centred is False
    again = mapping.scores_by_policy(TINY_MISSION, {}, 0, 3, CPU)
    assert torch.equal(scores["sweep"]["entropy"], again["sweep"]["entropy"])


def test_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    Run(configure("telemetry", sizes("telemetry")), tmp_path / "logs").save()
    Run(tiny(), tmp_path / "team").save()
    for name, preset in (("logs", "telemetry"), ("team", "leader_follower")):
        with pytest.raises(ConfigError) as refusal:
            mapping.load_team(str(tmp_path / name), "cpu")
        assert str(refusal.value) == (
            f"{tmp_path / name}: a run of {preset}; expected one that maps, of mapping_quick say."
        )


def test_the_exported_team_maps() -> None:
    assert mapping.load_team("", "cpu").config.preset == "mapping_quick"


SCORES = {
    "a": torch.linspace(1, 0.5, 14).expand(1, 6, 14),
    "b": torch.rand(2, 5, 14, generator=torch.manual_seed(0)),
}


class TestCurves:
    def test_means_with_their_band(self) -> None:
        figure = mapping.score_curves(SCORES, title="Scores")
        band, line, wide, _ = figure.data
        assert list(line.x) == list(range(2, 16))
        assert list(line.y) == pytest.approx(torch.linspace(1, 0.5, 14).tolist(), abs=1e-5)
        assert list(band.y) == pytest.approx([*line.y, *line.y[::-1]], abs=1e-5)  # equal missions have no spread
        low, _, high = nested_bands(SCORES["b"].double().numpy())
        assert (wide.y[13], wide.y[14]) == pytest.approx((high[-1], low[-1]), abs=1e-5)
        assert [trace.name for trace in figure.data if trace.showlegend is not False] == ["a", "b"]
        assert len({trace.line.dash for trace in (line, figure.data[3])}) == 2  # distinct without colour

    @pytest.mark.parametrize(("metric", "text"), [("entropy", "lower is better"), ("f1", "higher"), ("x", "x")])
    def test_the_axis_says_what_is_drawn(self, metric: str, text: str) -> None:
        assert text in mapping.score_curves(SCORES, metric).layout.yaxis.title.text

    def test_the_best_and_those_that_are_not_different(self) -> None:
        assert mapping.best_policy({"a": SCORES["a"], "b": SCORES["b"] + 1}, "entropy") == "a"
        assert mapping.best_policy({"a": SCORES["a"], "b": SCORES["b"] + 1}, "f1") == "b"
        assert mapping.best_policy({"b": SCORES["b"], "same": SCORES["b"], "a": SCORES["a"] + 2}, "x") == "a"
        assert mapping.best_policy({"b": SCORES["b"], "same": SCORES["b"]}, "f1") == "b, same"

    def test_scores_in_words(self) -> None:
        assert mapping.format_scores({"a": SCORES["a"]}) == "a 0.50 (0.50 to 0.50)"
        assert mapping.format_scores({"a": SCORES["a"]}, 0) == "a 1.00 (1.00 to 1.00)"


def test_bilinear_resizing_is_not_by_area() -> None:
    resized = mapping.compare_resizing(SMALL_MISSION)
    assert (resized["area"] - resized["bilinear"]).abs().max() > 0.05
    assert (resized["area"] - resized["opencv"]).abs().max() < 1e-5


def test_scores_over_the_time_of_an_update() -> None:
    """A row without figures has no mark; the others have their intervals."""
    rows = [
        {"setting": "493 cells", "update_ms": 800.0, "f1": {"mean": 0.75, "low": 0.5, "high": 0.875}},
        {"setting": "62 cells", "update_ms": 200.0, "f1": None},
        {"setting": "123 cells", "update_ms": 400.0, "f1": {"mean": 0.625, "low": 0.5, "high": 0.75}},
    ]
    marks = mapping.trade_off(rows, "f1").data
    assert [(each.name, *each.x, *each.y) for each in marks] == [("493 cells", 800, 0.75), ("123 cells", 400, 0.625)]
    assert [(*each.error_y.arrayminus, *each.error_y.array) for each in marks] == [(0.25, 0.125), (0.125, 0.125)]
    assert mapping.score_change(rows[0], rows[2], "f1") == "f1 0.62 instead of 0.75"
