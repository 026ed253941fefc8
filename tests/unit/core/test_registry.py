"""A registry holds each name once, whoever registers it."""

import pytest

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Environment, Registry, place_of


class One:
    """An environment."""


class Other:
    """Another."""


def test_a_name_without_a_place_belongs_to_one_entry() -> None:
    registry: Registry[Environment] = Registry("environment")
    entry = registry.register("task", Environment(One))
    for place in (None, place_of(Other)):
        with pytest.raises(
            ConfigError, match=r"^register: the environment 'task' is already One; choose another name\.$"
        ):
            registry.register("task", Environment(Other), place)
    assert registry == {"task": entry}


def test_a_name_of_a_user_belongs_to_the_newest_entry() -> None:
    registry: Registry[type] = Registry("learner")
    registry.register("mine", One, place_of(One))
    assert registry.register("mine", One, place_of(One)) is One  # executed again
    with pytest.warns(UserWarning, match=r"^the learner 'mine' is now Other of .*test_registry.py, no longer One of "):
        registry.register("mine", Other, place_of(Other))
    assert registry == {"mine": Other}
