"""One flat, strict namespace of settings: a preset's, a YAML file's and the command line's, checked together.

Field names are unique over run, replay, learner and environment; ``eval_`` before an environment's field changes it for
evaluation alone. Nothing is created before everything is valid, and all problems are told at once.
"""

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from uavlab.app.presets import presets
from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.text import nearest, yaml_value
from uavlab.core.types import Rule
from uavlab.envs import ENVS
from uavlab.learners.masac import MASACConfig, assign
from uavlab.sources import ReplayConfig

Device = Literal["auto", "cpu", "cuda"]
LARGEST_FILE = 50_000  # bytes of a settings file


@dataclass(frozen=True)
class RunConfig:
    """What a run is, apart from its task and algorithm.

    Attributes:
        seed: Seed of the first run; run r has seed + r.
        runs: Independent runs trained in this process (R).
        updates: Updates to make; None trains until ``minutes`` are over.
        minutes: Wall-clock minutes of training after which the run ends; None for no limit.
        device: ``auto`` takes CUDA if it is there.
        threads: CPU threads per operation.
        learner: ``batched``, or ``loop``: the plain reference with one network per agent.
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
    device: Device = "auto"
    threads: Annotated[int, Ge(1), Le(256)] = 1
    learner: Literal["batched", "loop"] = "batched"
    log_every: Annotated[int, Ge(1)] = 100
    evaluate_every: Annotated[int, Ge(1)] = 500
    evaluate_episodes: Annotated[int, Ge(1), Le(100_000)] = 100
    checkpoint_every: Annotated[int, Ge(1)] = 1_000
    keep: Annotated[int, Ge(1), Le(1000)] = 3


@dataclass(frozen=True)
class Config:
    """Valid settings: ``values`` is the flat namespace, the other fields are what it describes."""

    preset: str
    values: dict[str, Any]
    run: RunConfig
    replay: ReplayConfig
    masac: MASACConfig
    env: Env
    evaluation: Env


RULES: tuple[Rule, ...] = (
    (("batch", "capacity"), lambda b, c: b <= c, "batch {0} > capacity {1}: lower batch or raise capacity"),
    (("worlds", "capacity"), lambda w, c: w <= c, "worlds {0} > capacity {1}: one step would overwrite itself"),
    (
        ("learning_starts", "capacity"),
        lambda s, c: s <= c,
        "learning_starts {0} > capacity {1}: those rows would be overwritten before the first update",
    ),
    (("updates", "minutes"), lambda u, m: u or m, "neither updates nor minutes is set: the run would never end"),
    (("learner", "runs"), lambda k, r: k != "loop" or r == 1, "learner {0} holds one run, got runs {1}"),
    (
        ("log_std_low", "log_std_high"),
        lambda low, high: low < high,
        "log_std_low {0} >= log_std_high {1}: the policy would have no width",
    ),
)
"""Contradictions between settings of every run; an environment brings those of its own fields as ``rules``."""


def configure(preset: str, *layers: Mapping[str, Any]) -> Config:
    """Build valid settings from a preset and layers over it, later ones winning.

    Layers that set ``minutes`` and no ``updates`` lift the preset's updates: the run lasts as long as it was told to.

    Raises:
        ConfigError: An unknown preset or key, a wrong type, a value out of range or a contradiction; all at once.
    """
    known = presets()
    if preset not in known:
        raise ConfigError(f"unknown preset {preset!r}{nearest(preset, known)}. Known presets: {', '.join(known)}.")
    chosen = known[preset]
    given: dict[str, Any] = {}
    for layer in layers:
        given |= layer
    if given.get("minutes") is not None:
        given.setdefault("updates", None)
    values = {**chosen.values, **given}
    model = _model(chosen.env)
    problems = [
        f"unknown setting {_shown(k)}{nearest(k, model.model_fields)}" for k in values if k not in model.model_fields
    ]
    try:
        model.model_validate({k: v for k, v in values.items() if k in model.model_fields})
        wrong = set()
    except ValidationError as error:
        wrong = {str(e["loc"][0]) for e in error.errors()}
        problems += [_said(e) for e in error.errors()]
    rules = (*RULES, *getattr(ENVS[chosen.env], "rules", ()))
    problems += _contradictions(rules, {**_defaults(model), **values}, wrong)
    if problems:
        raise ConfigError(f"{preset}: " + "; ".join(problems) + ".")
    return _built(preset, chosen.env, {**_defaults(model), **values})


def read_yaml(path: Path) -> dict[str, Any]:
    """Read settings from a YAML 1.2 file.

    Raises:
        ConfigError: The file is missing, too large, not YAML, or not a mapping of names to values.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ConfigError(f"{path}: larger than {LARGEST_FILE} bytes; expected a short list of settings.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as text: {error}") from error
    values = yaml_value(text, str(path))
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise ConfigError(f"{path}: expected lines `name: value`, got {type(values).__name__}.")
    return values


def parse_setting(text: str) -> tuple[str, Any]:
    """Split ``key=value``, reading the value as YAML 1.2 does.

    Raises:
        ConfigError: No ``=`` in it, or a value that is not YAML.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r}: expected key=value.")
    return key.strip(), yaml_value(value, f"--set {_shown(text)}")


@lru_cache
def _model(env: str) -> type[BaseModel]:
    """Gather every settable field of a run on ``env`` in one strict model.

    Raises:
        ConfigError: A field of the environment bears the name of another setting.
    """
    fields: dict[str, Any] = {}
    for part in (RunConfig, ReplayConfig, MASACConfig, ENVS[env]):
        hints = get_type_hints(part, include_extras=True)
        for f in dataclasses.fields(part):
            own = {f.name: (hints[f.name], f.default)}
            if part is ENVS[env]:
                own[f"eval_{f.name}"] = (hints[f.name] | None, None)
            if taken := fields.keys() & own:
                raise ConfigError(f"{part.__name__}.{f.name}: {min(taken)!r} is another setting; rename the field.")
            fields |= own
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Settings", __config__=strict, **fields)


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    return {name: field.default for name, field in model.model_fields.items()}


def _said(error: Any) -> str:
    return f"{error['loc'][0]}: {error['msg'][0].lower()}{error['msg'][1:]}, got {_shown(error['input'])}"


def _shown(value: Any) -> str:
    """Quote a value in a message, briefly whatever a file held."""
    try:
        return reprlib.repr(value)[:80]
    except ValueError:  # Python prints no integer of more than 4300 digits
        return f"an enormous {type(value).__name__}"


def _contradictions(rules: Iterable[Rule], values: Mapping[str, Any], wrong: set[str]) -> list[str]:
    said = []
    for fields, holds, message in rules:
        if all(f in values and f not in wrong for f in fields):
            given = [values[f] for f in fields]
            if not holds(*given):
                said.append(message.format(*given))
    return said


def _built(preset: str, env_name: str, values: dict[str, Any]) -> Config:
    env_class = ENVS[env_name]

    def part(cls: type[Any]) -> Any:
        return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls)})

    env, run, masac = part(env_class), part(RunConfig), part(MASACConfig)
    changed = {f.name: values[f"eval_{f.name}"] for f in dataclasses.fields(env_class)}
    evaluation = dataclasses.replace(env, **{k: v for k, v in changed.items() if v is not None})
    agents, groups = env.spec.agents, len(set(env.spec.groups))
    if run.learner == "loop" and masac.share and groups < agents:
        told = f"learner loop has one network per agent: set share=false for {agents} agents in {groups} groups"
        raise ConfigError(f"{preset}: {told}.")
    assign(env.spec, evaluation.spec, masac.share)  # the team of the evaluation must be able to fly what is trained
    return Config(preset, values, run, part(ReplayConfig), masac, env, evaluation)
