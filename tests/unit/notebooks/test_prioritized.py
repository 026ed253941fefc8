"""Counts of draws against chances worked out by hand."""

import pytest
import torch

from uavlab_notebooks import prioritized
from uavlab_notebooks.prioritized import count_draws, structures_agree, weights


def test_draws_follow_the_chances() -> None:
    counts = count_draws(torch.tensor([1.0, 4.0, 0.0, 16.0]), alpha=0.5, batches=500, batch=64)
    assert counts["expected"] == pytest.approx([32_000 * p / 7 for p in (1, 2, 0, 4)], rel=1e-5, abs=0.1)
    assert sum(counts["observed"]) == 32_000
    assert counts["chi_square"] < 16.3  # 3 degrees of freedom, one in a thousand
    few = [count_draws(torch.tensor([1.0, 4.0]), 0.5, 10)["observed"] for _ in range(2)]
    assert few[0] == few[1]


def test_another_exponent_would_be_seen() -> None:
    flat = count_draws(torch.tensor([1.0, 4.0, 16.0]), alpha=0.0, batches=100)
    assert max(flat["observed"]) - min(flat["observed"]) < 200
    assert flat["expected"] == pytest.approx([6400 / 3] * 3)


def test_weights() -> None:
    rows = weights(torch.tensor([1.0, 16.0]), alpha=0.5, betas=(0.0, 0.5, 1.0))
    assert [(row["beta"], row["priority"], row["weight"]) for row in rows] == [
        *((0.0, 1.0, 1.0), (0.0, 16.0, 1.0)),
        *((0.5, 1.0, 1.0), (0.5, 16.0, 0.5)),  # (1 / 4)^0.5
        *((1.0, 1.0, 1.0), (1.0, 16.0, 0.25)),
    ]


def test_structures_agree_and_one_that_does_not_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert structures_agree(capacity=1000, batch=64)
    cumsum = prioritized.cumsum
    monkeypatch.setattr(prioritized, "cumsum", lambda mass: cumsum(mass.flip(0)))
    assert not structures_agree(capacity=1000, batch=64)
