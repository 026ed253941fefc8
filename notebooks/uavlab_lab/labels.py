"""Names for people, which axes, legends and tables show; files and the command line keep the raw names.

An environment or the settings of a learner may have a class attribute ``labels``: raw names of metrics, settings or
columns, each with what a figure calls it; a setting's label has its unit, as in ``"dt": "time step (s)"``. The unit of
a metric is its own field.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import uavlab.registration  # noqa: F401 - after which all that the package brings is registered
from uavlab.core.registry import ENVIRONMENTS, LEARNERS
from uavlab.core.types import Metric


def label_of(name: str, owner: Any = None) -> str:
    """Return the label of a raw name, and the name with spaces for underscores where there is none.

    ``owner`` is the environment, or the settings, that the name belongs to; None stands for all that are registered,
    among which those that label the name must agree.
    """
    owners = _owners() if owner is None else [owner]
    known = {labels[name] for labels in map(_labels, owners) if name in labels}
    return known.pop() if len(known) == 1 else name.replace("_", " ")


def unit_of(metric: str) -> str:
    """Return the unit of a metric; empty where it has none, or where environments disagree."""
    units = {each.unit for owner in _owners() for each in _metrics(owner) if each.name == metric}
    return units.pop() if len(units) == 1 else ""


def is_raw(name: str) -> bool:
    """Return whether this is the raw name of a metric, a setting or a column of something registered."""
    return any(name in _labels(owner) or name in _names(owner) for owner in _owners())


def _owners() -> list[Any]:
    return [each.kind for each in ENVIRONMENTS.values()] + [each.settings for each in LEARNERS.values()]


def _labels(owner: Any) -> Mapping[str, str]:
    return getattr(owner, "labels", {})


def _names(owner: Any) -> set[str]:
    settings = {each.name for each in fields(owner)} if is_dataclass(owner) else set()
    return settings | {each.name for each in _metrics(owner)}


def _metrics(owner: Any) -> tuple[Metric, ...]:
    metrics = getattr(owner, "metrics", ())
    return metrics if isinstance(metrics, tuple) else ()  # those of some environments depend on their settings
