"""Registration from a user's own file, by decorators; what is registered is used like the package's own.

    import uavlab as ul

    @ul.env("chase")
    class Chase: ...

    @ul.learner("maddpg", settings=MADDPGConfig, collector="off_policy")
    class MADDPG(ul.Learner): ...

A cell or file may be executed again: the newer definition counts (``uavlab.core.registry.Registry.register``).
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import new_class
from typing import Any, TypeVar, dataclass_transform

from uavlab.core.errors import ConfigError
from uavlab.core.registry import (
    COLLECTORS,
    ENVIRONMENTS,
    LEARNERS,
    Environment,
    place_in,
    place_of,
    require_defaults,
)
from uavlab.core.text import quote, require_known, suggest
from uavlab.experiment.build import BUILT_IN
from uavlab.experiment.config import Layer
from uavlab.experiment.names import PRESETS, Preset
from uavlab.learners.learner import ARGUMENTS, Learner
from uavlab.runtime.toggles import TOGGLES, Toggle

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])

FIRST = BUILT_IN  # our own entries are registered before others: names stay theirs, and so does their order
FIELDS = [name for name in vars(Learner) if not name.startswith("_")]


@dataclass(frozen=True)
class NoSettings:
    """Settings of a learner that has none."""


@dataclass_transform(frozen_default=True)
def env(name: str, *, learner: str | None = None) -> Callable[[Class], Class]:
    """Register the decorated class as an environment under ``name``.

    The class implements ``uavlab.core.protocols.Env``; it becomes a frozen dataclass if it is none. Its fields are
    settings. ``uavlab check NAME`` or ``uavlab.check_env`` checks it.

    Args:
        name: Name of the environment, and of the preset with its defaults.
        learner: Name of its default learner; None takes the first one that fits.

    Raises:
        ConfigError: The name belongs to another environment or to a preset; or what is decorated is no class, can
            change, or has a field without a default.
    """
    _require_name("env", name)
    if name in PRESETS and PRESETS[name].env != name:
        raise ConfigError(f"env: {name!r} is the name of a preset; choose another name.")

    def register(cls: Class) -> Class:
        _require_class("env", cls)
        if "__dataclass_params__" not in vars(cls):
            dataclass(frozen=True)(cls)  # changes the class in place
        if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise ConfigError(f"env: objects of {cls.__name__} can change; write @dataclass(frozen=True).")
        known = ENVIRONMENTS.get(name)
        again = known is not None and place_of(known.kind).same(place_of(cls))
        entry = Environment(cls, learner, known.baselines if known and again else {})
        return ENVIRONMENTS.register(name, entry, place_of(cls)).kind  # type: ignore[return-value]

    return register


def baseline(environment: str, name: str | None = None) -> Callable[[Function], Function]:
    """Register the decorated function as a policy without learning: ``uavlab evaluate ENV --policy NAME``.

    The function takes the environment, the state of B worlds, and uniform noise (B A) in [0, 1); it returns actions
    (B A D) in [-1, 1], or numbers of choices (B A). Its own name is the default of ``name``.

    Raises:
        ConfigError: There is no such environment, or another function has the name.
    """
    require_known("environment", environment, ENVIRONMENTS, "baseline: ")

    def register(plan: Function) -> Function:
        entry, title = ENVIRONMENTS[environment], name or plan.__name__
        known = entry.baselines.get(title, plan)
        if known is not plan and not place_of(known).same(place_of(plan)):
            raise ConfigError(f"baseline: {environment} has {title!r}, {known.__qualname__}; choose another name.")
        ENVIRONMENTS[environment] = replace(entry, baselines={**entry.baselines, title: plan})
        return plan

    return register


def learner(
    name: str,
    *,
    settings: type[Any] = NoSettings,
    collector: str = "off_policy",
    moves: bool = False,
    **fields: Any,
) -> Callable[[Class], Class]:
    """Register the decorated class as a learner under ``name``: ``uavlab train ENV --set learner=NAME``.

    The class derives from ``uavlab.Learner``, or has its methods. Its constructor is called with those of these
    arguments that it names: ``config`` (an object of ``settings``), ``spec`` (the environment's ``EnvSpec``),
    ``inputs`` (mean and spread of observations, measured if off-policy; for the initial parameters alone), ``rng``
    (``Streams``) and ``rt`` (``Runtime``).

    Args:
        name: Name of the learner.
        settings: Frozen dataclass of its hyper-parameters, which become settings.
        collector: ``off_policy`` (a replay buffer) or ``on_policy`` (whole episodes, a ``Rollout``).
        moves: Whether agents choose moves on maps alone; otherwise they observe vectors and their actions are
            continuous.
        fields: Other class attributes of ``uavlab.Learner``, and functions in place of its class methods, such as
            ``load_policy``; the class itself may have them, too. By default ``load_policy`` takes the policy of a new
            learner whose first gradient step holds the saved parameters, ``unsupported`` follows ``moves``,
            ``require_same`` requires equal agents, groups, observations and actions, and the toggles ``update`` and
            ``acting`` are ``inapplicable``.

    Raises:
        ConfigError: The name belongs to another learner, or the class or an argument does not fit.
    """
    _require_name("learner", name)
    if not (is_dataclass(settings) and isinstance(settings, type) and settings.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise ConfigError(
            f"learner {name!r}: settings is {quote(settings)}; expected a class with @dataclass(frozen=True)."
        )
    require_known("collector", collector, COLLECTORS, f"learner {name!r}: ")
    if moves and collector == "off_policy":
        raise ConfigError(f"learner {name!r}: replay holds no maps and moves; expected collector='on_policy'.")
    for field in fields:
        require_known("class attribute", field, FIELDS, f"learner {name!r}: ")

    def register(cls: Class) -> Class:
        _require_class("learner", cls)
        _require_constructor(cls)
        require_defaults(settings)
        functions = {each: staticmethod(value) if callable(value) else value for each, value in fields.items()}
        about = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        members = {**about, "settings": settings, "collector": collector, "on_maps": moves, **functions}
        bases = (cls,) if Learner in cls.__mro__ else (cls, Learner)
        entry = new_class(cls.__name__, bases, exec_body=lambda namespace: namespace.update(members))
        LEARNERS.register(name, entry, place_of(cls))
        return cls

    return register


def toggle(
    name: str, *, kind: Any, about: str, equality: str = "rounding", **fields: Any
) -> Callable[[Function], Function]:
    """Register the decorated function as a toggle: ``uavlab train ENV --toggle NAME=VALUE``.

    The function wraps pure functions of tensors at the seam ``kernel``: it takes the function, the toggle's value and
    the name of the kernel (such as ``act`` or ``environment``), and returns a function of the same arguments. It is
    called for values other than the default, the plain reference. For another seam call
    ``uavlab.runtime.toggles.register``; a learner reads the value as ``rt.toggles.NAME``.

    Args:
        name: Name of the toggle.
        kind: Type of its values: a ``Literal``, whose first value is the default, or an annotated number.
        about: One sentence on what it changes.
        equality: Of results with the plain reference, such as ``exact`` (the same bits).
        fields: Other fields of ``uavlab.runtime.toggles.Toggle``; a number needs ``default``.

    Raises:
        ConfigError: The name belongs to another toggle, or a number has no default.
    """

    def register(wrap: Function) -> Function:
        TOGGLES.register(name, Toggle(name, kind, about, "kernel", equality, wrap=wrap, **fields), place_of(wrap))
        return wrap

    return register


def preset(name: str, env: str, settings: Mapping[str, Any] | None = None, *, about: str = "") -> Preset:
    """Register settings of an environment under ``name``; they are checked when the preset is used.

    Raises:
        ConfigError: There is no such environment, or the name belongs to another preset or environment.
    """
    require_known("environment", env, ENVIRONMENTS, "preset: ")
    if name in ENVIRONMENTS and name != env:
        raise ConfigError(f"preset: {name!r} is the name of another environment; choose another name.")
    place = place_in(sys._getframe(1).f_globals.get("__name__", "__main__"), f"preset {name}")
    return PRESETS.register(name, Preset(env, about or f"{env} with other settings.", dict(settings or {})), place)


def name_and_parameters(task: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a task and settings over it; an environment's class is registered if it is not yet.

    Raises:
        ConfigError: The task is neither a name nor an environment.
    """
    if isinstance(task, str):
        return task, {}
    if isinstance(task, type) or not is_dataclass(task):
        raise ConfigError(
            f"task: got {quote(task)}; expected the name of a preset, or an environment: an instance of a frozen "
            "dataclass" + (f", such as {task.__name__}()." if isinstance(task, type) else ".")
        )
    kind = type(task)
    name = next((name for name, entry in ENVIRONMENTS.items() if entry.kind is kind), kind.__name__)
    if name not in ENVIRONMENTS or ENVIRONMENTS[name].kind is not kind:  # such as a class whose cell was executed again
        env(name)(kind)
    parameters = {field.name: getattr(task, field.name) for field in fields(task)}
    return name, Layer(parameters, dict.fromkeys(parameters, str(task)))


def _require_class(kind: str, cls: Any) -> None:
    if not isinstance(cls, type):
        raise ConfigError(f"{kind}: got {quote(cls)}, which is no class; decorate a class, or call with one.")


def _require_name(kind: str, name: Any) -> None:
    if not isinstance(name, str):
        raise ConfigError(f'{kind}: got {quote(name)}, expected a name; write @ul.{kind}("NAME").')


def _require_constructor(cls: type[Any]) -> None:
    """Check that a learner's constructor needs only known arguments, so that a misspelt one is refused at once."""
    for argument in inspect.signature(cls).parameters.values():
        any_number = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        needed = argument.default is argument.empty and not any_number
        if needed and (argument.name not in ARGUMENTS or argument.kind is argument.POSITIONAL_ONLY):
            raise ConfigError(
                f"learner: {cls.__name__} needs the argument {argument.name!r}{suggest(argument.name, ARGUMENTS)}; it "
                f"is called with those of {', '.join(ARGUMENTS)} that its constructor names."
            )
