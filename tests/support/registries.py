"""Registrations that last for one test, so that tests of our own entries see those alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import uavlab as ul
from uavlab import benchmarks as suites
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, SCENES
from uavlab.experiment.names import PRESETS
from uavlab.runtime.toggles import TOGGLES

suites.suites()  # all of them, because a module that is imported within a block would register its suite for that alone
REGISTRIES = (ENVIRONMENTS, LEARNERS, TOGGLES, PRESETS, suites.REGISTRY, SCENES)
Copies = list[tuple[dict[Any, Any], dict[str, Any]]]
"""Entries of each registry, and the places of their definitions."""


def entries() -> Copies:
    """Return copies of all registries, each with the places of its definitions."""
    return [(dict(each), dict(getattr(each, "places", {}))) for each in REGISTRIES]


def replace_entries(copies: Copies) -> None:
    """Put copies of the registries in their place."""
    for registry, (own, places) in zip(REGISTRIES, copies, strict=True):
        registry.clear()
        registry.update(own)
        if hasattr(registry, "places"):
            registry.places = dict(places)


OURS = entries()
from tests.support import outside  # noqa: E402 - between the two copies

WITH_OUTSIDE = entries()
replace_entries(OURS)


@contextmanager
def registered(copies: Copies | None = None, **environments: type) -> Iterator[None]:
    """Put copies in place of the registries, or add environments by name, and restore all registries afterwards."""
    before = entries()
    replace_entries(copies or before)
    for name, kind in environments.items():
        ul.env(name)(kind)
    try:
        yield
    finally:
        replace_entries(before)


def registered_outside() -> AbstractContextManager[None]:
    """Register what ``tests.support.outside`` registers, and forget it afterwards with all that was added."""
    return registered(WITH_OUTSIDE)


__all__ = ["outside", "registered", "registered_outside"]
