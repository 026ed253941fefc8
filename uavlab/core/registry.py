"""What can be registered, from inside and from outside the package, by ``REGISTRY.register(name, entry)``.

An experiment is put together from three entries: an environment, the learner that it names (or that ``learner=``
chooses), and the collector that the learner names. No pair of them is listed anywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from uavlab.core.errors import ConfigError

T = TypeVar("T")


class Registry(dict[str, T]):
    """Entries of one kind by name, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, name: str, entry: T) -> T:
        """Make an entry known under ``name``; the same entry may be registered again.

        Raises:
            ConfigError: The name belongs to another entry.
        """
        if self.setdefault(name, entry) != entry:
            raise ConfigError(f"register: the {self.kind} {name!r} is already {self[name]}; choose another name.")
        return entry


class Resume(Enum):
    """Whether a resumed run may change a setting; a mark in the setting's ``Annotated`` type."""

    NO = "no"
    YES = "yes"
    SAME = "yes, and the results stay the same"


@dataclass(frozen=True)
class Settings:
    """The valid settings of an experiment, as entries see them: one object of settings for each part.

    Attributes:
        preset: Name of the preset.
        run: Seeds, lengths and intervals.
        source: The collector's settings.
        learner: The learner's hyper-parameters.
        toggles: The optimizations.
        env: The environment to train on.
    """

    preset: str
    run: Any
    source: Any
    learner: Any
    toggles: Any
    env: Any


@dataclass(frozen=True)
class Evaluation:
    """How policies on an environment are judged.

    Attributes:
        figures: Settings, environment, policy, streams, how many, mean action or sampled, stream, to figures (R E).
        summary: Environment and figures to the mean and interval of each.
        baseline: Settings, runtime and a registered baseline to a policy.
        check: Settings to the report of a contract check; raises where the contract is broken.
        units: Environment to the unit of each figure.
        count: How a number of episodes is written, ``{} episodes``.
        flies: Whether a world can be drawn while a policy acts in it.
    """

    figures: Callable[..., Any]
    summary: Callable[[Any, Any], dict[str, Any]]
    baseline: Callable[[Settings, Any, Any], Any]
    check: Callable[[Settings], Any]
    units: Callable[[Any], dict[str, str]]
    count: str
    flies: bool


@dataclass(frozen=True)
class Environment:
    """An environment.

    Attributes:
        kind: A frozen dataclass whose fields are settings; its ``spec`` is what a learner must know of it.
        learner: Name of the default learner; None takes the first registered one that fits the ``spec``.
        baselines: Policies without learning, by name.
        evaluation: How policies are judged; None flies whole episodes.
        implementation: Environment and runtime to the environment as its toggles compute it.
    """

    kind: type[Any]
    learner: str | None = None
    baselines: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    implementation: Callable[[Any, Any], Any] = lambda env, rt: env

    def __str__(self) -> str:
        """Return the name of the class, for messages."""
        return self.kind.__qualname__


@dataclass(frozen=True)
class LearnerEntry:
    """A learner.

    Attributes:
        settings: Its frozen dataclass of hyper-parameters.
        collector: Name of the collector that feeds it.
        build: Settings, the collector's data, streams and runtime to a learner.
        load_policy: Hyper-parameters, the ``spec`` trained on, the ``spec`` to act in, and parameters to a policy.
        size: Hyper-parameters and ``spec`` to the parameters of one policy network.
        refusal: Why an environment of this ``spec`` cannot be learned; None if it can.
        require_same: Raises where a policy trained on one ``spec`` cannot be judged on another.
        plan: Settings to what a dry run prints of the learner.
        unserved: Toggles that do nothing for it, and why.
    """

    settings: type[Any]
    collector: str
    build: Callable[..., Any]
    load_policy: Callable[[Any, Any, Any, Any], Any]
    size: Callable[[Any, Any], int]
    refusal: Callable[[Any], str | None]
    require_same: Callable[[Any, Any, Any], Any]
    plan: Callable[[Settings], dict[str, Any]] = lambda config: {}
    unserved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectorEntry:
    """What brings batches to a learner.

    Attributes:
        settings: Its frozen dataclass of settings.
        data: Settings, streams and runtime to what source and learner share; made once for a run.
        build: Settings, environment, those data, the learner, a call that copies its policy, streams and runtime to a
            source.
        plan: Settings to what a dry run prints of it, without building anything.
        pace: Settings to how much one update takes in, and of what.
        calls: The calls of a cycle that ``uavlab.benchmarks`` can time alone.
        replay: Whether it keeps rows that ``resume --fresh-replay`` can gather anew.
        lacks: Parts that it has not, among ``team``, ``replay`` and ``logs``, and why toggles of them do nothing.
    """

    settings: type[Any]
    data: Callable[[Settings, Any, Any], Any]
    build: Callable[..., Any]
    plan: Callable[[Settings], dict[str, Any]]
    pace: Callable[[Settings], tuple[int, str]]
    calls: tuple[str, ...]
    replay: bool
    lacks: Mapping[str, str]


ENVIRONMENTS: Registry[Environment] = Registry("environment")
LEARNERS: Registry[LearnerEntry] = Registry("learner")
COLLECTORS: Registry[CollectorEntry] = Registry("collector")
