"""The plan of a run that learns from logs, and the size of its policy."""

import pytest

from tests.support.fixtures_config import sizes
from uavlab.experiment import build
from uavlab.experiment.config import configure


def test_what_a_run_would_do() -> None:
    config = configure("telemetry", {"updates": 100, "batch": 50, "flights": 10, "least": 1000, "most": 3000})
    plan = config.task.plan(config)
    assert plan["windows_per_run"] == 5000
    assert plan["passes_per_run"] == pytest.approx(5000 * 5 / (10 * 0.7 * 2000), abs=0.01)
    assert plan["flights"] == 10
    assert plan["flight_bytes"] == 4 * 10 * 2000 * (33 + 6 + 3)
    assert config.task.collector.pace(config) == (50, "windows")
    config = configure("telemetry", {"minutes": 1.0})
    endless = config.task.plan(config)
    assert endless["windows_per_run"] is endless["passes_per_run"] is None


def test_parameters_are_as_many_as_counted() -> None:
    config = configure("telemetry", sizes("telemetry"))
    _, _, learner, _ = build.assemble(config)
    assert learner.parameters().shape == (1, 1, config.task.entry.size(config.learner, config.env.spec))
