"""A task is assembled from an environment and a learner that fits, or refused with a reason."""

import warnings
from dataclasses import dataclass, replace

import pytest

from tests.support.fixtures_config import sizes
from uavlab.core.errors import ConfigError
from uavlab.core.registry import COLLECTORS, LEARNERS, Environment
from uavlab.core.types import EnvSpec
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.experiment.task import ENVIRONMENTS, task
from uavlab.runtime.toggles import TOGGLES


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_names_a_learner_that_fits(name: str) -> None:
    chosen = task(name)
    assert chosen.learner == ENVIRONMENTS[name].learner
    assert LEARNERS[chosen.learner].refusal(ENVIRONMENTS[name].kind().spec) is None
    assert chosen.settings == (
        COLLECTORS[LEARNERS[chosen.learner].collector].settings,
        LEARNERS[chosen.learner].settings,
        ENVIRONMENTS[name].kind,
    )


def test_a_learner_that_does_not_fit_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"^learner coma cannot learn leader_follower: .*Learners that can: masac.$"):
        configure("leader_follower", {"learner": "coma"})
    with pytest.raises(ConfigError, match=r"^unknown learner 'masak' \(did you mean 'masac'\?\)"):
        configure("leader_follower", {"learner": "masak"})
    with pytest.raises(ConfigError, match=r"^learner: expected a name, got 3.$"):
        configure("leader_follower", {"learner": 3})


@pytest.mark.parametrize("name", ["mapping", "telemetry"])
def test_a_learner_of_continuous_actions_refuses_other_environments(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^learner masac cannot learn {name}: "):
        task(name, "masac")


def test_without_a_default_the_first_learner_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Maps:
        choices: int = 4

        @property
        def spec(self) -> EnvSpec:
            return EnvSpec(1, 1, 1, 10, 1.0, 1, 1, (0,), choices=self.choices, side=3)

    @dataclass(frozen=True)
    class Vectors(Maps):
        choices: int = 0

    monkeypatch.setitem(ENVIRONMENTS, "maps", Environment(Maps))
    assert task("maps").learner == "coma"
    monkeypatch.setitem(ENVIRONMENTS, "maps", Environment(Vectors))
    assert task("maps").learner == "masac"


def test_toggles_of_missing_parts_are_unserved() -> None:
    assert set(task("leader_follower").unserved) == {"loader"}
    assert {"update", "prefetch", "loader"} <= set(task("mapping").unserved)
    assert task("telemetry").unserved["interval"] == "this learner learns from logs, no team flies"


def test_a_second_learner_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered learner is served at once, for every environment that it fits."""
    monkeypatch.setitem(LEARNERS, "mine", replace(LEARNERS["masac"]))
    config = configure("leader_follower", {"learner": "mine"})
    assert (config.task.learner, config.values["learner"]) == ("mine", "mine")


def test_a_toggle_of_the_default_set_is_no_fallback_where_its_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever registers it: nobody asked for its value, so nobody is warned."""
    outside = replace(TOGGLES["prefetch"], name="outside", eager="on")
    monkeypatch.setitem(TOGGLES, "outside", outside)
    for value, reasons in (("on", []), ("overlap", ["outside"])):
        config = configure("mapping", sizes("mapping"), {"outside": value})
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            rt, *_ = build.assemble(config)
        assert list(rt.fell_back) == reasons
