"""Scores of made-up predictions against numpy and scikit-learn, over flights of different lengths."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch import Tensor

from tests.support.fixtures_telemetry import made_up_series
from uavlab.telemetry import metrics
from uavlab.telemetry.dataset import HIDDEN, Series, starts
from uavlab.telemetry.disk_dataset import Spool
from uavlab.telemetry.forecaster import TASKS, outputs
from uavlab.telemetry.metrics import KINDS, METRICS, by_task, figures, summary, told

WINDOW, HORIZON, STRIDE = 12, 3, 2
SHAPE = (WINDOW, HORIZON)
OUT = len(HIDDEN) + 3 * HORIZON
FLIGHTS = made_up_series(400, 60, 137, 90)
START, FLIGHT = starts(FLIGHTS.bounds, sum(SHAPE), STRIDE)
TRUTH = outputs(FLIGHTS.gathered(START, *SHAPE))  # N out
ERROR = slice(OUT - 3, OUT)  # the last row ahead


@dataclass
class Told:
    """Says what it is given, window by window, and doubts what it is told to."""

    said: Tensor  # R N out
    doubt: Tensor  # R tasks
    spread: Tensor
    seen: int = 0

    @property
    def runs(self) -> int:
        return len(self.said)

    @property
    def theta(self) -> Tensor:
        return self.said

    def __call__(self, windows: Tensor) -> Tensor:
        count = windows.shape[1]
        expected = FLIGHTS.gathered(START[self.seen : self.seen + count], *SHAPE).inputs
        assert torch.equal(windows, expected.expand(self.runs, *expected.shape))
        self.seen += count
        return self.said[:, self.seen - count : self.seen]


def guess(runs: int = 2, off: float = 0.5) -> Told:
    """Half of the truth, and noise, a little more in each run."""
    noise = torch.randn(runs, *TRUTH.shape, generator=torch.Generator().manual_seed(0))
    said = 0.5 * TRUTH + off * noise * torch.arange(1, runs + 1)[:, None, None]
    spread = torch.linspace(0.5, 2, len(TASKS)).expand(runs, -1)
    return Told(said, torch.full((runs, len(TASKS)), -0.7), spread)


def scored(told_by: Told, flights: Series | Spool = FLIGHTS, count: int = 4) -> dict[str, Tensor]:
    return figures(told_by, flights, SHAPE, STRIDE, count)  # type: ignore[arg-type]


def columns(said: Tensor, name: str) -> np.ndarray:
    """Give what is told of a target, one column per axis."""
    part = said[..., ERROR] if name == "error" else said[..., [HIDDEN.index(name)]]
    return part.double().numpy()


@pytest.mark.parametrize("name", TASKS)
def test_scores_equal_those_of_others(name: str) -> None:
    """A mean over flights, whatever their lengths, is the score of all windows."""
    made = guess()
    found = scored(made)
    true = columns(TRUTH, name)
    assert len(np.unique(FLIGHT.bincount())) == 4
    for run in range(2):
        said = columns(made.said[run], name)
        center = true.mean(0)
        variance = ((true - center) ** 2).mean()
        expected = {
            "r2": r2_score(true, said, multioutput="variance_weighted"),
            "rmse": ((said - true) ** 2).mean(),
            "variance": ((said - center) ** 2).mean() / variance,
            "inside": (abs(said - true) <= 1.645 * math.exp(-0.35) * made.spread[run, TASKS.index(name)].item()).mean(),
        }
        assert set(expected) == set(KINDS)
        for kind, value in expected.items():
            assert found[f"{kind}/{name}"].shape == (2, 4)
            assert found[f"{kind}/{name}"][run].mean().item() == pytest.approx(value, rel=1e-6), kind


def test_a_flight_counts_by_its_windows() -> None:
    """What is wrong about one flight alone shows in its own score, weighted by how long it is."""
    said = TRUTH.clone()
    third = FLIGHT == 2
    said[third, 0] += 0.3
    made = Told(said[None], torch.zeros(1, len(TASKS)), torch.ones(1, len(TASKS)))
    found = scored(made)["rmse/wind_north"][0]
    count = third.sum().item()
    assert found.tolist() == pytest.approx([0, 0, 4 * 0.09 * count / len(FLIGHT), 0], abs=1e-7)


def test_a_perfect_forecast() -> None:
    found = scored(Told(TRUTH[None], torch.full((1, len(TASKS)), -20.0), torch.ones(1, len(TASKS))))
    for name in TASKS:
        assert found[f"r2/{name}"].mean().item() == pytest.approx(1)
        assert found[f"rmse/{name}"].abs().max() == 0
        assert found[f"variance/{name}"].mean().item() == pytest.approx(1)
        assert found[f"inside/{name}"].mean().item() == pytest.approx(1)
    assert found["mean_r2"].mean().item() == pytest.approx(1)


def test_a_constant_has_no_variance_and_explains_nothing() -> None:
    """The best of constants, the mean, has 0 for both; any other is worse."""
    for shift, close in ((0.0, 1e-5), (0.3, None)):
        constant = (TRUTH.mean(0) + shift).expand(1, *TRUTH.shape)
        found = scored(Told(constant, torch.zeros(1, len(TASKS)), torch.ones(1, len(TASKS))))
        for name in TASKS:
            r2, variance = (found[f"{kind}/{name}"].mean().item() for kind in ("r2", "variance"))
            if close:
                assert variance == pytest.approx(0, abs=close)
                assert r2 == pytest.approx(0, abs=close)
            else:
                assert variance == pytest.approx(-r2, rel=1e-3)
                assert r2 < -0.03


def test_where_the_truth_never_varies_scores_are_finite() -> None:
    """Off by 0.1 where 2 in training would have been usual: 0.01 over a ten-thousandth of 4."""
    still = made_up_series(60)
    still.truth.fill_(0.3)
    count = len(starts(still.bounds, sum(SHAPE), STRIDE)[0])

    class Constant(Told):
        def __call__(self, windows: Tensor) -> Tensor:
            return self.said.expand(1, windows.shape[1], -1)

    made = Constant(torch.full((1, 1, OUT), 0.4), torch.zeros(1, len(TASKS)), torch.full((1, len(TASKS)), 2.0))
    found = figures(made, still, SHAPE, STRIDE, 1)  # type: ignore[arg-type]
    assert count > 10
    for name in HIDDEN:
        assert found[f"r2/{name}"].item() == pytest.approx(1 - 25, rel=1e-5)
        assert found[f"variance/{name}"].item() == pytest.approx(25, rel=1e-5)


def test_nine_tenths_lie_inside_if_the_doubt_is_right() -> None:
    """Errors of 0.4 spreads: the logarithm of their square is -1.83; half of that is too sure of itself."""
    flights = made_up_series(5000)
    start, _ = starts(flights.bounds, sum(SHAPE), 1)
    truth = outputs(flights.gathered(start, *SHAPE))
    spread = torch.linspace(0.5, 2, len(TASKS))
    scale = torch.cat([spread[: len(HIDDEN)], spread[-1:].expand(3 * HORIZON)])
    said = truth + 0.4 * scale * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))

    class Gaussian(Told):
        def __call__(self, windows: Tensor) -> Tensor:
            self.seen += windows.shape[1]
            return self.said[:, self.seen - windows.shape[1] : self.seen]

    for sigma, share in ((0.4, 0.9), (0.2, 0.5892), (0.8, 0.999)):  # 1.645 and half and twice as many deviations
        doubt = torch.full((1, len(TASKS)), 2 * math.log(sigma))
        found = figures(Gaussian(said[None], doubt, spread[None]), flights, SHAPE, 1, 1)  # type: ignore[arg-type]
        for name in TASKS:
            assert found[f"inside/{name}"].mean().item() == pytest.approx(share, abs=0.02), name


def test_the_first_flights_alone_are_told_of() -> None:
    made = guess(1)
    found = scored(made, count=2)
    own = FLIGHT < 2
    assert made.seen == own.sum()
    assert found["r2/drag"].shape == (1, 2)
    expected = r2_score(columns(TRUTH[own], "drag"), columns(made.said[0, own], "drag"))
    assert found["r2/drag"].mean().item() == pytest.approx(expected, rel=1e-6)
    assert scored(guess(1), count=99)["r2/drag"].shape == (1, 4)  # as many as there are


def test_windows_are_told_of_some_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same from memory and from files, in parts of any size."""
    expected = scored(guess())
    monkeypatch.setattr(metrics, "TOGETHER", 50)
    kept = Spool(tmp_path)
    kept.append(FLIGHTS)
    for flights in (FLIGHTS, kept):
        assert [len(part[0]) for part in told(guess(), flights, SHAPE, STRIDE, 4)][:2] == [50, 50]  # type: ignore[arg-type]
        for name, value in scored(guess(), flights).items():
            assert torch.equal(value, expected[name]), name


def test_mean_r2_is_that_of_all_targets() -> None:
    found = scored(guess())
    expected = torch.stack([found[f"r2/{name}"] for name in TASKS]).mean(0)
    torch.testing.assert_close(found["mean_r2"], expected)
    assert list(found) == [metric.name for metric in METRICS]
    assert {metric.unit for metric in METRICS if metric.name.startswith("rmse/")} == {
        "m/s",
        "kg",
        "kg/s",
        "s",
        "V",
        "m",
    }


def test_errors_ahead_are_those_of_the_last_row() -> None:
    laid = by_task(torch.arange(float(OUT)).view(1, 1, OUT))
    assert laid.shape == (1, 1, len(TASKS), 3)
    assert laid[0, 0, :-1].tolist() == [[n] * 3 for n in range(len(HIDDEN))]
    assert laid[0, 0, -1].tolist() == [OUT - 3, OUT - 2, OUT - 1]


def test_a_summary_by_kind_and_target() -> None:
    found = {"mean_r2": torch.tensor([[0.2, 0.6], [0.3, 0.5]]), "rmse/drag": torch.tensor([[1.0, 7.0], [16.0, 2.0]])}
    made = summary(found)
    assert set(made) == {"mean_r2", "rmse"}
    assert made["mean_r2"]["mean"] == pytest.approx(0.4)
    assert made["mean_r2"]["each"] == pytest.approx([0.4, 0.4])
    assert 0.2 <= made["mean_r2"]["low"] < 0.4 < made["mean_r2"]["high"] <= 0.6
    row = made["rmse"]["drag"]  # roots of means of squares
    assert row["mean"] == pytest.approx(math.sqrt(6.5))
    assert row["each"] == pytest.approx([2, 3])
    assert 1 <= row["low"] < row["mean"] < row["high"] <= 4


def test_a_summary_of_one_run_has_no_other() -> None:
    made = summary({"r2/drag": torch.tensor([[-0.5, -0.1]]), "rmse/drag": torch.tensor([[0.0, 0.0]])})
    assert made["r2"]["drag"]["mean"] == pytest.approx(-0.3)
    assert "each" not in made["r2"]["drag"]
    assert made["rmse"]["drag"] == {"mean": 0, "low": 0, "high": 0}
    assert set(made) < set(KINDS)
