"""A registry holds each name once, whoever registers it."""

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Environment, Registry


class One:
    """An environment."""


class Other:
    """Another."""


def test_a_name_belongs_to_one_entry() -> None:
    registry: Registry[Environment] = Registry("environment")
    entry = registry.register("task", Environment(One))
    assert registry == {"task": entry}
    assert registry.register("task", Environment(One, baselines=entry.baselines)) == entry
    with pytest.raises(ConfigError, match=r"^register: the environment 'task' is already One; choose another name\.$"):
        registry.register("task", Environment(Other))
    assert registry == {"task": entry}
