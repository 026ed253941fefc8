"""What is told of one flight is what the network says of its windows, in their own units, at the right times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.support.fixtures_config import sizes, tiny
from uavlab.cli import cli
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.experiment import policy
from uavlab.experiment.config import configure
from uavlab.experiment.policy import Kept
from uavlab.experiment.run import Run
from uavlab.telemetry import dataset, flights, predict
from uavlab.telemetry.flight_files import made
from uavlab.telemetry.metrics import figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two networks."""
    folder = tmp_path_factory.mktemp("telling") / "run"
    run = Run(configure("telemetry", sizes("telemetry"), {"runs": 2, "updates": 2}), folder)
    for _ in run.train():
        pass
    return folder


@pytest.fixture(scope="module")
def tells(folder: Path) -> Kept:
    return policy.load(folder)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flight that no run has seen, in a file."""
    [(path, _)] = made(tmp_path_factory.mktemp("logs") / "new", 1, 4321)
    return path


class TestOf:
    def test_is_what_the_network_says(self, tells: Kept, log: Path) -> None:
        flight = dataset.series([flights.read(log)])
        told = predict.of(tells, flight, stride=50, run=1)
        window, horizon = tells.config.env.shape
        forecast = tells.policy(tells.config.env, 1)
        for n in (0, 3):
            rows = flight.inputs[50 * n : 50 * n + window]
            said = forecast(rows[None, None])[0, 0]  # type: ignore[operator]
            torch.testing.assert_close(told.said[n], torch.cat([said[:6], said[-3:]]))
            ahead = flight.astray[50 * n + window + horizon - 1]
            torch.testing.assert_close(told.truth[n], torch.cat([flight.truth[50 * n + window - 1], ahead]))
            assert told.time[n].item() == pytest.approx((50 * n + window - 1) / 100)
        assert len(told.said) == len(told.time) == (len(flight.inputs) - window - horizon) // 50 + 1
        assert told.said.shape[1] == len(predict.COLUMNS) == len(told.doubt)

    def test_networks_differ(self, tells: Kept, log: Path) -> None:
        first, second = (predict.of_log(tells, log, run=run) for run in (0, 1))
        assert not torch.equal(first.said, second.said)

    def test_errors_are_those_of_evaluate(self, tells: Kept, log: Path) -> None:
        flight, task = dataset.series([flights.read(log)]), tells.config.env
        rmse = {row["column"]: row["rmse"] for row in predict.summary(predict.of(tells, flight, 5))}
        found = figures(tells.policy(task, 0), flight, task.shape, 5, 1)  # type: ignore[arg-type]
        for name in ("wind_north", "battery_sag"):
            assert rmse[name] == pytest.approx(found[f"rmse/{name}"].item() ** 0.5, rel=1e-4)

    def test_a_policy_that_flies(self, log: Path) -> None:
        run = Run(tiny(updates=1))
        with pytest.raises(ConfigError, match="flies, and tells nothing of logs; expected a run of telemetry"):
            predict.of(policy.of(run), dataset.series([flights.read(log)]), 10)


class TestLogs:
    def test_without_the_truth(self, tells: Kept, log: Path, tmp_path: Path) -> None:
        with np.load(log) as file:
            logged = {name: file[name] for name in file.files if not name.startswith(("wind", "true", "payload"))}
        np.savez(tmp_path / "log.npz", allow_pickle=False, **logged)
        told, whole = predict.of_log(tells, tmp_path / "log.npz"), predict.of_log(tells, log)
        torch.testing.assert_close(told.said, whole.said)
        rows = {row["column"]: row for row in predict.summary(told)}
        assert rows["wind_east"]["rmse"] is None
        assert rows["drag"]["rmse"] > 0

    def test_too_short(self, tells: Kept, log: Path, tmp_path: Path) -> None:
        with np.load(log) as file:
            np.savez(tmp_path / "log.npz", allow_pickle=False, **{name: file[name][:5] for name in file.files})
        with pytest.raises(FileError, match=r"log.npz: flight: 5 rows at 100 a second; a window and what follows"):
            predict.of_log(tells, tmp_path / "log.npz")


class TestTables:
    def test_hold_what_was_told(self, tells: Kept, log: Path, tmp_path: Path) -> None:
        told = predict.of_log(tells, log, stride=100)
        predict.write(told, tmp_path / "told.csv")
        table: Any = np.genfromtxt(tmp_path / "told.csv", delimiter=",", names=True)
        np.testing.assert_allclose(table["time"], told.time, rtol=1e-5)
        np.testing.assert_allclose(table["payload"], told.said[:, 2], rtol=1e-5)
        np.testing.assert_allclose(table["error_down_sd"], np.full(len(told.time), told.doubt[-1]), rtol=1e-5)

    def test_refused_by_the_disk(self, tells: Kept, log: Path, tmp_path: Path) -> None:
        with pytest.raises(ResourceError, match="cannot be written"):
            predict.write(predict.of_log(tells, log), tmp_path / "nowhere" / "told.csv")

    def test_summary_by_hand(self, tells: Kept, log: Path) -> None:
        told = predict.of_log(tells, log)
        made = replace(told, said=torch.full((2, 9), 3.0), truth=torch.tensor([[1.0] * 9, [6.0] * 9]))
        first = predict.summary(made)[0]
        assert (first["mean"], first["low"], first["high"]) == (3.0, 3.0, 3.0)
        assert first["rmse"] == pytest.approx(6.5**0.5)  # off by 2 and 3


def test_command(folder: Path, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "told.csv"
    done = CliRunner().invoke(cli, ["flights", "tell", str(folder), str(log), "--stride", "200", "--out", str(out)])
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[1].split()
    assert first[:2] == ["wind_north", "m/s"]
    assert len(out.read_text().splitlines()) == 1 + int(done.output.splitlines()[-1].split()[0])
