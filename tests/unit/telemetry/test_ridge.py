"""Ridge regression is that of scikit-learn, with the penalty that does best on flights it was not fitted to."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference

from tests.support.fixtures_config import sizes
from uavlab.experiment.config import configure
from uavlab.telemetry import dataset, ridge
from uavlab.telemetry.forecaster import outputs
from uavlab.telemetry.window_source import Sets, loaded

SHAPE, STRIDE = (20, 6), 2


@pytest.fixture(scope="module")
def sets() -> Sets:
    return loaded(configure("telemetry", sizes("telemetry")).env, torch.device("cpu"))


def test_it_equals_scikit_learns(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "PENALTIES", (100.0,))
    made = ridge.fitted(sets, SHAPE, STRIDE)
    start, _ = dataset.starts(sets.training.bounds, sum(SHAPE), STRIDE)
    rows = sets.training.gathered(start, *SHAPE)
    flat, told = rows.inputs.flatten(1).double().numpy(), outputs(rows).double().numpy()
    reference = Reference(alpha=100.0).fit(flat, told)
    own = made(rows.inputs[None] * sets.inputs.spread + sets.inputs.center)[0].numpy()
    assert np.abs(own - reference.predict(flat)).max() < 1e-3
    left = ((reference.predict(flat) - told) ** 2).mean(0)
    assert (0.5 * made.doubt[0, 2]).exp().item() * made.spread[0, 2].item() == pytest.approx(left[2] ** 0.5, rel=0.02)


def test_the_penalty_is_chosen_by_flights_of_validation(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {}
    for penalty in (1e-2, 1e5):
        monkeypatch.setattr(ridge, "PENALTIES", (penalty,))
        made = ridge.fitted(sets, SHAPE, STRIDE)
        found = ridge.metrics.figures(made, sets.validation, SHAPE, 5 * STRIDE, 10**6)
        scores[penalty] = (float(found["mean_r2"].mean()), made)
    monkeypatch.setattr(ridge, "PENALTIES", (1e-2, 1e5))
    best = max(scores.values(), key=lambda pair: pair[0])[1]
    worst = min(scores.values(), key=lambda pair: pair[0])[1]
    chosen = ridge.fitted(sets, SHAPE, STRIDE)
    assert torch.equal(chosen.theta, best.theta)
    assert not torch.equal(chosen.theta, worst.theta)
