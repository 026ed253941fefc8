"""Noise on the weights of actors: updates written out, collected with the noise, scored without, resumed exactly."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.device_checks import small
from tests.support.fixtures_config import stop_and_resume, train_run
from tests.unit.learners.ppo.test_algorithm import (
    CONFIGS,
    SPEC,
    Slow,
    T,
    W,
    assert_equal,
    batch_of,
    build,
    distance,
    evaluate,
    steps,
)
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import initial_memory, step_policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import tree_map
from uavlab.experiment import run_state
from uavlab.experiment.build import assemble
from uavlab.experiment.config import configure
from uavlab.learners.ppo import ppo
from uavlab.learners.ppo.ppo import PPO
from uavlab.training import training

NOISY = {name: replace(config, noisy=True) for name, config in CONFIGS.items()}
TEAMS = [("spread", 0), ("spread", 6), ("pursuit", 0), ("mapping", 0), ("assignment", 0)]  # with units of memory
Patch = Callable[[pytest.MonkeyPatch], None]


class SlowNoise(Slow):
    """The update of ``Slow`` by actors with noise, weight after weight, from one normal number for each of a layer."""

    def __init__(self, learner: PPO, normal: Tensor) -> None:
        super().__init__(learner)
        self.normal, self.layer = normal, learner.team.actor_net.weights[-1]

    def log_prob_and_entropy(self, obs: Tensor, action: Tensor, i: int) -> tuple[Tensor, Tensor]:
        network = self.team.networks[i]
        row = explored(self.actor[network], self.normal[0, network].tolist(), *self.layer)
        return self.gaussian(evaluate(self.team.actor_net, row, obs), action)


def explored(row: Tensor, normal: list[float], inputs: int, outputs: int) -> Tensor:
    """Return a network's row with noise, written out."""
    factor = [math.copysign(math.sqrt(abs(x)), x) for x in normal]
    places = [(i, inputs + j) for i in range(inputs) for j in range(outputs)]
    noise = [factor[i] * factor[j] for i, j in places] + factor[inputs:]
    start = len(row) - 2 * len(noise)
    last = [row[start + n] + row[start + len(noise) + n] * each for n, each in enumerate(noise)]
    return torch.cat((row[:start], torch.stack(last)))


def normals(learner: PPO, count: int) -> list[Tensor]:
    """Return the numbers that the stream of the noise holds."""
    rng, networks = Streams((0,), dtype=torch.float64), len(set(learner.team.networks))
    return [rng.normal("noisy", networks, sum(learner.team.actor_net.weights[-1])) for _ in range(count)]


def two_updates(name: str) -> tuple[PPO, SlowNoise]:
    learner, rng = build(NOISY[name])
    first, second, _ = normals(learner, 3)
    slow = SlowNoise(learner, first)
    for normal in (first, second):
        data, noise = steps(rng), learner.update_noise(rng, T * W)
        slow.normal = normal
        slow.update(data, noise[0])
        learner.update(batch_of(data), noise)
    return learner, slow


@pytest.mark.parametrize("name", ["central", "not shared", "stops"])
def test_two_updates_equal_those_written_out(name: str) -> None:
    learner, slow = two_updates(name)
    assert_equal(learner, slow)
    stds = learner.actor.parameter.detach()[:, learner.team.actor_net.count :]
    assert (stds - 0.5 / math.sqrt(8))[:, -4:].abs().min() > 1e-6  # those of the biases, which no dead unit stops


def keep_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw noise once for all."""
    draw, first = PPO._draw_noise, {}
    patch.setattr(PPO, "_draw_noise", lambda self, rng: first.setdefault("noise", draw(self, rng)).clone())


def learn_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Evaluate the weights without noise in the loss, as if they had collected the batch."""
    patch.setattr(ppo, "add_noise", lambda theta, noise: theta[:, : -noise.shape[-1]])


def learn_no_stds(patch: pytest.MonkeyPatch) -> None:
    add = ppo.add_noise

    def fixed(theta: Tensor, noise: Tensor) -> Tensor:
        mean, std = theta.tensor_split([-noise.shape[-1]], -1)
        return add(torch.cat((mean, std.detach()), -1), noise)

    patch.setattr(ppo, "add_noise", fixed)


def noise_for_each_weight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ppo, "factorised_noise", lambda normal, inputs: normal.repeat(1, 1, 5)[..., : 9 * 4])


@pytest.mark.parametrize("mutant", [keep_noise, learn_without_noise, learn_no_stds, noise_for_each_weight])
def test_a_mutant_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert distance(*two_updates("central")) > 1e-5


def collected_and_scored(env: str, memory: int) -> tuple[bool, bool, bool]:
    """Return whether a policy explores, and whether the one that is scored, and the saved one, have no noise.

    Of two runs of one learner and some updates.
    """
    config = small(env, "mappo", "cpu", noisy=True, runs=2, **({"memory": memory} if memory else {}))
    rt, rng, learner, source = assemble(config)
    for _ in training(source, learner, rng, rt, 0, 2):
        pass
    spec = config.env.spec
    state = config.env.initial(rng.uniform("test", 50, spec.initial_noise).flatten(0, 1))
    obs = tree_map(lambda leaf: leaf.unflatten(0, (2, 50)), config.env.observe(state))
    noise = acting_noise(rng, "test", 50, spec)

    def act(policy: Any) -> Tensor:
        return step_policy(policy, obs, noise, initial_memory(policy, 2, 50))[0]

    plain = replace(config.learner, noisy=False)
    rows = learner.actor.parameter.detach()[:, : learner.team.actor_net.count].unflatten(0, (2, -1))
    expected = act(PPO.load_policy(plain, spec, spec, rows))
    scored, again = (act(learner.policy(spec)) for _ in range(2))
    saved = act(PPO.load_policy(config.learner, spec, spec, learner.parameters()))
    explores = act(learner.policy(spec, explore=True))
    without = torch.equal(scored, expected) and torch.equal(scored, again)
    return not torch.equal(explores, expected), without, torch.equal(saved, expected)


@pytest.mark.parametrize(("env", "memory"), TEAMS)
def test_teams_explore_with_noise_and_are_scored_without(env: str, memory: int) -> None:
    assert collected_and_scored(env, memory) == (True, True, True)


def score_with_noise(patch: pytest.MonkeyPatch) -> None:
    policy = PPO.policy
    patch.setattr(PPO, "policy", lambda self, spec, explore=False: policy(self, spec, explore=True))


def save_with_noise(patch: pytest.MonkeyPatch) -> None:
    def parameters(self: PPO) -> Tensor:
        return ppo.add_noise(self.actor.parameter.detach(), self.noise).unflatten(0, (self.runs, -1))

    patch.setattr(PPO, "parameters", parameters)


def collect_without_noise(patch: pytest.MonkeyPatch) -> None:
    policy = PPO.policy
    patch.setattr(PPO, "policy", lambda self, spec, explore=False: policy(self, spec))


@pytest.mark.parametrize("mutant", [collect_without_noise, score_with_noise, save_with_noise])
def test_noise_at_the_wrong_place_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert collected_and_scored("spread", 0) != (True, True, True)


def test_a_batch_is_collected_with_the_noise_of_its_update() -> None:
    """Old log densities of an update are those of the policy that explored, written out."""
    learner, _ = build(NOISY["not shared"])
    (normal,) = normals(learner, 1)
    layer = learner.team.actor_net.weights[-1]
    rows = [explored(row, own.tolist(), *layer) for row, own in zip(learner.actor.parameter, normal[0], strict=True)]
    obs = torch.randn(1, 5, SPEC.agents, SPEC.obs, dtype=torch.float64)
    expected = PPO.load_policy(CONFIGS["not shared"], SPEC, SPEC, torch.stack(rows)[None])(obs, None)
    torch.testing.assert_close(learner.policy(SPEC, explore=True)(obs, None), expected, rtol=1e-12, atol=1e-12)
    assert (learner.policy(SPEC)(obs, None) - expected).abs().max() > 1e-3


def test_noise_differs_between_seeds_networks_and_batches() -> None:
    learner, rng = build(NOISY["not shared"], seeds=(3, 4))
    seen = [learner.noise.clone()]
    for _ in range(2):
        learner.update(batch_of(steps(rng)), learner.update_noise(rng, T * W))
        seen.append(learner.noise.clone())
    rows = torch.cat(seen)  # 3 batches, 2 runs, 3 networks
    assert len({tuple(row.tolist()) for row in rows}) == len(rows) == 18


def test_runs_together_equal_runs_apart() -> None:
    together, rng = build(NOISY["not shared"], seeds=(5, 8))
    data = [steps(rng) for _ in range(2)]
    for each in data:
        together.update(batch_of(each), together.update_noise(rng, T * W))
    for run, seed in enumerate((5, 8)):
        alone, own = build(NOISY["not shared"], seeds=(seed,))
        for each in data:
            part = tree_map(lambda leaf, r=run: leaf[r : r + 1], each)
            alone.update(batch_of(part), alone.update_noise(own, T * W))
        assert torch.equal(together.noise.unflatten(0, (2, -1))[run], alone.noise)
        both = together.actor.parameter.detach().unflatten(0, (2, -1))[run]
        torch.testing.assert_close(both, alone.actor.parameter.detach(), rtol=1e-9, atol=1e-12)


def resumed_equals_whole(folder: Path) -> bool:
    config = small("spread", "mappo", "cpu", noisy=True, updates=6, checkpoint_every=2)
    return run_state.digest(stop_and_resume(config, folder)) == run_state.digest(train_run(config))


def test_a_run_is_resumed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resumed_equals_whole(tmp_path / "good")
    whole = PPO.state_dict

    def forget(self: PPO) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in whole(self).items() if name != "noise"}

    monkeypatch.setattr(PPO, "state_dict", forget)
    monkeypatch.setattr(
        PPO, "load_state_dict", lambda self, state: [t.copy_(state[n]) for n, t in forget(self).items()]
    )
    assert not resumed_equals_whole(tmp_path / "broken")


def test_without_noise_nothing_is_drawn_or_stored() -> None:
    learner, rng = build()
    assert isinstance(learner.update_noise(rng, T * W), Tensor)
    assert "noise" not in learner.state_dict()
    assert not any(name.startswith("noisy") for name in rng.state_dict())
    noisy, own = build(NOISY["central"])
    assert "noise" in noisy.state_dict()
    assert any(name.startswith("noisy") for name in own.state_dict())
    assert torch.equal(noisy.parameters(), learner.parameters())  # they begin with the same weights


def test_the_size_of_deviations_is_reported() -> None:
    learner, rng = build(NOISY["central"], seeds=(0, 1))
    update = learner.update(batch_of(steps(rng)), learner.update_noise(rng, T * W))
    stds = learner.actor.parameter.detach().unflatten(0, (2, -1))[..., learner.team.actor_net.count :]
    assert update.metrics["noise_std"].tolist() == pytest.approx([run.abs().mean().item() for run in stds])


@pytest.mark.parametrize("learner", ["masac", "coma"])
def test_other_learners_refuse_it(learner: str) -> None:
    task = "mapping" if learner == "coma" else "spread"
    with pytest.raises(ConfigError, match="noisy"):
        configure(task, {"learner": learner, "noisy": True})
    assert configure(task, {"learner": "ippo", "noisy": True}).learner.noisy
