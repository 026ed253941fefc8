"""Scores of random predictions, and ridge regression, against numpy and scikit-learn; the penalty that does best."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from torch import Tensor

from tests.support.fake_device import fake_device
from tests.support.fixtures_config import sizes
from tests.support.fixtures_telemetry import random_dataset
from uavlab.core.types import Scale
from uavlab.experiment.config import configure
from uavlab.telemetry import predict
from uavlab.telemetry.flights import FEATURES, HIDDEN, FlightDataset, window_starts
from uavlab.telemetry.forecaster import TARGETS, flatten_targets
from uavlab.telemetry.predict import KINDS, METRICS, by_target, figures, predict_windows, summarise_scores
from uavlab.telemetry.window_source import DataSplit, FlightFiles, Loader, load_split

WINDOW, HORIZON, STRIDE = 12, 3, 2
SHAPE = (WINDOW, HORIZON)
OUT = len(HIDDEN) + 3 * HORIZON
FLIGHTS = random_dataset(400, 60, 137, 90)
START, FLIGHT = window_starts(FLIGHTS.bounds, sum(SHAPE), STRIDE)
TRUTH = flatten_targets(FLIGHTS.gather(START, *SHAPE))  # N out
ERROR = slice(OUT - 3, OUT)  # the last row ahead


@dataclass
class FixedForecast:
    """Returns its values window by window, in the order of ``FLIGHTS``."""

    values: Tensor  # R N out
    log_variance: Tensor  # R targets
    spread: Tensor
    position: int = 0

    @property
    def runs(self) -> int:
        return len(self.values)

    def __call__(self, windows: Tensor) -> Tensor:
        count = windows.shape[1]
        expected = FLIGHTS.gather(START[self.position : self.position + count], *SHAPE).inputs
        assert torch.equal(windows, expected.expand(self.runs, *expected.shape))
        self.position += count
        return self.values[:, self.position - count : self.position]


def guess(runs: int = 2, off: float = 0.5) -> FixedForecast:
    """Half of the truth, and noise, a little more in each run."""
    noise = torch.randn(runs, *TRUTH.shape, generator=torch.Generator().manual_seed(0))
    values = 0.5 * TRUTH + off * noise * torch.arange(1, runs + 1)[:, None, None]
    spread = torch.linspace(0.5, 2, len(TARGETS)).expand(runs, -1)
    return FixedForecast(values, torch.full((runs, len(TARGETS)), -0.7), spread)


def score(forecast: FixedForecast, flights: FlightDataset = FLIGHTS, count: int = 4) -> dict[str, Tensor]:
    return figures(forecast, flights, SHAPE, STRIDE, count)  # type: ignore[arg-type]


def columns(values: Tensor, name: str) -> np.ndarray:
    """Return the values of a target, one column per axis."""
    part = values[..., ERROR] if name == "error" else values[..., [HIDDEN.index(name)]]
    return part.double().numpy()


@pytest.mark.parametrize("name", TARGETS)
def test_scores_equal_those_of_others(name: str) -> None:
    """A mean over flights of any lengths is the score of all windows."""
    forecast = guess()
    scores = score(forecast)
    true = columns(TRUTH, name)
    assert len(np.unique(FLIGHT.bincount())) == 4
    for run in range(2):
        values = columns(forecast.values[run], name)
        center = true.mean(0)
        variance = ((true - center) ** 2).mean()
        sd = math.exp(-0.35) * forecast.spread[run, TARGETS.index(name)].item()
        expected = {
            "r2": r2_score(true, values, multioutput="variance_weighted"),
            "rmse": ((values - true) ** 2).mean(),
            "variance": ((values - center) ** 2).mean() / variance,
            "inside": (abs(values - true) <= 1.645 * sd).mean(),
        }
        assert set(expected) == set(KINDS)
        for kind, value in expected.items():
            assert scores[f"{kind}/{name}"].shape == (2, 4)
            assert scores[f"{kind}/{name}"][run].mean().item() == pytest.approx(value, rel=1e-6), kind


def test_a_flight_counts_by_its_windows() -> None:
    """An error in one flight alone shows in its own score, weighted by its windows."""
    values = TRUTH.clone()
    third = FLIGHT == 2
    values[third, 0] += 0.3
    forecast = FixedForecast(values[None], torch.zeros(1, len(TARGETS)), torch.ones(1, len(TARGETS)))
    mse = score(forecast)["rmse/wind_north"][0]
    count = third.sum().item()
    assert mse.tolist() == pytest.approx([0, 0, 4 * 0.09 * count / len(FLIGHT), 0], abs=1e-7)


def test_a_perfect_forecast() -> None:
    scores = score(FixedForecast(TRUTH[None], torch.full((1, len(TARGETS)), -20.0), torch.ones(1, len(TARGETS))))
    for name in TARGETS:
        assert scores[f"r2/{name}"].mean().item() == pytest.approx(1)
        assert scores[f"rmse/{name}"].abs().max() == 0
        assert scores[f"variance/{name}"].mean().item() == pytest.approx(1)
        assert scores[f"inside/{name}"].mean().item() == pytest.approx(1)
    assert scores["mean_r2"].mean().item() == pytest.approx(1)


def test_a_constant_has_no_variance_and_explains_nothing() -> None:
    """The best of constants, the mean, has 0 for both; any other is worse."""
    for shift, close in ((0.0, 1e-5), (0.3, None)):
        constant = (TRUTH.mean(0) + shift).expand(1, *TRUTH.shape)
        scores = score(FixedForecast(constant, torch.zeros(1, len(TARGETS)), torch.ones(1, len(TARGETS))))
        for name in TARGETS:
            r2, variance = (scores[f"{kind}/{name}"].mean().item() for kind in ("r2", "variance"))
            if close:
                assert variance == pytest.approx(0, abs=close)
                assert r2 == pytest.approx(0, abs=close)
            else:
                assert variance == pytest.approx(-r2, rel=1e-3)
                assert r2 < -0.03


def test_where_the_truth_never_varies_scores_are_finite() -> None:
    """Off by 0.1 where 2 in training would have been usual: 0.01 over a ten-thousandth of 4."""
    still = random_dataset(60)
    still.truth.fill_(0.3)
    count = len(window_starts(still.bounds, sum(SHAPE), STRIDE)[0])

    class Constant(FixedForecast):
        def __call__(self, windows: Tensor) -> Tensor:
            return self.values.expand(1, windows.shape[1], -1)

    forecast = Constant(torch.full((1, 1, OUT), 0.4), torch.zeros(1, len(TARGETS)), torch.full((1, len(TARGETS)), 2.0))
    scores = figures(forecast, still, SHAPE, STRIDE, 1)  # type: ignore[arg-type]
    assert count > 10
    for name in HIDDEN:
        assert scores[f"r2/{name}"].item() == pytest.approx(1 - 25, rel=1e-5)
        assert scores[f"variance/{name}"].item() == pytest.approx(25, rel=1e-5)


def test_coverage_is_nine_tenths_if_the_log_variance_is_right() -> None:
    """Errors are 0.4 spreads; half or twice as many deviations cover less or more."""
    flights = random_dataset(5000)
    start, _ = window_starts(flights.bounds, sum(SHAPE), 1)
    truth = flatten_targets(flights.gather(start, *SHAPE))
    spread = torch.linspace(0.5, 2, len(TARGETS))
    scale = torch.cat([spread[: len(HIDDEN)], spread[-1:].expand(3 * HORIZON)])
    values = truth + 0.4 * scale * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))

    class Gaussian(FixedForecast):
        def __call__(self, windows: Tensor) -> Tensor:
            self.position += windows.shape[1]
            return self.values[:, self.position - windows.shape[1] : self.position]

    for sigma, share in ((0.4, 0.9), (0.2, 0.5892), (0.8, 0.999)):  # 1.645 and half and twice as many deviations
        log_variance = torch.full((1, len(TARGETS)), 2 * math.log(sigma))
        scores = figures(Gaussian(values[None], log_variance, spread[None]), flights, SHAPE, 1, 1)  # type: ignore[arg-type]
        for name in TARGETS:
            assert scores[f"inside/{name}"].mean().item() == pytest.approx(share, abs=0.02), name


def test_only_the_first_flights_are_scored() -> None:
    forecast = guess(1)
    scores = score(forecast, count=2)
    own = FLIGHT < 2
    assert forecast.position == own.sum()
    assert scores["r2/drag"].shape == (1, 2)
    expected = r2_score(columns(TRUTH[own], "drag"), columns(forecast.values[0, own], "drag"))
    assert scores["r2/drag"].mean().item() == pytest.approx(expected, rel=1e-6)
    assert score(guess(1), count=99)["r2/drag"].shape == (1, 4)  # as many as there are


def test_windows_are_predicted_in_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scores from memory and from files are equal, in chunks of any size."""
    expected = score(guess())
    monkeypatch.setattr(predict, "CHUNK", 50)
    files = FlightFiles(tmp_path)
    files.append(FLIGHTS)
    for flights in (FLIGHTS, files.read()):
        parts = predict_windows(guess(), flights, SHAPE, STRIDE, 4)  # type: ignore[arg-type]
        assert [len(part[0]) for part in parts][:2] == [50, 50]
        for name, value in score(guess(), flights).items():
            assert torch.equal(value, expected[name]), name


def test_mean_r2_is_that_of_all_targets() -> None:
    scores = score(guess())
    expected = torch.stack([scores[f"r2/{name}"] for name in TARGETS]).mean(0)
    torch.testing.assert_close(scores["mean_r2"], expected)
    assert list(scores) == [metric.name for metric in METRICS]
    assert {metric.unit for metric in METRICS if metric.name.startswith("rmse/")} == {
        "m/s",
        "kg",
        "kg/s",
        "s",
        "V",
        "m",
    }


def test_errors_ahead_are_those_of_the_last_row() -> None:
    targets = by_target(torch.arange(float(OUT)).view(1, 1, OUT))
    assert targets.shape == (1, 1, len(TARGETS), 3)
    assert targets[0, 0, :-1].tolist() == [[n] * 3 for n in range(len(HIDDEN))]
    assert targets[0, 0, -1].tolist() == [OUT - 3, OUT - 2, OUT - 1]


def test_a_summary_by_kind_and_target() -> None:
    scores = {"mean_r2": torch.tensor([[0.2, 0.6], [0.3, 0.7]]), "rmse/drag": torch.tensor([[1.0, 7.0], [16.0, 2.0]])}
    rows = summarise_scores(scores)
    assert set(rows) == {"mean_r2", "rmse"}
    assert rows["mean_r2"]["mean"] == pytest.approx(0.45)
    assert rows["mean_r2"]["each"] == pytest.approx([0.4, 0.5])
    # t of one degree of freedom 12.706, times 0.05; no R² exceeds 1
    assert (rows["mean_r2"]["low"], rows["mean_r2"]["high"]) == pytest.approx((0.45 - 0.63531, 1.0), abs=1e-5)
    row = rows["rmse"]["drag"]  # roots of means of squares
    assert row["mean"] == pytest.approx(math.sqrt(6.5))
    assert row["each"] == pytest.approx([2, 3])
    assert row["low"] == 0 < row["mean"] < row["high"]  # two runs: 6.5 -+ 12.706 x 2.5, of squares


@pytest.mark.parametrize("kind", ["inside", "variance"])
def test_two_runs_that_differ_leave_no_range(kind: str) -> None:
    """0.5 -+ 12.706 x 0.3: a share lies from 0 to 1, a ratio of variances is not negative."""
    row = summarise_scores({f"{kind}/drag": torch.tensor([[0.2], [0.8]])})[kind]["drag"]
    assert (row["low"], row["high"]) == pytest.approx((0, 1 if kind == "inside" else 0.5 + 3.81186), abs=1e-4)


def test_a_summary_of_one_run_has_no_other() -> None:
    rows = summarise_scores({"r2/drag": torch.tensor([[-0.5, -0.1]]), "rmse/drag": torch.tensor([[0.0, 0.0]])})
    assert rows["r2"]["drag"]["mean"] == pytest.approx(-0.3)
    assert "each" not in rows["r2"]["drag"]
    assert rows["rmse"]["drag"] == {"mean": 0, "low": 0, "high": 0}
    assert set(rows) < set(KINDS)


FIT_SHAPE = (20, 6)  # of the linear baseline


@pytest.fixture(scope="module")
def sets() -> DataSplit:
    return load_split(configure("telemetry", sizes("telemetry")).env, torch.device("cpu"))


def test_ridge_regression_equals_scikit_learns(sets: DataSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "PENALTIES", (100.0,))
    forecast = predict.fit_ridge(sets, FIT_SHAPE, STRIDE)
    start, _ = window_starts(sets.training.bounds, sum(FIT_SHAPE), STRIDE)
    rows = sets.training.gather(start, *FIT_SHAPE)
    flat, targets = rows.inputs.flatten(1).double().numpy(), flatten_targets(rows).double().numpy()
    reference = Ridge(alpha=100.0).fit(flat, targets)
    own = forecast(rows.inputs[None] * sets.inputs.spread + sets.inputs.center)[0].numpy()
    assert np.abs(own - reference.predict(flat)).max() < 1e-3
    left = ((reference.predict(flat) - targets) ** 2).mean(0)
    sd = (0.5 * forecast.log_variance).exp() * forecast.spread
    assert sd[0, 2].item() == pytest.approx(left[2] ** 0.5, rel=0.02)


@pytest.mark.parametrize("loader", ["device", "stream"])
def test_ridge_regression_runs_where_training_does(
    loader: Loader, sets: DataSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "PENALTIES", (100.0,))
    plain = predict.fit_ridge(sets, FIT_SHAPE, STRIDE)
    with fake_device(strict=False):
        there = load_split(configure("telemetry", sizes("telemetry")).env, torch.device("cuda"), loader)
        forecast = predict.fit_ridge(there, FIT_SHAPE, STRIDE)
        assert forecast.log_variance.is_cuda
        torch.testing.assert_close(forecast.log_variance.cpu(), plain.log_variance)


def test_sums_of_many_rows_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean far from zero: in float32, what the fit leaves is lost in the sums of squares, in float64 it is not."""
    monkeypatch.setattr(predict, "PENALTIES", (0.0,))
    flights = random_dataset(400, 400)
    flights = replace(flights, truth=flights.truth + 1e3)
    scale = Scale(torch.zeros(len(FEATURES)), torch.ones(len(FEATURES)))
    hidden = Scale(torch.zeros(len(HIDDEN) + 3), torch.ones(len(HIDDEN) + 3))
    forecast = predict.fit_ridge(DataSplit(flights, flights, flights, scale, hidden), (1, 1), 1)
    start, _ = window_starts(flights.bounds, 2, 1)
    rows = flights.gather(start, 1, 1)
    flat, targets = rows.inputs.flatten(1).double().numpy(), flatten_targets(rows).double().numpy()
    left = ((LinearRegression().fit(flat, targets).predict(flat) - targets) ** 2).mean(0)[: len(HIDDEN)]
    np.testing.assert_allclose(forecast.log_variance.exp()[0, : len(HIDDEN)], left, rtol=1e-3)


def test_the_penalty_is_chosen_by_flights_of_validation(sets: DataSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {}
    for penalty in (1e-2, 1e5):
        monkeypatch.setattr(predict, "PENALTIES", (penalty,))
        forecast = predict.fit_ridge(sets, FIT_SHAPE, STRIDE)
        figures = predict.figures(forecast, sets.validation, FIT_SHAPE, 5 * STRIDE, 10**6)
        scores[penalty] = (float(figures["mean_r2"].mean()), forecast)
    monkeypatch.setattr(predict, "PENALTIES", (1e-2, 1e5))
    best = max(scores.values(), key=lambda pair: pair[0])[1]
    worst = min(scores.values(), key=lambda pair: pair[0])[1]
    fit = predict.fit_ridge(sets, FIT_SHAPE, STRIDE)
    assert torch.equal(fit.log_variance, best.log_variance)
    assert not torch.equal(fit.log_variance, worst.log_variance)
