"""Which settings of the task belong together, and the messages where they do not."""

import pytest

from uavlab.core.errors import ConfigError
from uavlab.experiment.config import configure
from uavlab.telemetry.flights import Telemetry


def test_the_task_is_known_by_its_name() -> None:
    assert Telemetry().spec == Telemetry().shape
    assert isinstance(configure("telemetry").env, Telemetry)


def test_defaults_keep_their_own_rules() -> None:
    task = Telemetry()
    given = {**vars(task), "physics": 0.0}
    for names, holds, _ in task.rules:
        assert holds(*(given[name] for name in names)), names
    assert task.shape == (200, 50)
    assert Telemetry(window=30, horizon=4).shape == (30, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mapping": "px4.yaml"}, "mapping px4.yaml without logs: set the folder that it is for"),
        ({"least": 3000, "most": 2999}, "least 3000 > most 2999: no flight is as long as that"),
        (
            {"window": 1951, "horizon": 50, "least": 2000},
            "window 1951 + horizon 50 > least 2000: flights are too short",
        ),
        ({"training": 0.8, "validation": 0.2}, "training 0.8 + validation 0.2 leave no flight for the test"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        configure("telemetry", changes)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"least": 3000, "most": 3000},
        {"window": 1950, "horizon": 50, "least": 2000},
        {"training": 0.8, "validation": 0.19},
        {"mapping": "px4.yaml", "logs": "flights"},
    ],
)
def test_what_just_belongs_together_is_not(changes: dict[str, object]) -> None:
    config = configure("telemetry", changes)
    for name, value in changes.items():
        assert getattr(config.env, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("flights", 2), ("least", 1), ("wind", -0.1), ("payload", 1.1), ("training", 0.0), ("validation", 0.99)),
        *(("used", 0.0), ("window", 1), ("horizon", 0), ("stride", 0), ("first", -1)),
    ],
)
def test_settings_have_their_bounds(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        configure("telemetry", {name: value})
