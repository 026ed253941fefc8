"""Figures hold the predictions; equations hold at the truth and notice errors; paces are computed by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.telemetry import flights, predict
from uavlab.telemetry.flights import FlightDataset, Telemetry
from uavlab.telemetry.predict import COLUMNS, Prediction
from uavlab_lab.lessons import telemetry as hidden


@pytest.fixture(scope="module")
def trained() -> TrainedPolicy:
    trained, name = hidden.load_network()
    assert name == f"the network of figures/telemetry, {trained.update:,} updates"
    return trained


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run."""
    folder = tmp_path_factory.mktemp("runs") / "wind"
    run = Run(configure("telemetry", sizes("telemetry"), {"updates": 1}), folder)
    for _ in run.train():
        pass
    return folder


def test_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    Run(tiny(), tmp_path / "team").save()
    with pytest.raises(ConfigError) as refusal:
        hidden.load_network(str(tmp_path / "team"))
    assert str(refusal.value) == ("leader_follower: not trained on logs; expected a run of telemetry.")


@pytest.fixture(scope="module")
def flight(trained: TrainedPolicy) -> FlightDataset:
    return hidden.unseen_flights(trained, 1)[0]


@pytest.fixture(scope="module")
def prediction(trained: TrainedPolicy, flight: FlightDataset) -> Prediction:
    task: Any = trained.config.env
    forecast: Any = trained.batched_policy(task, 0)
    return predict.predict(forecast, task, flight)


class TestNetwork:
    def test_the_one_that_comes_along_has_learned(self, prediction: Prediction) -> None:
        off, spread = (prediction.values - prediction.truth)[:, :6], prediction.truth[:, :6].std(0)
        assert (off[:, :2].square().mean(0).sqrt() < spread[:2]).all()  # wind, which changes within the flight
        rows = {row["column"]: row for row in predict.summary(prediction)}
        for name, most in (("payload", 0.05), ("motor_lag", 0.01), ("battery_sag", 0.2), ("drag", 0.2)):
            assert rows[name]["rmse"] < most, name

    def test_a_run_of_ones_own(self, own: Path) -> None:
        trained, name = hidden.load_network(str(own))
        assert (name, trained.update) == ("the run wind, 1 updates", 1)


def test_flights_are_flown_from_their_own_seed(own: Path) -> None:
    trained, _ = hidden.load_network(str(own))
    first, second = hidden.unseen_flights(trained, 2)
    task = replace(trained.config.env, flights=3, most=trained.config.env.least)
    [unseen], [trained_on] = (list(flights.simulate(replace(task, first=seed))) for seed in (10**6, 0))
    torch.testing.assert_close(second.inputs, flights.features(unseen[1]))
    assert not torch.equal(first.truth[0], second.truth[0])
    assert not torch.equal(first.inputs, flights.features(trained_on[0]))
    assert first.bounds.tolist() == [0, task.least]


def test_a_simulated_log_can_be_predicted(trained: TrainedPolicy, tmp_path: Path) -> None:
    path = hidden.write_flight(tmp_path, 77)
    assert path.name == "flight_000077.npz"
    assert len(flights.read(path)["x"]) == 2000
    task: Any = trained.config.env
    forecast: Any = trained.batched_policy(task, 0)
    assert len(predict.predict_log(forecast, task, path, stride=250).time) == 8


class TestDrawn:
    def test_all_columns(self, prediction: Prediction) -> None:
        figure = hidden.draw_prediction(prediction, title="A flight")
        assert [trace.name for trace in figure.data] == ["90 %", "predicted", "truth"] * len(COLUMNS)
        band, values, truth = figure.data[3:6]
        assert list(values.y) == pytest.approx(prediction.values[:, 1].tolist(), rel=1e-5)
        assert list(truth.y) == pytest.approx(prediction.truth[:, 1].tolist(), rel=1e-5)
        wide = (max(band.y) - max(values.y)) / prediction.sd[1].item()
        assert wide == pytest.approx(1.645, rel=1e-4)
        assert figure.layout.annotations[1].text == "wind east (m/s)"

    def test_some_columns_without_truth(self, prediction: Prediction) -> None:
        blind = replace(prediction, truth=torch.full_like(prediction.truth, torch.nan))
        figure = hidden.draw_prediction(blind, ["drag", "payload", "error_down"])
        assert [trace.name for trace in figure.data] == ["90 %", "predicted"] * 3
        assert [each.text for each in figure.layout.annotations] == ["payload (kg)", "drag (kg/s)", "error down (m)"]
        assert sum(bool(trace.showlegend) for trace in figure.data) == 2


class TestMissed:
    def test_equations_notice_what_they_are_about(self) -> None:
        [chunk] = flights.simulate(Telemetry(flights=3, least=600, most=600))
        truth, *wrong = hidden.physics_residuals(flights.concatenate([chunk[0]]), 200)
        assert truth["case"] == "the truth"
        rows = {row["case"].split(" wrong")[0]: row for row in wrong}
        for name, equation in (("wind north", "force"), ("payload", "force"), ("drag", "force"), ("motor lag", "spin")):
            assert rows[name][equation] > 1.02 * truth[equation], name
        assert rows["battery sag"]["charge"] > truth["charge"]
        assert rows["wind north"]["charge"] == truth["charge"]
        assert max(truth[equation] for equation in ("force", "spin", "charge")) < 4.0


class TestPrinted:
    def test_falls_although_the_pace_is_the_same(self) -> None:
        rows = hidden.printed_rates([100.0] * 4, 50, 1000)
        own, whole = ([row["pace"] for row in rows if row["how"].startswith(how)] for how in ("of the in", "of the wh"))
        assert own == [100.0] * 4
        assert whole == [2000.0, 1000.0, pytest.approx(2000 / 3), 500.0]

    def test_a_slow_interval_is_seen_in_its_own_pace(self) -> None:
        rows = hidden.printed_rates([100.0, 25.0], 50, 1000)
        assert [row["seconds"] for row in rows] == [0.5, 0.5, 2.5, 2.5]
        assert rows[2]["pace"] == 25.0


def test_scores_side_by_side() -> None:
    row = {"mean": 0.9, "low": 0.8, "high": 0.95}
    seeds = [{"r2": {"drag": row}}, {"r2": {"drag": {**row, "mean": 0.7}}}]
    first, second = hidden.scores({"network": seeds, "ridge": [{"r2": {"drag": {**row, "mean": 0.5}}}]})
    assert first == {"target": "drag", "by": "network", "r2": pytest.approx(0.8), "low": 0.7, "high": 0.9}
    assert second == {"target": "drag", "by": "ridge", "r2": 0.5, "low": 0.8, "high": 0.95}
