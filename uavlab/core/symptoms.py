"""How a learner describes itself, so that a run can say what ails it: metrics to watch, and settings to try."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from uavlab.core.types import EnvSpec

Symptom = Literal["target_high", "entropy_high", "entropy_low", "loss_grows", "scores_still"]
"""What may ail a run: a random policy, by its target or not, one that collapsed, a diverging critic, still scores."""


class Range(NamedTuple):
    """Smallest and largest entropy of an agent's policy (nats), without masks of moves."""

    low: float
    high: float


@dataclass(frozen=True)
class Entropy:
    """The entropy of a policy, by the names of metrics; those that are not reported have no effect.

    ``limit`` is the largest entropy that masks of moves allow, a mean over the same rows, which lowers the range.
    ``target`` is what the learner aims at, relative to ``limit``; of several agents the highest.
    """

    metric: str  # a mean over agents (nats)
    range: Callable[[Any, Any], Range]  # (hyper-parameters, spec) -> of one agent
    limit: str = ""
    target: str = ""


@dataclass(frozen=True)
class Remedy:
    """A hyper-parameter to try: ``value`` is a function (hyper-parameters, spec) -> value, None if no other helps."""

    setting: str
    value: Callable[[Any, Any], float | str | None]  # a text as on a command line, such as ``null``


@dataclass(frozen=True)
class Symptoms:
    """What a run of a learner watches, by the names of metrics, and what helps."""

    entropy: Entropy | None = None
    loss: str = ""  # grows without bound if training diverges
    returns: str = ""  # in training; the first value is that of an untrained policy
    remedies: Mapping[Symptom, tuple[Remedy, ...]] = field(default_factory=dict)  # the first one that changes


def move_range(spec: "EnvSpec") -> Range:
    """Return the range of the entropy of a choice among moves: from 0 to log E, less where moves are closed."""
    return Range(0.0, math.log(spec.choices))


def times(setting: str, factor: float, least: float = 0.0, most: float = math.inf) -> Remedy:
    """Return the remedy to multiply a setting by a factor, within limits of the result."""

    def value(config: Any, spec: Any) -> float | None:
        now = getattr(config, setting)
        if now is None:  # it follows from what is learned
            return None
        new = min(max(factor * now, least), most)
        return new if (new - now) * (factor - 1) > 0 else None

    return Remedy(setting, value)


def lower(setting: str, limit: float, value: float) -> Remedy:
    """Return the remedy to set a setting that is above a limit to a value below it."""
    return Remedy(setting, lambda config, spec: value if getattr(config, setting) > limit else None)


def higher(setting: str, limit: float, value: float) -> Remedy:
    """Return the remedy to set a setting that is below a limit to a value above it."""
    return Remedy(setting, lambda config, spec: value if getattr(config, setting) < limit else None)


def longer_view() -> Remedy:
    """Return the remedy to raise a discount, which sees 1 / (1 - gamma) steps, from below a twentieth of an episode."""

    def value(config: Any, spec: "EnvSpec") -> float | None:
        short, new = (1 - config.gamma) * spec.horizon > 20, min(round(1 - 10 / spec.horizon, 3), 0.999)
        return new if short and new > config.gamma else None

    return Remedy("gamma", value)
