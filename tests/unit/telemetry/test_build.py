"""The plan of a run that learns from logs, and the size of its policy."""

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.core.registry import LEARNERS
from uavlab.core.types import Scale
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.telemetry.forecaster import Forecast, predict_with_deviation


def test_what_a_run_would_do() -> None:
    config = configure("telemetry", {"updates": 100, "batch": 50, "flights": 10, "least": 1000, "most": 3000})
    plan = config.task.plan(config)
    assert plan["windows_per_run"] == 5000
    assert plan["passes_per_run"] == pytest.approx(5000 * 5 / (10 * 0.7 * 2000), abs=0.01)
    assert plan["flights"] == 10
    assert plan["flight_bytes"] == 4 * 10 * 2000 * (33 + 6 + 3)
    assert config.task.collector.data_per_update(config) == (50, "windows")
    config = configure("telemetry", {"minutes": 1.0})
    endless = config.task.plan(config)
    assert endless["windows_per_run"] is endless["passes_per_run"] is None


def test_parameters_are_as_many_as_counted() -> None:
    config = configure("telemetry", sizes("telemetry"))
    _, _, learner, _ = build.assemble(config)
    assert learner.parameters().shape == (1, 1, config.task.algorithm.size(config.learner, config.env.spec))


def test_signals_of_an_exported_forecaster() -> None:
    portable = LEARNERS["forecaster"].portable
    (window,), (mean, deviation) = portable.inputs((60, 2)).values(), portable.outputs((60, 2)).values()
    assert window.shape == (60, 33)
    units = dict(zip(window.names, window.unit, strict=True))
    assert [units[name] for name in ("tracking_error_east", "commanded_velocity_down", "velocity_north")] == [
        *("m", "m/s", "m/s")
    ]
    assert [units[name] for name in ("command_yaw", "thrust", "spin_roll", "voltage_swing", "current")] == [
        *("1", "m/s^2", "rad/s^2", "V", "A")
    ]
    assert mean.names == deviation.names
    assert mean.names[6:] == (
        *("error_north_1", "error_east_1", "error_down_1"),
        *("error_north_2", "error_east_2", "error_down_2"),
    )
    assert mean.unit == ("m/s", "m/s", "kg", "kg/s", "s", "V", "m", "m", "m", "m", "m", "m")


def test_a_forecaster_predicts_with_deviations() -> None:
    """Log variances of log 4 and spreads of 1 to 7 give deviations of 2 to 14, the last one for all errors ahead."""
    spread = torch.arange(1.0, 8)[None]
    inputs = Scale(torch.ones(1, 33), torch.full((1, 33), 2.0))
    forecast = Forecast(lambda x: x[..., 0, :9], inputs, torch.full((1, 7), 4.0).log(), spread)
    mean, deviation = predict_with_deviation(forecast, torch.full((5, 60, 33), 7.0))
    assert torch.equal(mean, torch.full((5, 9), 3.0))
    assert torch.allclose(deviation, torch.tensor([2.0, 4, 6, 8, 10, 12, 14, 14, 14]).repeat(5, 1))
