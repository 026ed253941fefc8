"""One flat, strict namespace of settings: a preset's, a YAML file's and the command line's, checked together.

Field names are unique over run, source, learner and environment; ``eval_`` before an environment's field changes it for
evaluation alone. Nothing is created before everything is valid, and all problems are told at once.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from uavlab.collectors.off_policy import POOL_STEPS, ReplayConfig
from uavlab.collectors.on_policy import RolloutConfig
from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest, yaml_lines, yaml_value
from uavlab.core.types import Rule
from uavlab.envs import ENVS
from uavlab.experiment.presets import presets
from uavlab.learners.coma import COMAConfig, require_same_task
from uavlab.learners.masac.base import MASACConfig
from uavlab.learners.masac.networks import assign_networks
from uavlab.runtime.toggles import EAGER, Toggles, toggle_presets
from uavlab.storage.files import read_regular
from uavlab.telemetry.forecaster import ForecasterConfig
from uavlab.telemetry.task import DATA
from uavlab.telemetry.window_source import WindowsConfig

Device = Literal["auto", "cpu", "cuda"]
LARGEST_FILE = 50_000  # bytes of a settings file
TOLD = 20  # unknown settings named in one message
ELSEWHERE = {
    **{"learning_rate": "lr", "actor_lr": "lr", "lr_actor": "lr", "lr_critic": "critic_lr", "discount": "gamma"},
    **{"batch_size": "batch", "buffer_size": "capacity", "hidden_size": "hidden", "total_steps": "updates"},
    **{"n_envs": "worlds", "n_agents": "followers", "polyak": "tau", "learner": "update"},
}
"""Names by which other programs know these settings."""


@dataclass(frozen=True)
class RunConfig:
    """What a run is, apart from its task and algorithm.

    Attributes:
        seed: Seed of the first run; run r has seed + r.
        runs: Independent runs trained in this process (R).
        updates: Updates to make; None trains until ``minutes`` are over.
        minutes: Wall-clock minutes of training after which the run ends; None for no limit.
        patience: Scores in a row without a better one after which the run ends; None for no such end.
        device: ``auto`` takes CUDA if it is there.
        log_every: Updates between metrics read from the device.
        evaluate_every: Updates between scores that decide which policy is kept.
        evaluate_episodes: Episodes per run of such a score.
        checkpoint_every: Updates between checkpoints.
        keep: Checkpoints kept.
    """

    seed: Annotated[int, Ge(0), Le(2**31)] = 0
    runs: Annotated[int, Ge(1), Le(256)] = 1
    updates: Annotated[int, Ge(1), Le(10**9)] | None = 10_000
    minutes: Annotated[float, Gt(0), Le(100_000)] | None = None
    patience: Annotated[int, Ge(1), Le(10_000)] | None = None
    device: Device = "auto"
    log_every: Annotated[int, Ge(1)] = 100
    evaluate_every: Annotated[int, Ge(1)] = 500
    evaluate_episodes: Annotated[int, Ge(1), Le(100_000)] = 100
    checkpoint_every: Annotated[int, Ge(1)] = 1_000
    keep: Annotated[int, Ge(1), Le(1000)] = 3


@dataclass(frozen=True)
class Config:
    """Valid settings: ``values`` is the flat namespace, the other fields are what it describes.

    ``source`` and ``learner`` are a ``ReplayConfig`` and a ``MASACConfig``, or for teams that choose among moves a
    ``RolloutConfig`` and a ``COMAConfig``; where logs are learned from a ``WindowsConfig`` and a ``ForecasterConfig``,
    and ``env`` and ``evaluation`` are tasks of ``uavlab.windows``.
    """

    preset: str
    values: dict[str, Any]
    run: RunConfig
    source: Any
    learner: Any
    toggles: Toggles
    env: Any
    evaluation: Any


RULES: tuple[Rule, ...] = (
    (("batch", "capacity"), lambda b, c: b <= c, "batch {0} > capacity {1}: lower batch or raise capacity"),
    (("worlds", "capacity"), lambda w, c: w <= c, "worlds {0} > capacity {1}: one step would overwrite itself"),
    (
        ("learning_starts", "capacity"),
        lambda s, c: s <= c,
        "learning_starts {0} > capacity {1}: those rows would be overwritten before the first update",
    ),
    (
        ("graph", "world_steps"),
        lambda g, w: g != "cycle" or POOL_STEPS % w == 0,
        f"graph {{0}} refills worlds between cycles: world_steps {{1}} does not divide {POOL_STEPS}",
    ),
    (("updates", "minutes"), lambda u, m: u or m, "neither updates nor minutes is set: the run would never end"),
    (
        ("log_std_low", "log_std_high"),
        lambda low, high: low < high,
        "log_std_low {0} >= log_std_high {1}: the policy would have no width",
    ),
)
"""Contradictions between settings of every run; an environment brings those of its own fields as ``rules``."""


class Layer(dict[str, Any]):
    """Settings that know where each of them came from, ``mine.yaml:7`` or ``--seed``, for messages."""

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        super().__init__(values)
        self.origins = origins


def configure(preset: str, *layers: Mapping[str, Any]) -> Config:
    """Build valid settings from a preset and layers over it, later ones winning.

    Layers that set ``minutes`` and no ``updates`` lift the preset's updates: the run lasts as long as it was told to.

    Raises:
        ConfigError: An unknown preset or key, a wrong type, a value out of range or a contradiction; all at once.
    """
    known = presets()
    if preset not in known:
        raise ConfigError(f"unknown preset {quote(preset)}{suggest(preset, known)}. Known presets: {', '.join(known)}.")
    chosen = known[preset]
    given: dict[str, Any] = {}
    came: dict[str, str] = {}
    for layer in layers:
        given |= layer
        origins = getattr(layer, "origins", {})
        came |= {name: f" from {origins[name]}" if name in origins else "" for name in layer}
    if given.get("minutes") is not None:
        given.setdefault("updates", None)
    values = {**EAGER, **chosen.values, **given}
    model = _model(chosen.env)
    unknown = [name for name in values if name not in model.model_fields]
    elsewhere = {other: own for other, own in ELSEWHERE.items() if own in model.model_fields}
    problems = [
        f"unknown setting {quote(name)}{came[name]}{suggest(name, model.model_fields, elsewhere)}"
        for name in unknown[:TOLD]
    ]
    problems += [f"{len(unknown) - TOLD} more unknown settings"] if len(unknown) > TOLD else []
    try:
        values = _with_tuples(model, values)
        model.model_validate({k: v for k, v in values.items() if k in model.model_fields})
        wrong = set()
    except ValidationError as error:
        wrong = {str(e["loc"][0]) for e in error.errors()}
        problems += [_said(e, came) for e in error.errors()]
    rules = (*RULES, *getattr(task(chosen.env), "rules", ()))
    problems += _contradictions(rules, {**_defaults(model), **values}, wrong, came)
    if problems:
        more = f" All settings: uavlab settings {preset}." if unknown else ""
        raise ConfigError(f"{preset}: " + "; ".join(problems) + "." + more)
    return _built(preset, chosen.env, {**_defaults(model), **values})


def gather(
    file: Path | None,
    texts: Iterable[str],
    options: Mapping[str, Any],
    toggles: str | None = None,
    toggle_texts: Iterable[str] = (),
) -> list[Layer]:
    """Read what a command line says, each of these winning over those before it.

    A named set of toggles, a settings file, ``key=value`` texts of settings, of toggles, and the options that are not
    None.

    Raises:
        ConfigError: The file or a text cannot be read, or there is no such set or toggle.
    """
    told, turned = dict(map(parse_setting, texts)), dict(map(parse_toggle, toggle_texts))
    chosen = {name: value for name, value in options.items() if value is not None}
    return [
        *([] if toggles is None else [toggle_layer(toggles, options.get("device"))]),
        *([] if file is None else [read_yaml(file)]),
        Layer(told, dict.fromkeys(told, "--set")),
        Layer(turned, dict.fromkeys(turned, "--toggle")),
        Layer(chosen, {name: f"--{name}" for name in chosen}),
    ]


def toggle_layer(name: str, device: str | None = None) -> Layer:
    """Give a named set of toggles for a device, by default the one that runs choose by themselves.

    Raises:
        ConfigError: There is no set of that name.
    """
    on_cuda = torch.cuda.is_available() and device != "cpu"
    known = toggle_presets(torch.device("cuda" if on_cuda else "cpu"))
    if name not in known:
        raise ConfigError(f"unknown toggles {quote(name)}{suggest(name, known)}. Known sets: {', '.join(known)}.")
    values = {**asdict(Toggles()), **known[name]}
    return Layer(values, dict.fromkeys(values, f"--toggles {name}"))


def parse_toggle(text: str) -> tuple[str, Any]:
    """Split ``name=value`` of a toggle.

    Raises:
        ConfigError: No ``=`` in it, a value that is not YAML, or no toggle of that name.
    """
    name, value = parse_setting(text, "--toggle")
    known = [f.name for f in dataclasses.fields(Toggles)]
    if name not in known:
        told = f"unknown toggle {quote(name)} from --toggle{suggest(name, known)}"
        raise ConfigError(f"{told}. All toggles: uavlab toggles.")
    return name, value


def read_yaml(path: Path) -> Layer:
    """Read settings from a YAML 1.2 file.

    Raises:
        ConfigError: The file is missing, too large, not YAML, or not a mapping of names to values.
    """
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable as UTF-8: {error.reason} at byte {error.start}.") from error
    except (OSError, ValueError) as error:  # no path holds a null character
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', error)}.") from error
    values = yaml_value(text, str(path), lines=True)
    if not isinstance(values, dict):
        got = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path}: expected lines `name: value`, got {got}.")
    if odd := [name for name in values if not isinstance(name, str)]:
        raise ConfigError(f"{path}: expected lines `name: value`, got the name {quote(odd[0])}.")
    return Layer(values, {name: f"{path}:{line}" for name, line in yaml_lines(text).items()})


def parse_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Split ``key=value``, reading the value as YAML 1.2 does.

    Raises:
        ConfigError: No ``=`` in it, or a value that is not YAML.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{option} {text!r}: expected key=value.")
    return key.strip(), yaml_value(value, f"{option} {quote(text)}")


def task(name: str) -> type[Any]:
    """Give the class of an environment, or of a task of learning from data."""
    return DATA.get(name) or ENVS[name]


def parts(env: str) -> tuple[type[Any], ...]:
    """Give the classes whose fields are the settings of a run on ``env``."""
    if env in DATA:
        return RunConfig, WindowsConfig, ForecasterConfig, Toggles, DATA[env]
    spec = getattr(ENVS[env](), "spec", None)  # what else is wrong with it, ``check_env`` tells
    chooses = spec is not None and spec.choices > 0
    learning = (RolloutConfig, COMAConfig) if chooses else (ReplayConfig, MASACConfig)
    return RunConfig, *learning, Toggles, ENVS[env]


@lru_cache
def _model(env: str) -> type[BaseModel]:
    """Gather every settable field of a run on ``env`` in one strict model.

    Raises:
        ConfigError: A field of the environment bears the name of another setting.
    """
    fields: dict[str, Any] = {}
    for part in parts(env):
        hints = get_type_hints(part, include_extras=True)
        for f in dataclasses.fields(part):
            own = {f.name: (hints[f.name], f.default)}
            if part is task(env):
                own[f"eval_{f.name}"] = (hints[f.name] | None, None)
            if taken := fields.keys() & own:
                raise ConfigError(f"{part.__name__}.{f.name}: {min(taken)!r} is another setting; rename the field.")
            fields |= own
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Settings", __config__=strict, **fields)


def _with_tuples(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Read lists, which is all that YAML and JSON know, as tuples where those are expected."""
    several = {name for name, field in model.model_fields.items() if "tuple[" in str(field.annotation)}
    return {k: tuple(v) if k in several and isinstance(v, list) else v for k, v in values.items()}


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.default for name, field in model.model_fields.items()}


def _said(error: Any, came: Mapping[str, str]) -> str:
    name, message = error["loc"][0], error["msg"]
    return f"{name}: {message[0].lower()}{message[1:]}, got {quote(error['input'])}{came.get(str(name), '')}"


def _contradictions(
    rules: Iterable[Rule], values: Mapping[str, Any], wrong: set[str], came: Mapping[str, str]
) -> list[str]:
    said = []
    for fields, holds, message in rules:
        if all(f in values and f not in wrong for f in fields):
            given = [values[f] for f in fields]
            if not holds(*given):
                whence = ", ".join(f + came[f] for f in fields if came.get(f))
                said.append(message.format(*given) + (f" ({whence})" if whence else ""))
    return said


def _built(preset: str, env_name: str, values: dict[str, Any]) -> Config:
    env_class = task(env_name)

    def part(cls: type[Any]) -> Any:
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})

    run, source, learner, toggles, env = (part(cls) for cls in parts(env_name))
    changed = {f.name: values[f"eval_{f.name}"] for f in dataclasses.fields(env_class)}
    evaluation = dataclasses.replace(env, **{k: v for k, v in changed.items() if v is not None})
    able(learner, env, evaluation)
    return Config(preset, values, run, source, learner, toggles, env, evaluation)


def able(learner: Any, trained: Any, judged: Any) -> None:
    """Refuse an evaluation on which what is trained cannot be judged.

    Raises:
        ConfigError: A team sees or does something else, or windows are of other sizes.
    """
    if isinstance(learner, ForecasterConfig):
        if trained.shape != judged.shape:
            raise ConfigError(
                f"eval_window, eval_horizon: {judged.shape} differ from window, horizon {trained.shape}; a network "
                "tells of windows as large as those it was trained on."
            )
    elif isinstance(learner, COMAConfig):
        require_same_task(trained.spec, judged.spec)
    else:
        assign_networks(trained.spec, judged.spec, learner.share)
