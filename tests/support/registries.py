"""Registrations that last for one test, so that tests of our own entries see those alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uavlab.benchmarks import registry as suites
from uavlab.core.registry import ENVIRONMENTS, LEARNERS, SCENES
from uavlab.experiment.presets import PRESETS
from uavlab.runtime.toggles import TOGGLES

REGISTRIES = (ENVIRONMENTS, LEARNERS, TOGGLES, PRESETS, suites.REGISTRY, SCENES)


def entries() -> list[tuple[dict[Any, Any], dict[str, Any]]]:
    """Return copies of all registries, each with the places of its definitions."""
    return [(dict(each), dict(getattr(each, "places", {}))) for each in REGISTRIES]


def replace_entries(copies: list[tuple[dict[Any, Any], dict[str, Any]]]) -> None:
    """Put copies of the registries in their place."""
    for registry, (own, places) in zip(REGISTRIES, copies, strict=True):
        registry.clear()
        registry.update(own)
        if hasattr(registry, "places"):
            registry.places = places


OURS = entries()
from tests.support import outside  # noqa: E402 - between the two copies

WITH_OUTSIDE = entries()
replace_entries(OURS)


@contextmanager
def registered_outside() -> Iterator[None]:
    """Register what ``tests.support.outside`` registers, and forget it afterwards with all that was added."""
    before = entries()
    replace_entries(WITH_OUTSIDE)
    try:
        yield
    finally:
        replace_entries(before)


__all__ = ["outside", "registered_outside"]
