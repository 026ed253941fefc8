"""Squashed Gaussians against torch.distributions; choices in turn against a plain loop, and by frequency."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from uavlab.core.types import ChoiceObs
from uavlab.ops.action_sampling import (
    ALMOST,
    masked_policy,
    open_moves,
    open_moves_in_turn,
    open_moves_of,
    random_moves,
    sample_categorical,
    sample_in_turn,
    sample_moves,
    squashed_gaussian,
    squashed_log_prob,
    without_padding,
)


def random_choices(
    worlds: int = 200, agents: int = 4, moves: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    logits = torch.randn(worlds, agents, moves, generator=dice)
    legal = torch.rand(worlds, agents, moves, generator=dice) < 0.6
    legal[..., 0] |= ~legal.any(-1)
    cells = torch.randint(6, (worlds, agents, moves), generator=dice)
    return logits, legal, cells, torch.rand(worlds, agents, generator=dice)


def slow_open(legal: list[bool], cells: list[int], occupied: list[int]) -> list[bool]:
    free = [may and cell not in occupied for may, cell in zip(legal, cells, strict=True)]
    return free if any(free) else legal


def test_equals_a_plain_loop() -> None:
    logits, legal, cells, noise = random_choices()
    action = sample_in_turn(logits, legal, cells, noise, 0.3)
    open_ = open_moves_in_turn(legal, cells, action)
    blocked = 0
    for world in range(len(logits)):
        occupied: list[int] = []
        for agent in range(4):
            free = slow_open(legal[world, agent].tolist(), cells[world, agent].tolist(), occupied)
            assert open_[world, agent].tolist() == free
            exponents = [torch.exp(x).item() if may else 0.0 for x, may in zip(logits[world, agent], free, strict=True)]
            chance = [0.7 * e / sum(exponents) + 0.3 * may / sum(free) for e, may in zip(exponents, free, strict=True)]
            edges = torch.tensor(chance, dtype=torch.float64).cumsum(0)
            move = int((edges <= noise[world, agent].item()).sum())
            assert int(action[world, agent]) == move
            occupied.append(int(cells[world, agent, move]))
            blocked += free != legal[world, agent].tolist()
    assert blocked > 100


def test_choosing_at_once_would_be_noticed() -> None:
    logits, legal, cells, noise = random_choices()
    action = sample_in_turn(logits, legal, cells, noise)
    at_once = torch.stack(
        [sample_in_turn(logits[:, [i]], legal[:, [i]], cells[:, [i]], noise[:, [i]])[:, 0] for i in range(4)], 1
    )
    assert (action != at_once).any()
    assert torch.equal(action[:, 0], at_once[:, 0])


def test_at_once_every_agent_chooses_without_the_others() -> None:
    """By the masked softmax's shares; the mutant that ignores the mask draws what is forbidden."""
    count = 100_000
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 3.0]]).expand(count, 2, 3)
    legal = torch.tensor([[True, False, True], [True, True, False]]).expand(count, 2, 3)
    noise = torch.rand(count, 2, generator=torch.Generator().manual_seed(0))
    obs = ChoiceObs(features=torch.zeros(count, 2, 1), legal=legal)
    for draw, third in ((sample_moves(logits, obs, noise), 1 / (1 + math.exp(-2))), (random_moves(obs, noise), 0.5)):
        shares = [[(draw[:, agent] == move).double().mean().item() for move in range(3)] for agent in range(2)]
        assert shares[0] == pytest.approx([1 - third, 0.0, third], abs=0.005)
        assert shares[1] == pytest.approx([0.5, 0.5, 0.0], abs=0.005)
    assert sample_moves(logits, obs, None)[0].tolist() == [2, 0]
    free = ChoiceObs(features=obs.features, legal=torch.ones_like(legal))
    assert (sample_moves(logits, free, noise)[:, 1] == 2).any()
    assert torch.equal(open_moves_of(obs, draw), legal)


def test_without_noise_the_likeliest_open_move_is_chosen() -> None:
    logits = torch.tensor([[[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]]])
    legal, cells = torch.ones(1, 2, 3, dtype=torch.bool), torch.tensor([[[7, 8, 9], [7, 8, 9]]])
    assert sample_in_turn(logits, legal, cells, None).tolist() == [[1, 2]]


def test_where_all_is_taken_anything_legal_is_open() -> None:
    legal, cells = torch.tensor([[True, False]]), torch.tensor([[4, 5]])
    assert open_moves(legal, cells, torch.tensor([[4]])).tolist() == [[True, False]]
    assert open_moves(legal, cells, torch.tensor([[9]])).tolist() == [[True, False]]


def test_frequencies_equal_the_probabilities() -> None:
    chance = torch.tensor([0.5, 0.0, 0.3, 0.2])
    noise = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    counts = sample_categorical(chance.expand(100_000, -1), noise).bincount(minlength=4) / 100_000
    assert counts.tolist() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.006)


@pytest.mark.parametrize("noise", [0.0, 0.5, ALMOST, 1 - 2**-24])
def test_closed_moves_are_never_drawn(noise: float) -> None:
    dice = torch.Generator().manual_seed(1)
    open_ = torch.rand(10_000, 6, generator=dice) < 0.4
    open_[:, 2] |= ~open_.any(-1)
    chance = masked_policy(10 * torch.randn(10_000, 6, generator=dice), open_, 0.1)
    move = sample_categorical(chance, torch.full((10_000,), noise))
    assert open_.gather(-1, move[:, None]).all()


def test_exploration_spreads_over_open_moves() -> None:
    open_ = torch.tensor([True, True, False, True])
    even = masked_policy(torch.tensor([5.0, 0.0, 9.0, -5.0]), open_, 1.0)
    assert even.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    own = masked_policy(torch.log(torch.tensor([0.2, 0.2, 0.2, 0.4])), open_, 0.5)
    assert own.tolist() == pytest.approx([0.5 * 0.25 + 1 / 6, 0.5 * 0.25 + 1 / 6, 0, 0.5 * 0.5 + 1 / 6])


def test_masked_policy_handles_extreme_logits() -> None:
    """A softmax over all moves that is masked afterwards would be 0 / 0 here."""
    probability = masked_policy(torch.tensor([1000.0, 0.0, 0.0]), torch.tensor([False, True, True]), 0.0)
    assert probability.tolist() == [0.0, 0.5, 0.5]


def test_agrees_with_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(3, 50, 4, 2, generator=generator, dtype=torch.float64) for _ in range(3))
    log_std = log_std.clamp(-2, 0.3)
    action, log_prob = squashed_gaussian(mean, log_std, noise)
    reference = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)])
    assert log_prob.shape == (3, 50, 4)
    safe = action.abs().amax(-1) < 0.999  # atanh inside the reference keeps its digits there
    assert safe.float().mean() > 0.5
    torch.testing.assert_close(log_prob[safe], reference.log_prob(action)[safe], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise), rtol=1e-12, atol=1e-14)


def test_by_hand_at_the_mode() -> None:
    # u = 0, a = 0: the correction log(1 - 0) vanishes; log N = -0.5 log(2 pi) - log 0.5 per dimension, two of them.
    zero = torch.zeros(1, 2, dtype=torch.float64)
    action, log_prob = squashed_gaussian(zero, zero + math.log(0.5), zero)
    assert action.tolist() == [[0, 0]]
    assert log_prob.item() == pytest.approx(2 * (math.log(2) - 0.5 * math.log(2 * math.pi)))


def naive(u: torch.Tensor) -> torch.Tensor:
    """Evaluate log(1 - tanh(u)^2) as it is usually written."""
    return torch.log(1 - torch.tanh(u).square())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_accurate_where_the_naive_form_has_no_digits_left(sign: int, dtype: torch.dtype) -> None:
    # 1 - tanh(u)^2 = 4 e^(-2|u|) / (1 + e^(-2|u|))^2, so its log at |u| = 20 is log 4 - 40 - 2 log1p(e^-40).
    u, zero = torch.tensor([[20.0 * sign]], dtype=dtype), torch.zeros(1, 1, dtype=dtype)
    correction = math.log(4) - 40 - 2 * math.log1p(math.exp(-40))
    expected = -0.5 * math.log(2 * math.pi) - correction
    _, log_prob = squashed_gaussian(u, zero, zero)
    assert log_prob.item() == pytest.approx(expected, rel=4 * torch.finfo(dtype).eps)
    assert naive(u).item() == -math.inf  # the broken variant, seen to be broken


def test_density_integrates_to_one() -> None:
    # Midpoints of a fine grid in u: sum of p(a) da with da = (1 - a^2) du.
    u = torch.linspace(-12, 12, 24_001, dtype=torch.float64)[:, None]
    mean, log_std = torch.full_like(u, 0.7), torch.full_like(u, math.log(0.8))
    action, log_prob = squashed_gaussian(mean, log_std, (u - 0.7) / 0.8)
    total = (log_prob.exp() * (1 - action[:, 0].square())).sum() * 1e-3
    assert total.item() == pytest.approx(1, abs=1e-6)


def test_gradients_are_finite_at_the_edge() -> None:
    mean = torch.tensor([[20.0, -20.0]], requires_grad=True)
    log_std = torch.zeros(1, 2, requires_grad=True)
    _, log_prob = squashed_gaussian(mean, log_std, torch.zeros(1, 2))
    gradients = torch.autograd.grad(log_prob.sum(), (mean, log_std))
    # d/du of -log(1 - tanh(u)^2) is 2 tanh(u): 2 at 20, -2 at -20.
    assert gradients[0].tolist() == [[2, -2]]
    assert gradients[1].isfinite().all()


def test_the_density_of_an_action_is_that_of_its_sample() -> None:
    noise = torch.Generator().manual_seed(1)
    mean, log_std, normal = (torch.randn(500, 3, generator=noise, dtype=torch.float64) for _ in range(3))
    action, log_prob = squashed_gaussian(mean, 0.3 * log_std, normal)
    torch.testing.assert_close(squashed_log_prob(mean, 0.3 * log_std, action), log_prob, rtol=1e-7, atol=1e-7)
    slow = Independent(TransformedDistribution(Normal(mean, (0.3 * log_std).exp()), TanhTransform()), 1)
    torch.testing.assert_close(squashed_log_prob(mean, 0.3 * log_std, action), slow.log_prob(action))


def test_an_action_that_was_rounded_to_the_border_has_a_density_and_a_gradient() -> None:
    mean = torch.zeros(2, 1, requires_grad=True)
    log_prob = squashed_log_prob(mean, torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]))
    (slope,) = torch.autograd.grad(log_prob.sum(), mean)
    assert log_prob.isfinite().all()
    assert slope[:, 0].tolist() == pytest.approx([7.25, -7.25], abs=0.05)


PADDING = torch.tensor([[False, False], [False, True]])  # of two agents, the second has one dimension


def test_padding_has_neither_density_nor_gradient() -> None:
    """Deviation 0.5, noise 0: log N = -0.5 log(2 pi) + log 2 in each own dimension; at atanh(0.5) less log 0.75."""
    mean = torch.tensor([[0.0, 0.0], [math.atanh(0.5), 9.0]], dtype=torch.float64, requires_grad=True)
    log_std = torch.full((2, 2), math.log(0.5), dtype=torch.float64, requires_grad=True)
    action, log_prob = squashed_gaussian(mean, log_std, torch.zeros(2, 2, dtype=torch.float64), PADDING)
    assert action.tolist() == [[0, 0], [pytest.approx(0.5), 0]]
    one = math.log(2) - 0.5 * math.log(2 * math.pi)
    assert log_prob.tolist() == pytest.approx([2 * one, one - math.log(0.75)])
    for value in (log_prob.sum(), action.sum(), squashed_log_prob(mean, log_std, action.detach(), PADDING).sum()):
        slopes = torch.autograd.grad(value, (mean, log_std), retain_graph=True, allow_unused=True)
        assert all(slope is None or slope[1, 1] == 0 for slope in slopes)
    wide = squashed_gaussian(mean, log_std, torch.zeros(2, 2, dtype=torch.float64))[1]  # the mutant
    assert wide[0].item() == log_prob[0].item()
    assert wide[1].item() > log_prob[1].item() + 1


def test_the_density_of_an_action_has_no_padding() -> None:
    mean, log_std, noise = torch.randn(3, 5, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    action, log_prob = squashed_gaussian(mean, 0.3 * log_std, noise, PADDING)
    assert (action[:, 1, 1] == 0).all()
    torch.testing.assert_close(squashed_log_prob(mean, 0.3 * log_std, action, PADDING), log_prob)
    own = squashed_log_prob(mean[:, 1, :1], 0.3 * log_std[:, 1, :1], action[:, 1, :1])
    torch.testing.assert_close(log_prob[:, 1], own)


def test_without_padding_nothing_is_computed() -> None:
    x = torch.ones(3, 2, 2)
    assert without_padding(x, None) is x
    assert without_padding(x, PADDING)[2].tolist() == [[1, 1], [1, 0]]
