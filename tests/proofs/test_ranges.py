"""Every setting that is a float survives its smallest and its largest value in a tiny run of each kind."""

import math
import sys
from dataclasses import replace
from typing import Annotated, Any, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt

from tests.support.fixtures_config import sizes, train_run
from uavlab.core.errors import ConfigError, DivergedError, FileError
from uavlab.experiment.config import configure, parts
from uavlab.experiment.settings import settings_of
from uavlab.learners.masac.masac import MASACConfig

RUN = {"updates": 3, "evaluate_every": 3, "log_every": 1, "evaluate_episodes": 2, "checkpoint_every": 3}
ENVIRONMENTS = ("leader_follower", "mapping", "telemetry")  # of MASAC, COMA and the forecaster
NO_NUMBERS = ("minutes", "memory_fraction")  # of a run's length, and of a GPU


def ends(kind: Any) -> list[float]:
    """Return the smallest and the largest float that a type accepts; none if it accepts no float."""
    for each in (kind, *get_args(kind)):
        base, *limits = get_args(each) or (each,)
        if base is float:
            low, high = -sys.float_info.max, sys.float_info.max
            for limit in limits:
                low = getattr(limit, "ge", low)
                high = getattr(limit, "le", high)
                low = math.nextafter(limit.gt, math.inf) if isinstance(limit, Gt) else low
                high = math.nextafter(limit.lt, -math.inf) if isinstance(limit, Lt) else high
            return [float(low), float(high)]
    return []


def outcome(env: str, name: str, value: float) -> str:
    """Train with one setting changed; return how it ended, empty if it trained or was refused beforehand."""
    try:
        train_run(configure(env, {**sizes(env), **RUN}, {name: value}))
    except (ConfigError, FileError):
        return ""
    except (DivergedError, Exception) as error:
        return f"{name}={value:g}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_both_ends_of_every_float_can_be_trained_with(env: str) -> None:
    settings = [each for part in parts(configure(env, sizes(env)).task.settings) for each in settings_of(part)]
    values = [(each.name, value) for each in settings if each.name not in NO_NUMBERS for value in ends(each.kind)]
    assert len(values) > 15
    assert [text for name, value in values if (text := outcome(env, name, value))] == []


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("alpha", 1e308, "RuntimeError"), ("alpha", 5e-324, "DivergedError"), ("target_entropy", 1e308, "DivergedError")],
)
def test_a_range_without_an_end_is_caught(name: str, value: float, error: str) -> None:
    config = configure("leader_follower", {**sizes("leader_follower"), **RUN})
    wide = replace(config, learner=replace(config.learner, **{name: value}))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of either kind
        train_run(wide)
    assert type(caught.value).__name__ == error


def test_ends_by_hand() -> None:
    assert ends(Annotated[float, Gt(0), Le(1)] | None) == [5e-324, 1.0]
    assert ends(Annotated[float, Ge(-2), Lt(0)]) == [-2.0, -5e-324]
    assert ends(float) == [-sys.float_info.max, sys.float_info.max]
    assert ends(MASACConfig) == ends(Annotated[int, Ge(1)]) == []
