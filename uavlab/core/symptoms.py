"""How a learner describes itself, so that a run can say what ails it: metrics to watch, and settings to try.

Names of metrics are those of ``Update.metrics``, names of settings those of the learner's hyper-parameters.
``uavlab.experiment.symptoms`` holds the rules.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from uavlab.core.types import EnvSpec

Symptom = Literal["entropy_high", "entropy_low", "loss_grows", "scores_still"]
"""What may ail a run: a random policy, one that collapsed, a diverging critic, scores that never move."""


class Range(NamedTuple):
    """Smallest and largest entropy of an agent's policy (nats); ``masked`` if masks of moves may lower the largest."""

    low: float
    high: float
    masked: bool = False


@dataclass(frozen=True)
class Entropy:
    """The entropy of a policy.

    Attributes:
        metric: Name of the metric, a mean over agents (nats).
        range: (hyper-parameters, ``spec``) -> its range for one agent.
    """

    metric: str
    range: Callable[[Any, Any], Range]


@dataclass(frozen=True)
class Remedy:
    """A setting to try.

    Attributes:
        setting: Name of a hyper-parameter.
        value: (hyper-parameters, ``spec``) -> value to try; None if another one would not help.
    """

    setting: str
    value: Callable[[Any, Any], float | None]


@dataclass(frozen=True)
class Symptoms:
    """What a run of a learner watches, and what helps.

    Attributes:
        entropy: The policy's entropy; None if it has none.
        loss: Name of the metric that grows without bound if training diverges, such as the critic's loss.
        returns: Name of the metric of returns in training, whose first value is that of an untrained policy.
        remedies: Settings to try against each symptom; the first whose value would change is named.
    """

    entropy: Entropy | None = None
    loss: str = ""
    returns: str = ""
    remedies: Mapping[Symptom, tuple[Remedy, ...]] = field(default_factory=dict)


def move_range(spec: "EnvSpec") -> Range:
    """Return the range of the entropy of a choice among moves: from 0 to log E, less where moves are closed."""
    return Range(0.0, math.log(spec.choices), masked=True)


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
    """Return the remedy to raise a discount that sees less than a twentieth of an episode, to a tenth of it.

    A discount gamma sees about 1 / (1 - gamma) steps.
    """

    def value(config: Any, spec: "EnvSpec") -> float | None:
        short, new = (1 - config.gamma) * spec.horizon > 20, min(round(1 - 10 / spec.horizon, 3), 0.999)
        return new if short and new > config.gamma else None

    return Remedy("gamma", value)
