"""Predictions of one flight are the network's own for its windows, in the right units, at the right times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.support.fake_device import fake_device
from tests.support.fixtures_config import sizes, tiny
from uavlab.cli import cli
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.telemetry import flights
from uavlab.telemetry.flights import Telemetry
from uavlab.telemetry.predict import (
    COLUMNS,
    Prediction,
    figures,
    predict,
    predict_log,
    require_task,
    summary,
    write_csv,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two networks."""
    folder = tmp_path_factory.mktemp("predicting") / "run"
    run = Run(configure("telemetry", sizes("telemetry"), {"runs": 2, "updates": 2}), folder)
    for _ in run.train():
        pass
    return folder


@pytest.fixture(scope="module")
def forecasts(folder: Path) -> list[Any]:
    """The network of each run."""
    trained = policy.load(folder)
    return [trained.batched_policy(trained.config.env, run) for run in (0, 1)]


@pytest.fixture(scope="module")
def task(folder: Path) -> Telemetry:
    config = policy.load(folder).config
    return require_task(config.env, config.preset)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flight that no run has seen, in a file."""
    [(path, _)] = flights.write(Telemetry(flights=3, first=4321), tmp_path_factory.mktemp("logs") / "new", 1)
    return path


class TestPredict:
    def test_equals_the_network_window_by_window(self, forecasts: list[Any], task: Telemetry, log: Path) -> None:
        flight = flights.concatenate([flights.read(log)])
        prediction = predict(forecasts[1], task, flight, stride=50)
        window, horizon = task.shape
        for n in (0, 3):
            rows = flight.inputs[50 * n : 50 * n + window]
            own = forecasts[1](rows[None, None])[0, 0]
            torch.testing.assert_close(prediction.values[n], torch.cat([own[:6], own[-3:]]))
            ahead = flight.tracking_error[50 * n + window + horizon - 1]
            torch.testing.assert_close(prediction.truth[n], torch.cat([flight.truth[50 * n + window - 1], ahead]))
            assert prediction.time[n].item() == pytest.approx((50 * n + window - 1) / 100)
        assert len(prediction.values) == len(prediction.time) == (len(flight.inputs) - window - horizon) // 50 + 1
        assert prediction.values.shape[1] == len(COLUMNS) == len(prediction.sd)

    def test_networks_differ(self, forecasts: list[Any], task: Telemetry, log: Path) -> None:
        first, second = (predict_log(forecast, task, log) for forecast in forecasts)
        assert not torch.equal(first.values, second.values)

    def test_errors_are_those_of_evaluate(self, forecasts: list[Any], task: Telemetry, log: Path) -> None:
        flight = flights.concatenate([flights.read(log)])
        rmse = {row["column"]: row["rmse"] for row in summary(predict(forecasts[0], task, flight, 5))}
        scores = figures(forecasts[0], flight, task.shape, 5, 1)
        for name in ("wind_north", "battery_sag"):
            assert rmse[name] == pytest.approx(scores[f"rmse/{name}"].item() ** 0.5, rel=1e-4)

    def test_a_flight_on_the_host_and_a_network_on_a_gpu(self, folder: Path, log: Path, tmp_path: Path) -> None:
        with fake_device(strict=False):
            trained = policy.load(folder, device="cuda")
            forecast = trained.batched_policy(trained.config.env, 0)
            assert forecast.log_variance.is_cuda
            there = predict_log(forecast, trained.config.env, log)
            write_csv(there, tmp_path / "predictions.csv")
            rows = summary(there)
        trained = policy.load(folder)
        here = predict_log(trained.batched_policy(trained.config.env, 0), trained.config.env, log)
        torch.testing.assert_close(vars(there), vars(here))
        assert [row["column"] for row in rows] == list(COLUMNS)

    def test_a_run_without_a_forecaster_is_refused(self) -> None:
        config = tiny()
        with pytest.raises(ConfigError) as refusal:
            require_task(config.env, config.preset)
        assert str(refusal.value) == (f"{config.preset}: not trained on logs; expected a run of telemetry.")


class TestLogs:
    def test_without_the_truth(self, forecasts: list[Any], task: Telemetry, log: Path, tmp_path: Path) -> None:
        with np.load(log) as file:
            logged = {name: file[name] for name in file.files if not name.startswith(("wind", "true", "payload"))}
        np.savez(tmp_path / "log.npz", allow_pickle=False, **logged)
        part, whole = (predict_log(forecasts[0], task, path) for path in (tmp_path / "log.npz", log))
        torch.testing.assert_close(part.values, whole.values)
        rows = {row["column"]: row for row in summary(part)}
        assert rows["wind_east"]["rmse"] is None
        assert rows["drag"]["rmse"] > 0

    def test_too_short(self, forecasts: list[Any], task: Telemetry, log: Path, tmp_path: Path) -> None:
        with np.load(log) as file:
            np.savez(tmp_path / "log.npz", allow_pickle=False, **{name: file[name][:5] for name in file.files})
        with pytest.raises(FileError, match=r"log.npz: flight: 5 rows at 100 a second; a window and what follows"):
            predict_log(forecasts[0], task, tmp_path / "log.npz")


@pytest.fixture(scope="module")
def prediction(forecasts: list[Any], task: Telemetry, log: Path) -> Prediction:
    return predict_log(forecasts[0], task, log, stride=100)


class TestTables:
    def test_hold_the_prediction(self, prediction: Prediction, tmp_path: Path) -> None:
        write_csv(prediction, tmp_path / "predictions.csv")
        table: Any = np.genfromtxt(tmp_path / "predictions.csv", delimiter=",", names=True)
        np.testing.assert_allclose(table["time"], prediction.time, rtol=1e-5)
        np.testing.assert_allclose(table["payload"], prediction.values[:, 2], rtol=1e-5)
        sd = np.full(len(prediction.time), prediction.sd[-1])
        np.testing.assert_allclose(table["error_down_sd"], sd, rtol=1e-5)

    def test_refused_by_the_disk(self, prediction: Prediction, tmp_path: Path) -> None:
        with pytest.raises(ResourceError, match="cannot be written"):
            write_csv(prediction, tmp_path / "nowhere" / "predictions.csv")

    def test_summary_by_hand(self, prediction: Prediction) -> None:
        """Predictions of 3 are off by 2 and by 3."""
        truth = torch.tensor([[1.0] * 9, [6.0] * 9])
        first = summary(replace(prediction, values=torch.full((2, 9), 3.0), truth=truth))[0]
        assert (first["mean"], first["low"], first["high"]) == (3.0, 3.0, 3.0)
        assert first["rmse"] == pytest.approx(6.5**0.5)


def test_command(folder: Path, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    done = CliRunner().invoke(cli, ["flights", "predict", str(folder), str(log), "--stride", "200", "--out", str(out)])
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[1].split()
    assert first[:2] == ["wind_north", "m/s"]
    assert len(out.read_text().splitlines()) == 1 + int(done.output.splitlines()[-1].split()[0])
