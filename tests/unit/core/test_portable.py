"""Signals of exported policies: shapes, limits, and what a team's policy returns for them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from uavlab.core.portable import Portable, Signal, act_with_and_without_noise, team_inputs, team_outputs, with_memory
from uavlab.core.types import ChoiceObs, EnvSpec, MapObs

VECTORS = EnvSpec(3, obs=5, action=2, horizon=9, dt=1.0, initial_noise=1, step_noise=0, groups=(0, 1, 1))
CHOICES = EnvSpec(3, 5, 1, 9, 1.0, 1, 0, (0, 1, 1), choices=6)
MOVES = EnvSpec(3, 7, 1, 9, 1.0, 1, 0, (0, 0, 0), choices=6, team=4, side=5)


def shapes(signals: dict[str, Signal]) -> dict[str, tuple[int, ...]]:
    return {name: signal.shape for name, signal in signals.items()}


def test_signals_of_a_team() -> None:
    assert shapes(team_inputs(VECTORS)) == {"observations": (3, 5), "noise": (3, 2)}
    assert shapes(team_outputs(VECTORS)) == {"mean": (3, 2), "sampled": (3, 2)}
    maps = {"maps": (3, 7, 5, 5), "team": (4, 5, 5), "place": (3,), "legal": (3, 6), "target_cell": (3, 6)}
    assert shapes(team_inputs(MOVES)) == {**maps, "noise": (3,)}
    assert shapes(team_inputs(CHOICES)) == {"observations": (3, 5), "legal": (3, 6), "noise": (3,)}
    assert shapes(team_outputs(CHOICES)) == {"likeliest": (3,), "sampled": (3,)}
    assert shapes(team_outputs(MOVES)) == {"likeliest": (3,), "sampled": (3,)}
    assert shapes(team_inputs(replace(MOVES, features=2))) == {**maps, "features": (3, 2), "noise": (3,)}
    flying = replace(MOVES, choices=0, action=2, team=0, features=2)
    assert shapes(team_inputs(flying)) == {"maps": (3, 7, 5, 5), "features": (3, 2), "noise": (3, 2)}
    assert shapes(team_outputs(flying)) == {"mean": (3, 2), "sampled": (3, 2)}
    assert list(team_inputs(MOVES)["maps"].axes) == ["agent", "channel", "row", "column"]


@pytest.mark.parametrize("spec", [VECTORS, CHOICES, MOVES])
def test_samples_lie_within_the_limits(spec: EnvSpec) -> None:
    for signal in (*team_inputs(spec).values(), *team_outputs(spec).values()):
        values = signal.sample(500, torch.Generator().manual_seed(0))
        assert (values.shape, values.dtype) == ((500, *signal.shape), signal.dtype)
        if signal.limits is not None:
            assert (values >= signal.limits[0]).all()
            assert (values <= signal.limits[1]).all()
    cells = team_inputs(MOVES)["place"].sample(500, torch.Generator().manual_seed(0))
    assert set(cells.flatten().tolist()) == set(range(25))  # the last cell too
    assert team_inputs(MOVES)["legal"].sample(2, torch.Generator()).all()


def test_a_team_acts_without_and_with_noise() -> None:
    obs, noise = torch.rand(4, 3, 5), torch.rand(4, 3, 2)

    def policy(obs: Tensor, noise: Tensor | None) -> Tensor:
        assert obs.shape == (1, 4, 3, 5)
        return obs[..., :2] if noise is None else obs[..., :2] + noise

    mean, sampled = act_with_and_without_noise(policy, observations=obs, noise=noise)
    assert torch.equal(mean, obs[..., :2])
    assert torch.equal(sampled, mean + noise)
    assert Portable().call is act_with_and_without_noise


class Counts:
    """A policy that acts by its memory, which counts steps."""

    def initial(self, runs: int, worlds: int) -> Tensor:
        return torch.zeros(runs, worlds, 3, 1)

    def __call__(self, obs: Tensor, noise: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
        assert obs.shape == (1, 4, 3, 5)
        return obs[..., :2] + memory if noise is None else obs[..., :2] + memory + noise, memory + 1


def test_memory_is_the_last_input_and_output() -> None:
    inputs, outputs = with_memory(VECTORS, 1, team_inputs(VECTORS), team_outputs(VECTORS))
    assert shapes(inputs) == {**shapes(team_inputs(VECTORS)), "memory": (3, 1)}
    assert shapes(outputs) == {**shapes(team_outputs(VECTORS)), "next_memory": (3, 1)}
    obs, noise, memory = (signal.sample(4, torch.Generator().manual_seed(0)) for signal in inputs.values())
    mean, sampled, after = act_with_and_without_noise(Counts(), observations=obs, noise=noise, memory=memory)
    assert torch.equal(mean, obs[..., :2] + memory)
    assert torch.equal(sampled, mean + noise)
    assert torch.equal(after, memory + 1)
    assert with_memory(VECTORS, 0, inputs, outputs) == (inputs, outputs)


def test_vectors_and_legal_moves_reach_the_policy_by_name() -> None:
    inputs = {name: signal.sample(2, torch.Generator()) for name, signal in team_inputs(CHOICES).items()}

    def policy(obs: ChoiceObs, noise: Tensor | None) -> Tensor:
        assert torch.equal(obs.features[0], inputs["observations"])
        assert torch.equal(obs.legal[0], inputs["legal"])
        return obs.legal.long().argmax(-1)

    likeliest, _ = act_with_and_without_noise(policy, **inputs)
    assert likeliest.shape == (2, 3)


def test_maps_reach_the_policy_by_name() -> None:
    inputs = {name: signal.sample(2, torch.Generator()) for name, signal in team_inputs(MOVES).items()}

    def policy(obs: MapObs, noise: Tensor | None) -> Tensor:
        for name, value in inputs.items():
            assert name == "noise" or torch.equal(getattr(obs, name)[0], value)
        return obs.place

    assert torch.equal(act_with_and_without_noise(policy, **inputs)[1], inputs["place"])
