"""Registries of environments, learners and collectors, open to other packages by ``REGISTRY.register(name, entry)``.

An experiment combines three entries: an environment, the learner that it names (or that ``learner=`` chooses), and the
collector that the learner names. Functions in entries are described as ``arguments -> result``.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from uavlab.core.errors import ConfigError
from uavlab.core.symptoms import Symptoms
from uavlab.core.text import quote

if TYPE_CHECKING:
    from uavlab.core.portable import Portable

T = TypeVar("T")


class Place(NamedTuple):
    """Where something was defined: the name of the module in this process, its file, and the name in the file."""

    module: str
    file: str
    name: str

    def same(self, other: "Place") -> bool:
        """Return whether both are one definition, which was executed twice."""
        return self[1:] == other[1:]


def place_of(definition: Any) -> Place:
    """Return where a class or function was defined; a module without a file, as in a notebook, stands for itself."""
    return place_in(definition.__module__, definition.__qualname__)


def place_in(module: str, name: str) -> Place:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Place(module, os.path.realpath(file) if file else module, name)


class Registry(dict[str, T]):
    """Entries of one kind by name, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.places: dict[str, Place] = {}

    def register(self, name: str, entry: T, place: Place | None = None) -> T:
        """Make an entry known under ``name``, and return the entry that has the name now.

        The same entry may be registered again. So may one from the same ``place``: it replaces the former entry when a
        cell is executed again or a module reloaded. A file that is both executed and imported counts once: its first
        entry stays.
        """
        known = self.places.get(name)
        again = known is not None and place is not None and place.same(known)
        if name in self and not again and self[name] != entry:
            raise ConfigError(f"register: the {self.kind} {name!r} is already {self[name]}; choose another name.")
        if name not in self or (again and place.module == known.module):  # type: ignore[union-attr]
            self[name] = entry
            self.places |= {} if place is None else {name: place}
        return self[name]


class Resume(Enum):
    """Whether a resumed run may change a setting; part of the setting's ``Annotated`` type."""

    NO = "no"
    YES = "yes"
    SAME = "yes, and the results stay the same"


@dataclass(frozen=True)
class Settings:
    """The validated settings of an experiment, one object for each part.

    Attributes:
        preset: Name of the preset.
        run: Seeds, lengths and intervals.
        source: The collector's settings.
        learner: The learner's hyper-parameters.
        toggles: The optimizations.
        env: The environment to train on.
        values: All settings by name, from which the parts are built.
        evaluation: The environment on which policies are evaluated.
        task: The environment, the learner and the collector as they are registered (``uavlab.experiment.build.Task``).
        usual: The settings that the preset alone would set, with the same learner.
        chosen: Why sizes that were ``auto`` have their values.
    """

    preset: str
    run: Any
    source: Any
    learner: Any
    toggles: Any
    env: Any
    values: dict[str, Any]
    evaluation: Any
    task: Any
    usual: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    chosen: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Evaluation:
    """How policies on an environment are evaluated.

    Attributes:
        figures: (settings, environment, policy, streams, count, mean action, stream name) -> figures (R E) by name.
        summary: (environment, figures) -> mean and interval of each.
        baseline: (settings, runtime, registered baseline) -> policy.
        check: settings -> report of a contract check; raises if the contract is violated. None is ``check_env``.
        units: environment -> unit of each figure.
        count: Format of a number of episodes, such as ``{} episodes``.
        flies: Whether the flight of a world can be animated.
    """

    figures: Callable[..., Any]
    summary: Callable[[Any, Any], dict[str, Any]]
    baseline: Callable[[Settings, Any, Any], Any]
    check: Callable[[Settings], Any] | None
    units: Callable[[Any], dict[str, str]]
    count: str
    flies: bool


@dataclass(frozen=True)
class Environment:
    """An environment.

    Attributes:
        kind: A frozen dataclass whose fields are settings; its ``spec`` describes it to a learner.
        learner: Name of the default learner; None selects the first registered one that fits the ``spec``.
        baselines: Policies without learning, by name.
        evaluation: How policies are evaluated; None runs whole episodes.
        implementation: (environment, runtime) -> the environment in the implementation that the toggles select; None
            if there is one.
        metrics: Of baselines with figures of their own, by name: environment -> the environment with more ``metrics``.
    """

    kind: type[Any]
    learner: str | None = None
    baselines: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    implementation: Callable[[Any, Any], Any] | None = None
    metrics: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a class whose fields cannot be settings."""
        _require_defaults(self.kind)

    def __str__(self) -> str:
        """Return the name of the class, for messages."""
        return self.kind.__qualname__


def _require_defaults(kind: type[Any]) -> None:
    for each in fields(kind) if is_dataclass(kind) else ():
        if each.default is MISSING:
            raise ConfigError(
                f"{kind.__name__}.{each.name}: a setting without a default; give it one: a number, text or a tuple."
            )


Scene = Callable[[Any, Sequence[Any]], Any]
SCENES: dict[type, Scene] = {}
"""Functions (environment, states of a batch) -> animated plotly figure of its first world, by class of environment."""


def scene(kind: type) -> Callable[[Scene], Scene]:
    """Register the decorated function, which animates flights of one environment, for a class and its subclasses.

    The function takes the environment and the states of a batch, of which it draws the first world, and returns a
    plotly figure with frames (see ``uavlab_lab.plots.flight.add_frames``).

    Raises:
        ConfigError: The class has another scene already, or is no class.
    """
    if not isinstance(kind, type):
        raise ConfigError(f"scene: got {quote(kind)}, expected a class of environments; write @ul.scene(CLASS).")

    def register(draw: Scene) -> Scene:
        known = SCENES.get(kind, draw)
        if known is not draw and not place_of(known).same(place_of(draw)):
            raise ConfigError(f"scene: {kind.__name__} is drawn by {known.__name__} already; subclass it.")
        SCENES[kind] = draw
        return draw

    return register


@dataclass(frozen=True)
class LearnerEntry:
    """A learner.

    Attributes:
        settings: Its frozen dataclass of hyper-parameters.
        collector: Name of the collector that provides its batches.
        build: (settings, the collector's data, streams, runtime) -> learner.
        load_policy: (hyper-parameters, ``spec`` trained on, ``spec`` to act in, parameters) -> policy.
        size: (hyper-parameters, ``spec``) -> number of parameters of one policy network.
        refusal: ``spec`` -> why an environment with it cannot be learned; None if it can.
        require_same: (hyper-parameters, ``spec`` trained on, other ``spec``); raises if the policy cannot act there.
        plan: settings -> entries of a dry run about the learner.
        unserved: Toggles without effect on it, with the reason.
        portable: How its policy becomes a file that runs without uavlab.
        networks: (hyper-parameters, ``spec``) -> index of each agent's network among the rows of its parameters; None
            if it is unknown, and groups of a team cannot be chosen one by one.
        symptoms: What a run watches, to warn of what ails it; by default scores alone.
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
    portable: "Portable | None" = None
    networks: Callable[[Any, Any], Sequence[int]] | None = None
    symptoms: Symptoms = field(default_factory=Symptoms)

    def __post_init__(self) -> None:
        """Refuse a class whose fields cannot be settings."""
        _require_defaults(self.settings)


class Trial(NamedTuple):
    """A small run that is timed in place of another one."""

    config: Any  # its settings
    times: float = 1.0  # how many times as long an update of the other one takes
    size: str = ""  # what makes its updates shorter, such as ``4 of 16 worlds``
    apart: str = ""  # what only the other one does


@dataclass(frozen=True)
class CollectorEntry:
    """A collector of batches for a learner.

    Attributes:
        settings: Its frozen dataclass of settings.
        data: (settings, streams, runtime) -> data that source and learner share, computed once per run.
        build: (settings, environment, those data, learner, function that copies its policy, streams, runtime) ->
            source.
        plan: settings -> entries of a dry run about it; builds nothing.
        pace: settings -> amount of data per update, and its unit.
        calls: The calls of a cycle that ``uavlab.benchmarks`` can time alone.
        replay: Whether it has a replay buffer, which ``resume --fresh-replay`` can refill.
        lacks: Missing parts, among ``team``, ``replay`` and ``logs``, and why their toggles have no effect.
        trial: settings -> a smaller run by which the time of this one is estimated.
    """

    settings: type[Any]
    data: Callable[[Settings, Any, Any], Any]
    build: Callable[..., Any]
    plan: Callable[[Settings], dict[str, Any]]
    pace: Callable[[Settings], tuple[int, str]]
    calls: tuple[str, ...]
    replay: bool
    lacks: Mapping[str, str]
    trial: Callable[[Settings], Trial] = Trial


ENVIRONMENTS: Registry[Environment] = Registry("environment")
LEARNERS: Registry[LearnerEntry] = Registry("learner")
COLLECTORS: Registry[CollectorEntry] = Registry("collector")
