"""The largest setting that fits is one that was tried by whole updates, and twice as much does not fit."""

from typing import Any
from unittest import mock

import pytest

from tests.support.fixtures_config import tiny
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.experiment import fit as module
from uavlab.experiment.config import Config
from uavlab.experiment.fit import largest
from uavlab.profiling.batch_size import Budget


def peak(config: Config, setting: str, value: int) -> int:
    """Return the most bytes that two updates with this value hold at a time."""
    with Budget(10**12) as spent:

        def measure(make_step: Any, *bounds: Any) -> None:
            step = make_step(value)
            for _ in range(2):
                step()

        with mock.patch.object(module, "largest_batch", measure):
            largest(config, setting, 1, value)
    return spent.peak


def test_it_is_the_largest_that_fits() -> None:
    check_largest(tiny(capacity=1000, worlds=4, hidden=16), "batch", 908)


def check_largest(config: Config, setting: str, most: int) -> None:
    """Search between 8 less and 8 more than the most that fits into the memory of the most."""
    budget = peak(config, setting, most)
    search = largest(config, setting, most - 8, most + 8, margin=0.0, budget=budget)
    assert search.rows == most
    assert search.trials[search.rows]  # it was tried itself
    assert peak(config, setting, search.rows + 1) > budget


def test_what_is_refused() -> None:
    with pytest.raises(ResourceError, match="a step with 8 rows"):
        largest(tiny(capacity=4000), "batch", 8, 16, margin=0.0, budget=1000)
    with pytest.raises(ConfigError, match="unknown setting 'bach'"):
        largest(tiny(), "bach", 8, 16)
    with pytest.raises(ConfigError, match="batch 128 > capacity 32"):
        largest(tiny(), "batch", 64, 128)
