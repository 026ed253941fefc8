"""Registries of environments, learners and collectors, open to others by ``REGISTRY.register(name, entry)``."""

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote

T = TypeVar("T")


class Place(NamedTuple):
    """Where something was defined: its file and its name there, and the name of the module in this process."""

    file: str
    name: str
    module: str

    def __str__(self) -> str:
        return f"{self.name} of {self.file}"

    def same(self, other: "Place") -> bool:
        return self[:2] == other[:2]


def place_of(definition: Any) -> Place:
    """Return where a class or function was defined; a module without a file, as in a notebook, stands for itself."""
    return place_in(definition.__module__, definition.__qualname__)


def place_in(module: str, name: str) -> Place:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Place(os.path.realpath(file) if file else module, name, module)


class Registry(dict[str, T]):
    """Entries of one kind by name, in the order in which they were registered, and the places of those of users."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.places: dict[str, Place] = {}

    def register(self, name: str, entry: T, place: Place | None = None) -> T:
        """Make an entry known under ``name``, and return the entry that has the name now.

        An entry without a ``place`` keeps its name. Another one is replaced, with a warning if the new one was defined
        elsewhere. A file that is both executed and imported counts once: its first entry stays.
        """
        if name in self:
            known = self.places.get(name)
            if known is None or place is None:
                title = getattr(self[name], "__qualname__", self[name])
                raise ConfigError(f"register: the {self.kind} {name!r} is already {title}; choose another name.")
            if known.same(place) and known.module != place.module:
                return self[name]
            if not known.same(place):
                warnings.warn(f"the {self.kind} {name!r} is now {place}, no longer {known}.", stacklevel=3)
        if place:
            self.places[name] = place
        self[name] = entry
        return entry


class Resume(Enum):
    """Whether a resumed run may change a setting; part of the setting's ``Annotated`` type."""

    NO = "no"
    YES = "yes"
    SAME = "yes, and the results stay the same"
    RESHAPED = "yes, and tensors of its state have other shapes"


@dataclass(frozen=True)
class Settings:
    """The validated settings of an experiment, one object for each part."""

    preset: str
    run: Any  # seeds, lengths and intervals
    source: Any  # of the collector
    learner: Any  # hyper-parameters
    toggles: Any
    env: Any  # to train on
    values: dict[str, Any]  # all settings by name, from which the parts are built
    evaluation: Any  # the environment on which policies are evaluated
    task: Any  # the three entries as they are registered (``uavlab.experiment.build.Task``)
    usual: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # those of the preset alone
    chosen: Mapping[str, str] = field(default_factory=dict, compare=False)  # why ``auto`` sizes have their values


@dataclass(frozen=True)
class Environment:
    """An environment; ``implementation`` is a function (environment, runtime) -> the form that the toggles select."""

    kind: type[Any]  # a frozen dataclass whose fields are settings; its ``spec`` describes it to a learner
    learner: str | None = None  # name of the default one; None selects the first registered one that fits
    baselines: Mapping[str, Any] = field(default_factory=dict)  # policies without learning, by name
    evaluation: Any = None  # an ``uavlab.evaluation.Evaluation``; None runs whole episodes
    implementation: Callable[[Any, Any], Any] | None = None  # None if there is one form

    def __post_init__(self) -> None:
        require_defaults(self.kind)

    def __str__(self) -> str:
        return self.kind.__qualname__


def require_defaults(kind: type[Any]) -> None:
    for setting in fields(kind) if is_dataclass(kind) else ():
        if setting.default is MISSING:
            raise ConfigError(
                f"{kind.__name__}.{setting.name}: a setting without a default; give it one: a number, text or a tuple."
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


ENVIRONMENTS: Registry[Environment] = Registry("environment")
LEARNERS: Registry[Any] = Registry("learner")
"""Classes derived from ``uavlab.learners.learner.Learner``."""
COLLECTORS: Registry[Any] = Registry("collector")
"""Classes derived from ``uavlab.core.protocols.Collector``."""
