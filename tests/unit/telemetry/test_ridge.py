"""Ridge regression is that of scikit-learn, with the penalty that does best on flights it was not fitted to."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference

from tests.support.fixtures_config import sizes
from uavlab.experiment.config import configure
from uavlab.telemetry import dataset, ridge
from uavlab.telemetry.forecaster import flatten_targets
from uavlab.telemetry.window_source import DataSplit, load_split

SHAPE, STRIDE = (20, 6), 2


@pytest.fixture(scope="module")
def sets() -> DataSplit:
    return load_split(configure("telemetry", sizes("telemetry")).env, torch.device("cpu"))


def test_it_equals_scikit_learns(sets: DataSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "PENALTIES", (100.0,))
    forecast = ridge.fit_ridge(sets, SHAPE, STRIDE)
    start, _ = dataset.window_starts(sets.training.bounds, sum(SHAPE), STRIDE)
    rows = sets.training.gather(start, *SHAPE)
    flat, targets = rows.inputs.flatten(1).double().numpy(), flatten_targets(rows).double().numpy()
    reference = Reference(alpha=100.0).fit(flat, targets)
    own = forecast(rows.inputs[None] * sets.inputs.spread + sets.inputs.center)[0].numpy()
    assert np.abs(own - reference.predict(flat)).max() < 1e-3
    left = ((reference.predict(flat) - targets) ** 2).mean(0)
    sd = (0.5 * forecast.log_variance).exp() * forecast.spread
    assert sd[0, 2].item() == pytest.approx(left[2] ** 0.5, rel=0.02)


def test_the_penalty_is_chosen_by_flights_of_validation(sets: DataSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {}
    for penalty in (1e-2, 1e5):
        monkeypatch.setattr(ridge, "PENALTIES", (penalty,))
        forecast = ridge.fit_ridge(sets, SHAPE, STRIDE)
        figures = ridge.metrics.figures(forecast, sets.validation, SHAPE, 5 * STRIDE, 10**6)
        scores[penalty] = (float(figures["mean_r2"].mean()), forecast)
    monkeypatch.setattr(ridge, "PENALTIES", (1e-2, 1e5))
    best = max(scores.values(), key=lambda pair: pair[0])[1]
    worst = min(scores.values(), key=lambda pair: pair[0])[1]
    fit = ridge.fit_ridge(sets, SHAPE, STRIDE)
    assert torch.equal(fit.log_variance, best.log_variance)
    assert not torch.equal(fit.log_variance, worst.log_variance)
