"""Teams that observe maps, alone or beside features, with continuous actions or moves, in whole runs of PPO."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import uavlab as ul
from tests.contracts.test_equality import cases, check_equal
from tests.support.fixtures_config import stop_and_resume, train_run
from tests.support.sighted import SHORT, Sighted, registered_sighted
from uavlab.core.errors import ConfigError
from uavlab.core.registry import LEARNERS
from uavlab.core.types import leaves, tree_map
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab.experiment.scores import evaluate_baseline
from uavlab.nets.cnn import StackedCNN
from uavlab.runtime.toggles import Toggle

KINDS: dict[str, dict[str, Any]] = {
    "features": {},
    "maps": {"features": False, "paid": "map"},
    "features, moves": {"moves": True},
    "central": {"team": True, "centred": True},
    "own": {"learner": "ippo"},
}
IN_FILES = ("maps", "features, moves")
"""Kinds whose files are proven each time; the others in the soak."""
LEARNING = {
    **{"gamma": 0.0, "lr": 5e-3, "critic_lr": 5e-3, "epochs": 4, "worlds": 64, "hidden": 32, "width": 8},
    **{"kernels": (2,), "updates": 40, "evaluate_every": 1000, "checkpoint_every": 1000},
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with registered_sighted():
        yield


def config(**changes: Any) -> Config:
    return configure("sighted", {**SHORT, "learner": "mappo", **changes})


def train(folder: Path | None = None, **changes: Any) -> Run:
    return train_run(config(**changes), folder)


def right(run: Run) -> float:
    """Return the mean reward of a trained team, at best 1 and without knowledge 0."""
    return ul.evaluate(run, episodes=50)["right"]["mean"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_team_keeps_the_contract_of_an_environment(kind: str) -> None:
    env = Sighted(**{name: value for name, value in KINDS[kind].items() if name != "learner"})
    assert ul.check_env(env, worlds=3, steps=11).effect[1] > 0
    assert ul.check_learner("mappo", env, {"width": 4, "kernels": (2,), "hidden": 8}).numbers > 0


@pytest.mark.parametrize("moves", [False, True], ids=["actions", "moves"])
@pytest.mark.parametrize("paid", ["map", "feature"])
def test_a_team_learns_what_its_maps_or_its_features_tell(paid: str, moves: bool) -> None:
    assert right(train(paid=paid, moves=moves, **LEARNING)) > 0.6


@pytest.mark.parametrize("paid", ["map", "feature"])
def test_a_network_that_drops_either_learns_nothing(paid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StackedCNN.__call__

    def blind(net: StackedCNN, theta: Tensor, maps: Tensor, features: Tensor | None = None) -> Tensor:
        if paid == "map" or features is None:
            return plain(net, theta, torch.zeros_like(maps), features)
        return plain(net, theta, maps, torch.zeros_like(features))

    monkeypatch.setattr(StackedCNN, "__call__", blind)
    assert abs(right(train(paid=paid, **LEARNING))) < 0.3


def test_features_far_from_zero_need_initial_weights_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feature that pays varies by 0.1 around 5."""
    monkeypatch.setattr(StackedCNN, "initial_for", lambda net, noise, center, scale: net.initial(noise))
    few = {**LEARNING, "updates": 10}
    plain = right(train(**few))
    monkeypatch.undo()
    assert right(train(**few)) > plain + 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_in_the_bits_of_a_whole_one(kind: str, tmp_path: Path) -> None:
    whole, resumed = train(**KINDS[kind]), stop_and_resume(config(**KINDS[kind]), tmp_path / "run")
    assert (resumed.digest, resumed.parts.not_exact_reasons) == (whole.digest, [])
    assert train(seed=1, **KINDS[kind]).digest != whole.digest


@pytest.mark.parametrize("kind", KINDS)
def test_each_run_is_as_it_is_alone(kind: str) -> None:
    together, alone, other = (
        train(**KINDS[kind], **size) for size in ({"runs": 2, "seed": 3}, {"seed": 4}, {"seed": 5})
    )
    torch.testing.assert_close(together.learner.parameters()[1], alone.learner.parameters()[0], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(other.learner.parameters(), alone.learner.parameters(), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize("kind", ["features", "features, moves"])
@pytest.mark.parametrize(("toggle", "changes"), cases(usable=True, compiler=True))
def test_equal_to_plain(kind: str, toggle: Toggle, changes: dict[str, Any]) -> None:
    own = {name: value for name, value in SHORT.items() if name in ("rollout_steps", "width", "kernels")}
    check_equal("sighted", "mappo", toggle, changes, **own, **KINDS[kind])


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize(
    "kind", [kind if kind in IN_FILES else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
def test_a_policy_leaves_as_a_file(kind: str, suffix: str, tmp_path: Path) -> None:
    """The inputs are what the environment returns, by name; the file equals the policy, and one agent its team."""
    run = train(**KINDS[kind], updates=2)
    env, act = run.config.evaluation, run.policy()
    obs = env.observe(env.initial(torch.rand(5, env.spec.initial_noise)))
    noise = torch.rand(5, 2) if env.spec.choices else torch.randn(5, 2, 1)
    given = {**dict(leaves(obs)), "noise": noise}
    if suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime").InferenceSession(str(run.export(tmp_path / "team.onnx")))
        assert {each.name for each in runtime.get_inputs()} <= set(given)
        mean = runtime.run(None, {each.name: given[each.name].numpy() for each in runtime.get_inputs()})[0]
        torch.testing.assert_close(torch.as_tensor(mean), act(obs), rtol=1e-5, atol=1e-5)
        return
    mean, _ = torch.export.load(run.export(tmp_path / "team.pt2")).module()(*given.values())
    torch.testing.assert_close(mean, act(obs), rtol=1e-5, atol=1e-5)
    own = [each if name == "team" else each[:, 1:] for name, each in given.items()]
    alone, _ = torch.export.load(run.export(tmp_path / "agent.pt2", agent=1)).module()(*own)
    torch.testing.assert_close(alone, mean[:, 1:], rtol=1e-5, atol=1e-5)


def test_random_actions_are_those_of_the_task() -> None:
    assert abs(evaluate_baseline(config(), "random", 200, 0)["right"]["mean"]) < 0.1
    assert abs(evaluate_baseline(config(moves=True), "random", 200, 0)["right"]["mean"]) < 0.1


def test_a_policy_refuses_other_observations() -> None:
    run = train(updates=1)
    act, obs = run.policy(), run.config.env.observe(run.config.env.initial(torch.rand(3, 6)))
    assert act(obs).shape == (3, 2, 1)
    for wrong, message in (
        (obs.maps, "got a Tensor; expected a MapObs, as env.observe returns"),
        (replace(obs, features=None), "got a MapObs of maps; expected a MapObs of maps, features, as"),
        (replace(obs, place=torch.zeros(3, 2)), "MapObs of maps, place, features; expected a MapObs of maps, features"),
        (replace(obs, features=obs.features[..., :2]), r"\(3, 2, 2\); expected float32 of shape \(B, 2, 3\)"),
        (tree_map(Tensor.double, obs), "got observations of torch.float64"),
    ):
        with pytest.raises(ConfigError, match=message):
            act(wrong)


@pytest.mark.parametrize("changes", [{"features": False}, {"moves": True}, {"team": True, "centred": True}])
def test_a_policy_of_other_observations_or_actions_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"trained on 2 channels of side 4, 3 features, 0 moves"):
        train(updates=1).policy(Sighted(**changes))


@pytest.mark.parametrize(
    ("learner", "reason"),
    [
        ("masac", "its agents observe maps, MASAC's networks take vectors. Learners that can: mappo, ippo"),
        ("coma", "its agents do not choose moves on maps. Learners that can: mappo, ippo"),
    ],
)
def test_learners_that_do_not_fit_are_named_with_those_that_do(learner: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"learner {learner} cannot learn sighted: {reason}"):
        configure("sighted", {"learner": learner})
    maps_alone = Sighted(moves=True, features=False).spec
    assert LEARNERS["coma"].unsupported(maps_alone) is None
    assert LEARNERS["coma"].unsupported(Sighted(moves=True).spec) == (
        "its agents observe features beside their maps, this learner takes maps alone"
    )


def test_memory_and_shared_critics_are_refused_as_on_maps_alone() -> None:
    for changes in ({"memory": 4}, {"critic": "shared"}):
        with pytest.raises(ConfigError, match=f"^{next(iter(changes))}: got"):
            Run(config(**changes))
