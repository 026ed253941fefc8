"""Scores: equal calls give equal figures, of runs and of baselines; they are printed and recorded."""

import dataclasses
import re
from typing import Any

import pytest
import torch

from tests.support.card_parts import facts, tables
from tests.support.fixtures_config import SMALL_MISSION, tiny, train_tiny
from uavlab.core.errors import ConfigError
from uavlab.evaluation import COMMON
from uavlab.experiment import policy, scores
from uavlab.experiment.config import configure
from uavlab.experiment.names import PRESETS, Preset
from uavlab.experiment.run import Run

EPISODES = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two runs in one process, evaluated with more followers than they were trained with."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "pair", runs=2, eval_followers=3, eval_horizon=9)


@pytest.fixture(scope="module")
def loaded(pair: Run) -> policy.TrainedPolicy:
    assert pair.folder is not None
    return policy.load(pair.folder)


class TestEvaluate:
    def test_the_same_call_gives_the_same_figures(self, pair: Run, loaded: policy.TrainedPolicy) -> None:
        first = scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert first == scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert first == scores.evaluate(pair.trained(), EPISODES, 0, mean_action=False)
        assert list(first)[:2] == ["completion", "formation_strict"]
        assert all(figure["low"] <= figure["mean"] <= figure["high"] for figure in first.values())

    def test_another_seed_or_the_mean_action_gives_others(self, loaded: policy.TrainedPolicy) -> None:
        first = scores.evaluate(loaded, EPISODES, 0, mean_action=False)
        assert scores.evaluate(loaded, EPISODES, 1, mean_action=False)["return"] != first["return"]
        assert scores.evaluate(loaded, EPISODES, 0, mean_action=True)["energy"] != first["energy"]

    def test_on_another_task(self, loaded: policy.TrainedPolicy) -> None:
        task = dataclasses.replace(loaded.config.evaluation, horizon=2)
        assert scores.evaluate(loaded, EPISODES, 0, mean_action=False, env=task)["flight_time"]["mean"] == 2

    def test_runs_are_scored_on_starts_of_their_own(self, loaded: policy.TrainedPolicy) -> None:
        """Both runs hold the same policy here, so equal starts would give equal figures."""
        twins = dataclasses.replace(loaded, parameters=loaded.parameters[:1].expand(2, -1, -1))
        alone = dataclasses.replace(
            loaded, parameters=loaded.parameters[:1], config=tiny(eval_followers=3, eval_horizon=9)
        )
        both, one = (scores.evaluate(each, EPISODES, 0, mean_action=True)["return"] for each in (twins, alone))
        assert both["mean"] != one["mean"]


class TestWeigh:
    def test_each_episode_has_its_score(self) -> None:
        """Of leader and followers: 3 completion + strict formation - 0.0005 flight time."""
        figures = {"completion": [[1.0, 0.0]], "formation_strict": [[0.5, 0.25]], "flight_time": [[100.0, 200.0]]}
        tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in figures.items()}
        assert scores.weigh(tiny().env.score, tensors).tolist() == [pytest.approx([3.45, 0.15])]

    def test_a_baseline_is_measured_in_the_episodes_of_evaluate(self) -> None:
        figures = scores.measure_baseline(tiny(), "random", EPISODES, 3)
        summary = scores.evaluate_baseline(tiny(), "random", EPISODES, 3)
        assert {name: values.shape for name, values in figures.items()} == dict.fromkeys(summary, (1, EPISODES))
        assert figures["flight_time"].mean().item() == summary["flight_time"]["mean"]


class TestPool:
    """Three seeds of two episodes whose means are 0.2, 0.4 and 0.9."""

    FIGURES = ([[0.1, 0.3]], [[0.4, 0.4], [0.9, 0.9]])

    def pooled(self, *figures: list[list[float]]) -> dict[str, Any]:
        env = tiny().evaluation
        names = [metric.name for metric in (*env.metrics, *COMMON)]
        several = [dict.fromkeys(names, torch.tensor(each)) for each in figures]
        return scores.summarize(tiny(), scores.pool(several), 2, torch.device("cpu"))["return"]

    def test_the_interval_is_over_all_seeds(self) -> None:
        # t of two degrees of freedom 4.30265, standard deviation sqrt(0.26 / 2), standard error 0.208167
        figure = self.pooled(*self.FIGURES)
        assert [figure[end] for end in ("mean", "low", "high")] == pytest.approx([0.5, -0.39567, 1.39567], abs=1e-4)
        assert figure["each"] == pytest.approx([0.2, 0.4, 0.9])

    def test_means_of_the_runs_and_of_their_intervals_are_others(self) -> None:
        figure, each = self.pooled(*self.FIGURES), [self.pooled(one) for one in self.FIGURES]
        for end in ("mean", "low", "high"):
            assert abs(sum(one[end] for one in each) / 2 - figure[end]) > 0.05

    def test_seeds_of_several_runs_equal_those_of_one(self) -> None:
        alone = [train_tiny(seed=seed).trained() for seed in (3, 4)]
        parameters = torch.cat([each.parameters for each in alone])
        both = dataclasses.replace(alone[0], config=tiny(seed=3, runs=2), parameters=parameters)
        together = scores.pool([scores.measure(each, EPISODES, 0, False) for each in alone])
        whole = scores.measure(both, EPISODES, 0, False)
        assert all(torch.allclose(together[name], figure) for name, figure in whole.items())
        first = scores.measure(alone[0], EPISODES, 0, False)
        assert not torch.allclose(scores.pool([first, first])["return"], whole["return"])  # one seed twice


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "small_mapping", Preset("mapping", "Small.", SMALL_MISSION))
    return "small_mapping"


class TestBaseline:
    @pytest.mark.parametrize("plan", ["random", "information_gain", "expected_entropy", "sweep"])
    def test_equal_calls_give_equal_figures(self, small: str, plan: str) -> None:
        config = configure(small)
        first = scores.evaluate_baseline(config, plan, 6, 2)
        assert first["entropy"]["low"] <= first["entropy"]["mean"] <= first["entropy"]["high"] <= 1
        assert first == scores.evaluate_baseline(config, plan, 6, 2)
        assert first != scores.evaluate_baseline(config, plan, 6, 3)
        assert first.count == "6 episodes"

    def test_unknown_names(self, small: str) -> None:
        with pytest.raises(
            ConfigError, match=r"did you mean 'sweep'.*Known: random, information_gain, expected_entropy, sweep"
        ):
            scores.evaluate_baseline(configure(small), "sweeep", 2, 0)
        with pytest.raises(ConfigError, match=r"leader_follower: unknown .*Known: random, steer\."):
            scores.evaluate_baseline(configure("leader_follower"), "sweep", 2, 0)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (lambda obs: obs[..., :1], "shape (4, 2, 1)"),
            (lambda obs: torch.zeros(2), "shape (2,)"),
            (len, "a int"),
            (lambda obs: 9 * torch.ones(4, 2, 2), "actions of torch.float32 from 9 to 9; expected numbers in [-1, 1]"),
            (lambda obs: torch.nan * obs[..., :2], "actions of torch.float32 from nan to nan"),
        ],
    )
    def test_a_function_of_wrong_actions(self, wrong: Any, message: str) -> None:
        config = tiny(followers=1)
        with pytest.raises(ConfigError, match=re.escape(f"policy: got {message}")):
            scores.evaluate_baseline(config, wrong, 4, 0)

    def test_a_registered_baseline_of_wrong_moves(self, small: str) -> None:
        config = configure(small)
        plans = {"far": lambda env, state, noise: torch.full_like(noise, 99).long(), "few": lambda env, state, noise: 0}
        entry = dataclasses.replace(config.task.environment, baselines=plans)
        task = dataclasses.replace(config.task, environment=entry)
        for name, message in (("far", "actions of torch.int64 from 99 to 99"), ("few", "a int")):
            with pytest.raises(ConfigError, match=f"^baseline {name}: got {message}"):
                scores.evaluate_baseline(dataclasses.replace(config, task=task), name, 4, 0)

    def test_no_episode(self) -> None:
        with pytest.raises(ConfigError, match=r"^evaluate: got episodes=0; expected at least 1"):
            scores.evaluate_baseline(tiny(), "random", 0, 0)


class TestCard:
    def test_figures_of_one_kind_and_of_several(self) -> None:
        row = {"mean": 12.5, "low": 10.0, "high": 15.25}
        units = {"path": "m", "r2/wind": ""}
        scored = scores.Scores(
            {"path": row, "r2": {"wind": {"mean": 0.5, "low": 0.25, "high": 0.75}}},
            units,
            "7 episodes",
            torch.device("cpu"),
        )
        page = scored._repr_html_()
        assert facts(page) == {"measured on": "7 episodes", "device": "cpu"}
        assert tables(page) == [
            [
                ["figure", "mean", "95 % interval", "unit", ""],
                ["path", "12.500", "[10.000, 15.250]", "m", ""],
                ["r2/wind", "0.500", "[0.250, 0.750]", "", ""],
            ]
        ]
        assert page.count("<svg") == 2

    def test_a_figure_without_a_number_has_no_bar(self) -> None:
        row = {"mean": float("nan"), "low": float("nan"), "high": 1.0}
        page = scores.Scores({"path": row}, {"path": ""}, "", torch.device("cpu"))._repr_html_()
        assert tables(page)[0][1][:3] == ["path", "nan", "[nan, 1.000]"]
        assert "<svg" not in page
