"""Adam's factors and step by hand."""

import pytest
import torch

from uavlab.runtime.grad_step import adam_factors, adam_step


def test_factors_of_the_first_two_steps() -> None:
    """lr / 0.1 and lr / 0.19; 1 / sqrt(0.001) and 1 / sqrt(0.001999)."""
    size, shrink = adam_factors(0.19, torch.tensor([1.0, 2.0])).tolist()
    assert size == pytest.approx([1.9, 1.0])
    assert shrink == pytest.approx([0.001**-0.5, 0.001999**-0.5], rel=1e-12)  # in float32, off by 1e-4


def test_the_first_step_has_the_length_of_the_rate() -> None:
    """Moments after a gradient of 4 are 0.4 and 0.016: 0.1 (4 / (4 + eps))."""
    size, shrink = adam_factors(0.1, torch.ones(1))
    step = adam_step(torch.tensor([0.4], dtype=torch.float64), torch.tensor([0.016], dtype=torch.float64), size, shrink)
    assert step.item() == pytest.approx(0.1 * 4 / (4 + 1e-5), rel=1e-9)
