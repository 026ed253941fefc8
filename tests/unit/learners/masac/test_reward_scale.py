"""Rewards divided by their size so far: by hand, and updates that do not depend on the unit of rewards."""

import pytest
import torch
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Scale, Transition
from uavlab.learners.masac.loop import MASACLoop
from uavlab.learners.masac.masac import MASAC, MASACConfig, MASACVmap, RewardScale
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

SPEC = EnvSpec(agents=2, obs=3, action=2, horizon=9, dt=1.0, initial_noise=0, step_noise=0, groups=(0, 1))
ROWS = 8


def test_factors_by_hand() -> None:
    scale = RewardScale(1, 3, torch.zeros((), dtype=torch.float64))
    first = torch.tensor([[[3.0, 0.0, 0.0], [4.0, 0.0, 0.0]]], dtype=torch.float64)
    assert scale.follow(first)[0].tolist() == pytest.approx([12.5**-0.5, 1, 1])  # (9 + 16) / 2
    second = torch.tensor([[[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    assert scale.follow(second)[0].tolist() == pytest.approx([6.5**-0.5, 1, 1])  # (12.5 + 0.5) / 2; (0 + 2) / 2
    assert scale.square[0].tolist() == pytest.approx([6.5, 1, 0])


def test_old_batches_fade_after_a_thousand() -> None:
    scale = RewardScale(1, 1, torch.zeros((), dtype=torch.float64))
    for _ in range(1000):
        scale.follow(torch.full((1, 4, 1), 10.0, dtype=torch.float64))
    for _ in range(2000):
        scale.follow(torch.ones(1, 4, 1, dtype=torch.float64))
    assert scale.square.item() == pytest.approx(1 + 99 * (1 - 1 / 1000) ** 2000)


def batch(unit: float, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, ROWS, *shape, generator=draw, dtype=torch.float64)

    data = Transition(
        obs=normal(2, 3),
        action=normal(2, 2).tanh(),
        reward=unit * (normal(2) + 0.5),
        next_obs=normal(2, 3),
        terminated=normal(2) > 1,
        truncated=normal() > 1,
    )
    return Batch(data, torch.arange(ROWS)[None])


def train(kind: type, unit: float, form: str = "batched", **config: float) -> dict[str, Tensor]:
    rng = Streams([0], dtype=torch.float64)
    flat = torch.zeros(1, 2, 3, dtype=torch.float64)
    rt = Runtime(requested=Toggles(update=form))
    learner = kind(MASACConfig(hidden=6, **config), SPEC, Scale(flat, flat + 1), rng, rt)
    for number in range(5):
        learner.update(batch(unit, number), learner.update_noise(rng, ROWS))
    return learner.state_dict()


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    names = [name for name in one if name.endswith(("parameter", "target"))]
    return max((one[name] - other[name]).abs().max().item() for name in names)


def test_updates_do_not_depend_on_the_unit_of_rewards() -> None:
    assert largest_difference(train(MASAC, 1.0), train(MASAC, 1000.0)) < 1e-9
    fixed = largest_difference(train(MASAC, 1.0, reward_scale=1.0), train(MASAC, 1000.0, reward_scale=1.0))
    assert fixed > 1e-3


def test_a_fixed_factor_multiplies_rewards() -> None:
    assert largest_difference(train(MASAC, 3.0, reward_scale=1.0), train(MASAC, 1.0, reward_scale=3.0)) < 1e-9


@pytest.mark.parametrize(("kind", "form"), [(MASACLoop, "loop"), (MASACVmap, "vmap")])
def test_all_forms_follow_rewards(kind: type, form: str) -> None:
    one, other = train(MASAC, 20.0), train(kind, 20.0, form)
    for name in ("rewards.square", "rewards.count"):
        assert torch.equal(one[name], other[name]), name
    alone = train(kind, 1.0, form)
    pairs = ((each, alone[name]) for name, each in other.items() if "parameter" in name or "target" in name)
    assert max((a - b).abs().max().item() for a, b in pairs) < 1e-9


def test_its_state_is_part_of_the_learners() -> None:
    state = train(MASAC, 1.0)
    assert state["rewards.count"].item() == 5
    assert state["rewards.square"].shape == (1, 2)
    assert not any(name.startswith("rewards") for name in train(MASAC, 1.0, reward_scale=1.0))
