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
from functools import partial
from typing import Any, TypeVar, dataclass_transform

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Learner, Policy, policy_matrix
from uavlab.core.registry import (
    COLLECTORS,
    ENVIRONMENTS,
    LEARNERS,
    Environment,
    LearnerEntry,
    Settings,
    place_in,
    place_of,
)
from uavlab.core.rng import Streams
from uavlab.core.text import quote, require_known, suggest
from uavlab.core.types import EnvSpec, Scale
from uavlab.experiment.build import BUILT_IN
from uavlab.experiment.config import Layer
from uavlab.experiment.presets import PRESETS, Preset
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import TOGGLES, Toggle

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])

FIRST = BUILT_IN  # our own entries are registered before others: names stay theirs, and so does their order
ARGUMENTS = ("config", "spec", "inputs", "rng", "rt")  # that a learner's constructor may name
SAME = ("agents", "groups", "obs", "action", "choices", "team", "side", "features", "centred", "parts")  # of a spec


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
        baselines = ENVIRONMENTS[name].baselines if name in ENVIRONMENTS else {}  # of a class that is executed again
        return ENVIRONMENTS.register(name, Environment(cls, learner, baselines), place_of(cls)).kind  # type: ignore[return-value]

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
        entry, own = ENVIRONMENTS[environment], name or plan.__name__
        known = entry.baselines.get(own, plan)
        if known is not plan and not place_of(known).same(place_of(plan)):
            raise ConfigError(f"baseline: {environment} has {own!r}, {known.__qualname__}; choose another name.")
        ENVIRONMENTS[environment] = replace(entry, baselines={**entry.baselines, own: plan})
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

    The class implements ``uavlab.core.protocols.Learner``. Its constructor is called with those of these arguments that
    it names: ``config`` (an object of ``settings``), ``spec`` (the environment's ``EnvSpec``), ``inputs`` (mean and
    spread of observations, measured if off-policy; for the initial parameters alone), ``rng`` (``Streams``) and ``rt``
    (``Runtime``).

    Args:
        name: Name of the learner.
        settings: Frozen dataclass of its hyper-parameters, which become settings.
        collector: ``off_policy`` (a replay buffer) or ``on_policy`` (whole episodes, a ``Rollout``).
        moves: Whether agents choose moves on maps alone; otherwise they observe vectors and their actions are
            continuous.
        fields: Other fields of ``uavlab.core.registry.LearnerEntry``. By default ``load_policy`` takes the policy of a
            new learner whose first gradient step holds the saved parameters, ``refusal`` follows ``moves``,
            ``require_same`` requires equal agents, groups, observations and actions, and the toggles ``update`` and
            ``acting`` have no effect.

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

    def register(cls: Class) -> Class:
        _require_class("learner", cls)
        _require_constructor(cls)
        same = fields.get("require_same", _require_same)
        defaults = {
            "load_policy": partial(_load_policy, cls, same),
            "size": partial(_size, cls),
            "refusal": partial(_refusal, moves),
            "require_same": same,
            "unserved": dict.fromkeys(("update", "acting"), "this learner has one form of it"),
        }

        def build(config: Settings, data: Any, rng: Streams, rt: Runtime) -> Any:
            return _construct(cls, config.learner, config.env.spec, data, rng, rt)

        entry = LearnerEntry(settings, collector, build, **{**defaults, **fields})
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
    for each in inspect.signature(cls).parameters.values():
        needed = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if needed and (each.name not in ARGUMENTS or each.kind is each.POSITIONAL_ONLY):
            raise ConfigError(
                f"learner: {cls.__name__} needs the argument {each.name!r}{suggest(each.name, ARGUMENTS)}; it "
                f"is called with those of {', '.join(ARGUMENTS)} that its constructor names."
            )


def _construct(cls: type[Any], config: Any, spec: EnvSpec, inputs: Any, rng: Streams, rt: Runtime) -> Any:
    """Build a learner from the arguments that its constructor names; without ``inputs``, for other parameters."""
    if inputs is None and not spec.choices:
        ones = torch.ones(len(rng.seeds), spec.agents, spec.obs, device=rng.device, dtype=rng.dtype)
        inputs = Scale(0 * ones, ones)
    given = dict(zip(ARGUMENTS, (config, spec, inputs, rng, rt), strict=True))
    result = cls(**{name: given[name] for name in inspect.signature(cls).parameters if name in given})
    for name in ("policy", "update", "runs"):
        own = getattr(result, name, None)
        if own is None or getattr(own, "__func__", None) in (Learner.policy, Learner.update):
            what = "runs = len(rng.seeds)" if name == "runs" else f"a method {name}"
            raise ConfigError(f"learner: {cls.__name__} has no {name}; add {what} (uavlab.core.protocols.Learner).")
    return result


def _load_policy(
    cls: type[Any],
    require_same: Callable[..., Any],
    config: Any,
    trained: EnvSpec,
    spec: EnvSpec,
    parameters: Float[Tensor, "R K P"],
) -> Policy:
    """Return the policy of a new learner whose first gradient step holds ``parameters``."""
    require_same(config, trained, spec)
    rng = Streams(range(len(parameters)), parameters.device, parameters.dtype)
    fresh = _construct(cls, config, trained, None, rng, Runtime(rng.device))
    matrix = policy_matrix(fresh)
    if matrix.numel() == parameters.numel():
        matrix.copy_(parameters.reshape(matrix.shape))
    if not torch.equal(fresh.parameters(), parameters):
        raise ConfigError(
            f"learner: parameters of {cls.__name__} are not those of its first gradient step; register it with "
            "`load_policy=`, a function (settings, spec trained on, spec to act in, parameters) -> policy."
        )
    return fresh.policy(spec)


def _size(cls: type[Any], config: Any, spec: EnvSpec) -> int:
    return _construct(cls, config, spec, None, Streams([0]), Runtime()).parameters().shape[-1]


def _refusal(moves: bool, spec: Any) -> str | None:
    if not isinstance(spec, EnvSpec):
        return "it has no team of agents"
    if moves and not (spec.choices and spec.side):
        return "its agents do not choose moves on maps"
    if moves:
        return "its agents observe features beside their maps, this learner takes maps alone" if spec.features else None
    if spec.choices:
        return "its agents choose among moves, this learner's actions are continuous"
    return "its agents observe maps, this learner takes vectors" if spec.side else None


def _require_same(config: Any, trained: EnvSpec, spec: EnvSpec) -> None:
    """Check that a policy acts in a team like the one that it was trained in."""
    other = [name for name in SAME if getattr(trained, name) != getattr(spec, name)]
    if other:
        text = [", ".join(f"{name}={getattr(each, name)}" for name in other) for each in (trained, spec)]
        raise ConfigError(
            f"policy: trained on {text[0]}, to be used with {text[1]}; expected the same, or a learner registered with "
            "`require_same=`."
        )
