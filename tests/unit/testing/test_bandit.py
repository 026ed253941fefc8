"""The task of one step: rewards on paper, the contract of an environment, and learners that improve on it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch

import uavlab as ul
from tests.support.bandit import Bandit, Turn
from tests.support.registries import outside, registered_outside
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import EnvSpec, MapObs
from uavlab.testing import check_env


@pytest.mark.parametrize("env", [Bandit(), Bandit("vectors"), Bandit("maps")], ids=lambda env: env.moves)
def test_it_is_an_environment_of_one_step(env: Bandit) -> None:
    report = check_env(env, worlds=3, steps=4)
    assert (report.started, report.terminated, report.truncated) == (45, 36, 0)  # 3 rollouts of 3 worlds, 4 steps each
    assert report.effect[0] == 0.0  # observations are constant
    assert report.effect[1] > 0.0


class Teamless(Bandit):
    """Moves without maps of the team."""

    @property
    def spec(self) -> EnvSpec:
        return replace(super().spec, team=0)

    def observe(self, state: Turn) -> MapObs:
        obs = super().observe(state)
        return replace(obs, team=None)


def test_observations_that_are_not_there_have_no_size() -> None:
    assert check_env(Teamless("maps"), worlds=3, steps=4).observations == (1.0, 1.0, 1.0)


def test_rewards_fall_with_the_distance_to_the_best_action() -> None:
    env = Bandit()
    state = env.initial(torch.zeros(2, 1))
    action = torch.tensor([[[0.5], [-1.0]], [[1.0], [9.0]]])  # 9 acts as 1 does
    assert env.reward(state, action, state).tolist() == [[0.0, -15.0], [-5.0, -5.0]]


@pytest.mark.parametrize("moves", ["vectors", "maps"])
def test_one_move_is_the_best(moves: str) -> None:
    env = Bandit(moves)
    state = env.initial(torch.zeros(2, 1))
    assert env.reward(state, torch.tensor([[2, 0], [3, 1]]), state).tolist() == [[0.0, -10.0], [-10.0, -10.0]]
    assert env.observe(state).legal.all()


def test_no_agent_closes_a_move_of_another_one() -> None:
    env = Bandit("maps")
    cells = env.observe(env.initial(torch.zeros(2, 1))).target_cell[0]
    assert len(cells.unique()) == cells.numel()


@dataclass(frozen=True)
class OnMaps(Bandit):
    """Moves in turn by default, because learners are refused by an environment's defaults."""

    moves: Literal["none", "vectors", "maps"] = "maps"


def gain(learner: str, moves: Any, settings: dict[str, Any]) -> tuple[float, float]:
    """Return the mean reward without updates, and how much higher it is after training."""
    own = {"runs": 4, "evaluate_episodes": 256, "device": "cpu", **settings}
    own |= {"log_every": 1000, "evaluate_every": 1000, "updates": settings.get("updates", 60)}
    env = OnMaps() if moves == "maps" else Bandit(moves)
    run = ul.train(env, learner=learner, settings=own, progress=False)
    start = ul.start(env, learner=learner, settings=own)
    ENVIRONMENTS.pop(type(env).__name__)  # other tests list what is registered
    before, after = (ul.evaluate(each, episodes=256)["return"]["mean"] for each in (start, run))
    return before, after - before


REPLAY = {"worlds": 16, "batch": 64, "learning_starts": 64, "capacity": 4096, "hidden": 16, "updates": 400}
EPISODES = {"worlds": 16, "width": 4, "hidden": 16, "kernels": [3, 2], "minibatches": 2, "passes": 2, "lr": 1e-3}
STEPS = {"worlds": 16, "rollout_steps": 8, "hidden": 16, "minibatches": 2, "lr": 3e-3}


@pytest.mark.parametrize(
    ("learner", "moves", "settings"),
    [
        ("masac", "none", REPLAY),
        ("masac", "vectors", REPLAY),
        ("coma", "maps", {**EPISODES, "updates": 200}),
        ("mappo", "none", STEPS),
        ("mappo", "none", {**STEPS, "memory": 6}),
    ],
)
def test_learners_improve(learner: str, moves: str, settings: dict[str, Any]) -> None:
    before, more = gain(learner, moves, settings)
    assert more > -0.25 * before > 0


def test_a_learner_of_the_wrong_sign_does_not() -> None:
    class WrongSign(outside.Reinforce):
        def loss(self, *args: torch.Tensor) -> Any:
            loss, metrics = super().loss(*args)
            return -loss, metrics

    with registered_outside():
        ul.learner("wrong_sign", settings=outside.ReinforceConfig, collector="on_policy")(WrongSign)
        before, more = gain("reinforce", "none", {"worlds": 16})
        assert more > -0.25 * before > 0
        assert gain("wrong_sign", "none", {"worlds": 16})[1] < 0
