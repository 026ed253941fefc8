"""The squashed Gaussian against torch.distributions where that is accurate, and against algebra where it is not."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from uavlab.ops.distributions import squashed_gaussian


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
