"""Figures show labels; a name without a label is shown with spaces, and labels of others are not borrowed."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import uavlab  # noqa: F401  # registers environments and learners
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, Environment
from uavlab.core.types import Metric
from uavlab.experiment.names import is_external
from uavlab_lab.labels import is_raw, label_of, unit_of


@dataclass(frozen=True)
class Chase:
    """An environment of a user, without labels."""

    top_speed: float = 1.0
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("hit_rate", "mean"), Metric("path", "sum", "m"))


@dataclass(frozen=True)
class Race:
    """One with labels, of which one is that of another environment."""

    dt: float = 1.0
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("lap_time", "last", "s"),)
    labels: ClassVar[dict[str, str]] = {"dt": "time step (ms)", "lap_time": "time of a lap"}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "chase", Environment(Chase))
    monkeypatch.setitem(ENVIRONMENTS, "race", Environment(Race))


def test_registered_labels() -> None:
    assert label_of("formation_strict") == "strict formation"
    assert label_of("f1") == "F1 of targets"
    assert label_of("lr") == "learning rate"  # several learners agree
    assert unit_of("entropy") == "bit"


@pytest.mark.usefixtures("outside")
def test_a_name_without_a_label_has_spaces() -> None:
    assert label_of("hit_rate", Chase()) == label_of("hit_rate") == "hit rate"
    assert label_of("top_speed") == "top speed"
    assert label_of("lap_time") == "time of a lap"


@pytest.mark.usefixtures("outside")
def test_owners_that_disagree_leave_the_name() -> None:
    assert label_of("dt") == "dt"
    assert label_of("dt", Race()) == "time step (ms)"
    assert label_of("dt", ENVIRONMENTS["leader_follower"].kind) == "time step (s)"
    assert (unit_of("path"), unit_of("lap_time")) == ("", "s")


@pytest.mark.usefixtures("outside")
def test_raw_names_are_those_of_metrics_settings_and_columns() -> None:
    assert all(map(is_raw, ("hit_rate", "top_speed", "motor_lag", "formation_strict")))
    assert not any(map(is_raw, ("leader_follower_quick", "a sentence")))


def test_labels_belong_to_names_that_exist() -> None:
    entries = [entry for name, entry in ENVIRONMENTS.items() if not is_external(name)]  # which other tests may register
    known = {each.name for entry in entries for each in getattr(entry.kind, "metrics", ())}
    for owner in [*(e.kind for e in entries), *(e.settings for e in LEARNERS.values())]:
        known |= set(owner.__dataclass_fields__)
    strange = [n for e in entries for n in getattr(e.kind, "labels", {}) if n not in known]
    from uavlab.telemetry.predict import COLUMNS, METRICS, TARGETS

    assert set(strange) <= {each.name for each in METRICS} | {*TARGETS, *COLUMNS}
