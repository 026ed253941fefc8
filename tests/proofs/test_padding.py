"""Teams of groups whose actions have different widths, in whole runs: what an agent lacks stays 0 wherever it acts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import uavlab as ul
from tests.support.fixtures_config import stop_and_resume, train_run
from tests.support.uneven import NARROW, SHORT, Uneven, registered_uneven
from tests.unit.envs.leader_follower.test_presence import SLOTS
from uavlab import evaluation
from uavlab.core.types import leaves
from uavlab.experiment import scores
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.learners.ppo import ppo

CASES: dict[str, dict[str, Any]] = {
    "masac": {},
    "masac, loop": {"update": "loop", "acting": "loop"},
    "masac, compiled": {"compile": "default"},
    "mappo": {},
    "mappo, loop": {"acting": "loop"},
    "mappo, memory": {"memory": 4},
    "ippo": {"share": False},
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with registered_uneven():
        yield


def config(case: str, **changes: Any) -> Config:
    learner, ppo = case.split(",")[0], {"rollout_steps": 4, "epochs": 1, "minibatches": 1, "worlds": 4, "hidden": 8}
    known = configure("uneven", {"learner": learner}).values
    values = {**SHORT, **ppo, **CASES[case], **changes, "learner": learner}
    return configure("uneven", {name: value for name, value in values.items() if name in known})


def beyond(figures: Any) -> float:
    return figures["beyond"]["mean"]


@pytest.mark.parametrize("case", CASES)
def test_no_agent_acts_in_a_dimension_that_it_lacks(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # traced, without kernels
    run = Run(config(case), tmp_path / "run")
    for _ in run.train():
        pass
    actions = [leaf for name, leaf in leaves(run.source.next().data) if name == "action"]
    assert (actions[0][..., :NARROW, 2] == 0).all()
    assert (actions[0][..., NARROW:, 2] != 0).any()
    for which in ("best", "last", "best_by_group"):
        for mean_action in (False, True):
            assert beyond(ul.evaluate(ul.load(tmp_path / "run", which=which), episodes=3, mean_action=mean_action)) == 0


def test_padding_that_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric of these tests grows with each number, of the policy and of the baseline."""
    run = ul.train(
        "uneven", settings={"learner": "mappo", "rollout_steps": 4, "epochs": 1, "hidden": 8}, updates=1, progress=False
    )
    monkeypatch.setattr(ppo, "padded_actions", lambda spec, device: None)
    assert beyond(ul.evaluate(run, episodes=3)) > 0.01
    monkeypatch.setattr(scores, "padded_actions", lambda spec, device: None)
    assert beyond(scores.evaluate_baseline(config("masac"), "random", 3, 0)) > 0.01


def test_random_actions_and_cross_play() -> None:
    assert beyond(scores.evaluate_baseline(config("masac"), "random", 3, 0)) == 0
    run = ul.train("uneven", settings={**SHORT}, progress=False)
    play = ul.cross_play({"own": run, "random": "random"}, episodes=3)
    assert {row["figures"]["beyond"]["mean"] for row in play.rows} == {0.0}
    noise = torch.randn(1, 5, 3, 3)
    action = evaluation.random_policy(torch.zeros(1, 5, 3, 3), noise)
    torch.testing.assert_close(action, torch.erf(noise / 2**0.5))  # without padding as before


def test_a_run_goes_on_in_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    resumed = stop_and_resume(config("masac"), tmp_path / "run")
    assert resumed.digest == train_run(config("masac")).digest


@pytest.mark.parametrize("learner", ["masac", "mappo", "ippo"])
def test_the_contract_of_a_learner(learner: str) -> None:
    assert ul.check_learner(learner, Uneven(), {"hidden": 8}).numbers > 0


def test_worlds_that_lack_agents_keep_the_contract() -> None:
    assert ul.check_env(SLOTS).steps > 0
