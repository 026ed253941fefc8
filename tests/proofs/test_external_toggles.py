"""Every toggle acts on runs of an external environment as on those of ours, or falls back with a reason."""

from typing import Any

import pytest

from tests.contracts.test_equality import cases, check_equal
from tests.support.fixtures_config import sizes, train_run
from tests.support.registries import registered
from uavlab.core.errors import FallbackWarning
from uavlab.experiment import run_state
from uavlab.experiment.config import configure
from uavlab.runtime.toggles import Toggle
from uavlab.workers.registration import external

RUNS = (({"moves": False}, "masac"), ({}, "mappo"))  # with replay, and on-policy
SMALL: dict[str, Any] = {"workers": 1, "copies": 32}


@pytest.mark.usefixtures("only_traced")
@pytest.mark.parametrize(("arguments", "learner"), RUNS, ids=lambda each: str(each))
@pytest.mark.parametrize(("toggle", "changes"), cases(usable=True, compiler=True))
def test_a_toggle_that_acts_is_equal_to_plain(
    arguments: dict[str, Any], learner: str, toggle: Toggle, changes: dict[str, Any]
) -> None:
    with registered():
        name = external("tests.support.strangers:Meadow", **arguments)
        check_equal(name, learner, toggle, changes, **SMALL)


@pytest.mark.parametrize(("arguments", "learner"), RUNS, ids=lambda each: str(each))
@pytest.mark.parametrize(("toggle", "changes"), cases(usable=False))
def test_a_toggle_that_falls_back_has_a_reason_and_changes_nothing(
    arguments: dict[str, Any], learner: str, toggle: Toggle, changes: dict[str, Any]
) -> None:
    with registered():
        name = external("tests.support.strangers:Meadow", **arguments)
        own = {**sizes(name, learner), **SMALL, "updates": 4, "learner": learner}
        base = {each: value for each, value in changes.items() if each != toggle.name}
        with pytest.warns(FallbackWarning, match=f"^{toggle.name}={changes[toggle.name]} fell back: ") as warned:
            run = train_run(configure(name, own, changes))
        assert len(warned) == 1
        assert run.rt.fell_back[toggle.name]
        assert run_state.digest(run) == run_state.digest(train_run(configure(name, own, base)))
