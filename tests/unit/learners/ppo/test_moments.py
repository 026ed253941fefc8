"""Moments of returns, normalised advantages and weights of rows by hand."""

import math

import pytest
import torch

from uavlab.learners.ppo.ppo import MEMORY, Moments, normalise, row_weights, sum_by_network, update_moments

RETURNS = torch.tensor([[[1.0, 3.0, 5.0], [3.0, 99.0, 5.0]]])  # of two rows
LIVE = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]])


def blank(runs: int = 1, agents: int = 3) -> Moments:
    zeros = torch.zeros(runs, agents, dtype=torch.float64)
    return Moments(mean=zeros, square=zeros, weight=zeros)


def test_before_the_first_return_nothing_is_scaled() -> None:
    assert [each.tolist() for each in blank().scale(torch.float32)] == [[[[0.0] * 3]], [[[1.0] * 3]]]


def test_moments_count_every_live_row_of_a_critic_once() -> None:
    """Agents 0 and 1 share a critic and have three live rows: 1, 3 and 3."""
    moments = update_moments(blank(), RETURNS, LIVE, (0, 0, 1))
    center, spread = moments.scale(torch.float64)
    assert center[0, 0].tolist() == pytest.approx([7 / 3, 7 / 3, 5.0])
    assert spread[0, 0].tolist() == pytest.approx([math.sqrt(19 / 3 - 49 / 9)] * 2 + [5e-4])
    later = update_moments(moments, RETURNS + 10, LIVE, (0, 0, 1))
    mixed = (7 / 3 * MEMORY + 37 / 3) / (MEMORY + 1)
    assert later.scale(torch.float64)[0][0, 0, 0].item() == pytest.approx(mixed)


@pytest.mark.parametrize("mean", [1e2, 1e4, 1e5])
def test_a_spread_far_below_the_mean_is_kept(mean: float) -> None:
    """Sums in float32 return 4 instead of 1 for a mean of 1e4."""
    returns = mean + torch.randn(1, 20_000, 1, generator=torch.Generator().manual_seed(0))
    moments = update_moments(blank(agents=1), returns, torch.ones_like(returns), (0,))
    spread = moments.scale(torch.float32)[1].item()
    assert spread == pytest.approx(max(1.0, 1e-4 * mean), rel=0.02)
    single = (returns.square().mean() - returns.mean().square()).clamp_min(0).sqrt().item()
    assert (abs(single - 1) < 0.02) is (mean < 1e3)


def test_advantages_are_normalised_by_network_over_live_rows() -> None:
    x = torch.tensor([[[1.0, 10.0, 30.0], [3.0, 20.0, 999.0]]])
    live = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    result = normalise(x, live, (0, 1, 1))
    assert result[0, :, 0].tolist() == pytest.approx([-1.0, 1.0])
    spread = math.sqrt((100 + 0 + 100) / 3)
    assert [*result[0, :, 1].tolist(), result[0, 0, 2].item()] == pytest.approx([-10 / spread, 0.0, 10 / spread])


def test_one_live_row_of_a_network_has_no_advantage() -> None:
    x, live = torch.tensor([[[5.0, 1.0, 1.0]]]), torch.tensor([[[1.0, 0.0, 0.0]]])
    assert normalise(x, live, (0, 0, 0))[0, 0, 0].item() == 0


def test_weights_make_sums_means_over_the_live_rows_of_each_network() -> None:
    weight = row_weights(LIVE, (0, 0, 1))
    x = torch.tensor([[[1.0, 2.0, 10.0], [3.0, 50.0, 20.0]]])
    by_agent = (weight * x).mean(1)[0]
    assert by_agent[:2].sum().item() == pytest.approx((1 + 2 + 3) / 3)
    assert by_agent[2].item() == pytest.approx(15.0)
    assert row_weights(0 * LIVE, (0, 0, 1)).abs().max() == 0


def test_sums_by_network() -> None:
    x = torch.tensor([[1.0, 3.0, 8.0]])
    assert sum_by_network(x, (0, 0, 1)).tolist() == [[4.0, 4.0, 8.0]]
    assert sum_by_network(x, (0, 1, 0)).tolist() == [[9.0, 3.0, 9.0]]
    assert sum_by_network(x, (0, 1, 2)).tolist() == x.tolist()
