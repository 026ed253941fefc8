"""Moments of returns and normalised advantages by hand."""

import math

import pytest
import torch

from uavlab.learners.ppo.moments import MEMORY, Moments, normalise, update_moments


def test_moments_by_hand() -> None:
    """Agents 0 and 1 share a critic; agent 2 ended before its second return."""
    returns = torch.tensor([[[1.0, 3.0, 5.0], [3.0, 5.0, 99.0]]])
    live = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    blank = torch.zeros(1, 3)
    moments = update_moments(Moments(mean=blank, square=blank, weight=blank), returns, live, (0, 0, 1))
    center, spread = moments.scale()
    assert center[0, 0].tolist() == pytest.approx([3.0, 3.0, 5.0])
    assert spread[0, 0].tolist() == pytest.approx([math.sqrt(11 - 9)] * 2 + [1e-6], rel=1e-3)
    later = update_moments(moments, returns + 10, torch.ones_like(live), (0, 0, 1))
    mixed = (3 * MEMORY + 13) / (MEMORY + 1)
    assert later.scale()[0][0, 0, 0].item() == pytest.approx(mixed)


def test_advantages_are_normalised_by_network_over_live_rows() -> None:
    x = torch.tensor([[[1.0, 10.0, 30.0], [3.0, 20.0, 999.0]]])
    live = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    result = normalise(x, live, (0, 1, 1))
    assert result[0, :, 0].tolist() == pytest.approx([-1.0, 1.0])
    spread = math.sqrt((100 + 0 + 100) / 3)
    assert [*result[0, :, 1].tolist(), result[0, 0, 2].item()] == pytest.approx([-10 / spread, 0.0, 10 / spread])
