"""Policies that a run chooses: for the whole team, for each group, and the newest."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import uavlab as ul
from uavlab import evaluation
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.schedules import Best, group_owners, mean_scores
from uavlab.learners.ppo import LEARNERS

TINY = {"updates": 6, "worlds": 2, "rollout_steps": 3, "hidden": 8, "evaluate_every": 2, "evaluate_episodes": 1}
TINY |= {"checkpoint_every": 6, "log_every": 2, "epochs": 1, "minibatches": 1, "runs": 2}
NETWORKS = torch.tensor([[[1.0], [2.0], [3.0]]])  # one seed, three networks


def test_networks_follow_the_scores_of_their_owners() -> None:
    best = Best(torch.zeros(1, 3, 1), [0, 1, 1])
    assert best.or_newest(NETWORKS)[0, :, 0].tolist() == [1, 2, 3]
    assert best.consider(torch.tensor([[0.5, 0.5]]), NETWORKS, 1)
    assert best.consider(torch.tensor([[0.4, 0.9]]), 10 * NETWORKS, 2)
    assert not best.consider(torch.tensor([[0.5, 0.9]]), 100 * NETWORKS, 3)  # of equal scores the first stays
    assert best.parameters[0, :, 0].tolist() == [1, 20, 30]
    assert (best.score.tolist(), best.updates.tolist()) == ([[0.5, pytest.approx(0.9)]], [[1, 2]])


def test_scores_are_weighted_means() -> None:
    figures = {"a": torch.tensor([[1.0, 3.0]]), "b": torch.tensor([[4.0, 6.0]])}
    assert mean_scores(figures, [{"a": 1.0, "b": -0.5}, {"b": 2.0}]).tolist() == [[-0.5, 10.0]]


def test_a_validation_chooses_counts_and_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(configure("pursuit", TINY))
    ticks = iter((10.0, 12.5, 20.0, 21.0, 30.0, 30.5))
    monkeypatch.setattr("uavlab.experiment.run.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    weights, stale = run.schedules.evaluation.score, 0
    best = torch.full((2,), -torch.inf)
    for seconds in (2.5, 1.0):
        figures = run.validate()
        score = torch.tensor([sum(w * figures[name][seed] for name, w in weights.items()) for seed in range(2)])
        stale = 0 if (score > best).any() else stale + 1
        best = torch.maximum(best, score)
        torch.testing.assert_close(run.best_score, best)
        assert (run.parts.evals_since_best, run.score_seconds) == (stale, seconds)
    judged: list[Any] = []
    monkeypatch.setattr(run.schedules, "judge", lambda *given: judged.append(given))
    run.validate(forced=True)
    assert judged == []


def test_each_group_of_pursuit_has_a_network() -> None:
    config = configure("pursuit")
    assert group_owners(config) == [0, 1]
    assert group_owners(configure("pursuit", {"share": False})) == [0, 0, 0, 0, 1, 1]
    assert group_owners(configure("spread_quick")) is None  # no scores of groups
    for networks in ((0,) * config.env.spec.agents, None):  # one for all, and unknown
        other = type("Other", (config.task.algorithm,), {"assign_networks": lambda hyper, spec, n=networks: n})
        assert group_owners(replace(config, task=replace(config.task, algorithm=other))) is None


def test_learners_say_which_network_serves_an_agent() -> None:
    spec = ul.make("leader_follower", followers=2).spec
    for name in ("masac", "mappo", "ippo"):
        assert tuple(LEARNERS[name].assign_networks(LEARNERS[name].settings(), spec)) == (0, 1, 1), name


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train two seeds: the first has its best pursuers after update 2, its best evaders after 4; the second at last."""
    caught = iter(torch.tensor([[[0.9], [0.1]], [[0.5], [0.2]], [[0.2], [0.3]]]))  # update, seed, episode
    survival = iter(torch.tensor([[[1.0], [5.0]], [[9.0], [6.0]], [[9.0], [7.0]]]))

    def episodes(*given: Any, **named: Any) -> dict[str, torch.Tensor]:
        return {"caught": next(caught), "survival": next(survival)}

    monkeypatch.setattr(evaluation, "episodes", episodes)
    return ul.train("pursuit", settings=TINY, out=tmp_path / "run", progress=False)


def test_a_run_chooses_for_the_team_and_for_each_group(run: Run) -> None:
    assert run.best_groups is not None
    assert run.best_groups.updates.tolist() == [[2, 4], [6, 6]]
    assert run.best_team.updates.tolist() == [[2], [6]]
    assert torch.equal(run.best_groups.parameters[0, 0], run.best[0, 0])
    assert not torch.equal(run.best_groups.parameters[0, 1], run.best[0, 1])
    assert torch.equal(run.best_groups.parameters[1], run.learner.parameters()[1])


@pytest.mark.parametrize(
    ("which", "updates", "known"), [("best", [2, 6], True), ("best_by_group", [4, 6], False), ("last", [6, 6], False)]
)
def test_each_choice_is_stored(run: Run, which: Any, updates: list[int], known: bool) -> None:
    assert run.folder is not None
    stored, held = ul.load(run.folder, which=which), run.trained(which)
    assert torch.equal(stored.parameters, held.parameters)
    assert list(stored.updates) == list(held.updates) == updates
    assert stored.score.isfinite().tolist() == held.score.isfinite().tolist() == [known, known]
    wanted = {"best": run.best, "last": run.learner.parameters()}
    assert which not in wanted or torch.equal(stored.parameters, wanted[which])


def test_choices_survive_a_resume(run: Run, tmp_path: Path) -> None:
    assert run.folder is not None
    again = Run.resume(run.folder)
    assert again.best_groups is not None
    assert run.best_groups is not None
    for name, tensor in run.best_groups.state_dict().items():
        assert torch.equal(tensor, again.best_groups.state_dict()[name]), name


def test_what_a_run_does_not_choose_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    plain = ul.train("spread", settings={**TINY, "runs": 1}, learner="ippo", out=tmp_path / "plain", progress=False)
    copy = ul.export(run, tmp_path / "copy")
    for folder, which, message in (
        (tmp_path / "plain", "best_by_group", "needs an environment with group_scores"),
        (copy, "last", "needs a run, not an exported copy"),
        (tmp_path / "plain", "first", "expected one of best, best_by_group, last"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            ul.load(folder, which=which)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected both"):
        plain.trained("best_by_group")


@pytest.mark.parametrize("mean", [False, True])
def test_scores_that_choose_are_of_sampled_or_of_mean_actions(mean: bool, tmp_path: Path) -> None:
    """Sampled actions need noise from the stream of validation, mean actions none."""
    run = Run(configure("pursuit", TINY, {"evaluate_mean_action": mean}), tmp_path / "run")
    seen: list[Any] = []
    policy = run.learner.policy

    def watched(spec: Any, explore: bool = False) -> Any:
        act = policy(spec, explore)

        def choose(obs: Any, noise: Any) -> Any:
            seen.append(noise is None)
            return act(obs, noise)

        return choose

    run.learner.policy = watched  # type: ignore[method-assign]
    run.validate()
    assert set(seen) == {mean}
    run.learner.policy = policy  # type: ignore[method-assign]
    for _ in run.train():
        pass
    assert json.loads((tmp_path / "run" / "run.json").read_text())["evaluate_mean_action"] is mean


def test_a_run_has_scores_of_one_kind(tmp_path: Path) -> None:
    for _ in Run(configure("pursuit", TINY), tmp_path / "run").train():
        pass
    with pytest.raises(ConfigError, match="evaluate_mean_action False -> True"):
        Run.resume(tmp_path / "run", {"evaluate_mean_action": True, "updates": 8})
