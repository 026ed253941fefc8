"""Build a valid configuration from a preset, a YAML file and the command line.

Settings form one flat namespace: field names are unique over run, collector, learner, toggles and environment. The
prefix ``eval_`` changes an environment's field for evaluation only. All settings are checked before anything is
created, and one error lists all problems.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel

from uavlab.collectors.off_policy import POOL_STEPS
from uavlab.core.errors import ConfigError
from uavlab.core.installation import program
from uavlab.core.registry import Resume, Settings
from uavlab.core.text import one_line, quote, suggest, yaml_lines, yaml_value
from uavlab.core.types import Rule
from uavlab.experiment.build import Task, preset_values, task
from uavlab.experiment.curriculum import curriculum_problems
from uavlab.experiment.diagnostics import alarm_problems
from uavlab.experiment.names import presets, require_preset
from uavlab.experiment.schedules import plateau_problems
from uavlab.experiment.settings import (
    as_stored,
    evaluation_of,
    settings_of,
    strict_model,
    unknown_names,
    violations,
    with_tuples,
    wrong_values,
)
from uavlab.experiment.sizes import AUTO, AUTOMATIC, automatic_sizes
from uavlab.runtime.ranks import RankConfig
from uavlab.runtime.toggles import TOGGLES, Toggle, Toggles, as_dict, eager, toggle_presets
from uavlab.storage.files import read_regular
from uavlab.storage.metrics_log import is_place, is_project

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
    (
        ("wandb",),
        lambda project: project is None or is_project(project),
        "wandb {0!r:.80}: expected the name of a project, 1 to 128 characters, none of / \\ # ? % :",
    ),
    (
        ("mlflow",),
        lambda place: place is None or is_place(place),
        "mlflow {0!r:.80}: expected a folder or an address, 1 to 1,000 characters",
    ),
    (("updates", "minutes"), lambda u, m: u or m, "neither updates nor minutes is set: the run would never end"),
    (
        ("log_std_low", "log_std_high"),
        lambda low, high: low < high,
        "log_std_low {0} >= log_std_high {1}: the policy would have no width",
    ),
)
"""Constraints between settings of every run; an environment declares constraints of its fields as ``rules``."""


Device = Literal["auto", "cpu", "cuda"]
LogLevel = Literal["warning", "info", "debug"]
TABLES = ("curriculum", "plateau", "alarms")  # settings that hold other settings
FEW = 8  # changed settings in a line
LARGEST_FILE = 50_000  # bytes of a settings file
ELSEWHERE = {
    **{"learning_rate": "lr", "actor_lr": "lr", "lr_actor": "lr", "lr_critic": "critic_lr", "discount": "gamma"},
    **{"batch_size": "batch", "buffer_size": "capacity", "hidden_size": "hidden", "total_steps": "updates"},
    **{"n_envs": "worlds", "n_agents": "followers", "polyak": "tau"},
}
"""Names of settings in other programs, for suggestions."""


@dataclass(frozen=True)
class RunConfig(RankConfig):
    """Settings of a run apart from its environment, learner and toggles.

    Attributes:
        learner: Name of the learner; None takes the environment's default.
        seed: Seed of the first run; run r has seed + r.
        runs: Independent runs trained in this process (R).
        updates: Updates to make; None trains until ``minutes`` are over.
        minutes: Wall-clock minutes of training after which the run ends; None for no limit.
        patience: Successive scores without an improvement after which the run ends; None for no such limit.
        device: ``auto`` uses CUDA if it is available.
        log_every: Updates between reads of metrics from the device.
        log_episodes: Whether ``episode/`` metrics of episodes since the last row are logged; it measures each step.
        monitor: Whether the time of each stage, load, memory and operators are logged.
        log_level: What the progress bar shows of Python's logger ``uavlab``: nothing, saves and moves between stages
            (``info``), or every row of metrics, too (``debug``).
        report_every: Updates between reports of moves, highest score, rate and alarms beside the bar; None for none.
        evaluate_every: Updates between scores by which the best policy is selected.
        evaluate_episodes: Episodes per run of each of these scores.
        evaluate_mean_action: Whether these scores, which choose policies, stages and rates, are of mean actions, or the
            likeliest moves, instead of sampled ones. The scores of a run are of one kind.
        checkpoint_every: Updates between checkpoints.
        keep: Number of latest checkpoints that stay on disk.
        curriculum: Table of stages by the scores of each seed, see ``uavlab.experiment.curriculum``; None for the task
            alone.
        plateau: Table of rules by which each seed's learning rates fall when its scores stop improving, see
            ``uavlab.experiment.schedules``; ``{}`` takes the defaults, None leaves the rates as they are.
        alarms: Tables of limits beyond which a figure of the log should not be, see ``uavlab.experiment.diagnostics``.
        wandb: Project of Weights & Biases in which a run with a folder is tracked, offline unless WANDB_MODE names
            another mode; None for no tracking.
        mlflow: Folder or address of MLflow in which a run with a folder is tracked; None for no tracking.
    """

    learner: str | None = None
    seed: Annotated[int, Ge(0), Le(2**31)] = 0
    runs: Annotated[int, Ge(1), Le(256)] = 1
    updates: Annotated[Annotated[int, Ge(1), Le(10**9)] | None, Resume.SAME] = 10_000
    minutes: Annotated[Annotated[float, Gt(0), Le(100_000)] | None, Resume.SAME] = None
    patience: Annotated[Annotated[int, Ge(1), Le(10_000)] | None, Resume.SAME] = None
    device: Annotated[Device, Resume.SAME] = "auto"
    log_every: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 100
    log_episodes: bool = False
    monitor: Annotated[bool, Resume.SAME] = False
    log_level: Annotated[LogLevel, Resume.SAME] = "warning"
    report_every: Annotated[Annotated[int, Ge(1), Le(10**9)] | None, Resume.SAME] = None
    evaluate_every: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 500
    evaluate_episodes: Annotated[int, Ge(1), Le(100_000), Resume.YES] = 100
    evaluate_mean_action: bool = False
    checkpoint_every: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 1_000
    keep: Annotated[int, Ge(1), Le(1000), Resume.SAME] = 3
    curriculum: dict[str, Any] | None = None
    plateau: Annotated[dict[str, Any] | None, Resume.YES] = None
    alarms: Annotated[list[dict[str, Any]] | None, Resume.SAME] = None
    wandb: Annotated[str | None, Resume.SAME] = None
    mlflow: Annotated[str | None, Resume.SAME] = None


@dataclass(frozen=True)
class Config(Settings):
    """Valid settings: ``values`` is the flat namespace, the other fields are the objects built from it.

    ``source``, ``learner`` and ``env`` are of the classes that ``task.settings`` names.
    """

    run: RunConfig
    toggles: Toggles
    task: Task

    @property
    def parts(self) -> tuple[type[Any], ...]:
        """The classes whose fields are the settings, the environment last."""
        return parts(self.task.settings)

    @property
    def changed(self) -> dict[str, Any]:
        """What the preset alone would set, of each setting that has another value."""
        pairs = ((name, self.usual.get(name, value), value) for name, value in self.values.items())
        return {name: usual for name, usual, value in pairs if value != usual}

    def __repr__(self) -> str:
        changed = {name: self.values[name] for name in self.changed}
        texts = [f"{name}={value if isinstance(value, str) else quote(value)}" for name, value in changed.items()]
        more = [f"{len(texts) - FEW} more"] * (len(texts) > FEW)
        return one_line(f"<Config of {self.preset}: learner {', '.join([self.task.learner, *texts[:FEW], *more])}>")


class Layer(dict[str, Any]):
    """Settings with the origin of each value for error messages, such as ``mine.yaml:7`` or ``--seed``."""

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        super().__init__(values)
        self.origins = dict(origins)


def configure(preset: str, *layers: Mapping[str, Any]) -> Config:
    """Build valid settings from a preset and layers over it; later layers override earlier ones.

    Layers that set ``minutes`` but not ``updates`` remove the preset's limit on updates. Sizes that are ``auto`` are
    chosen by the other settings, or measured (``uavlab.experiment.sizes``).

    Raises:
        ConfigError: A preset or key is unknown, a type is wrong, a value is out of range or a constraint is violated.
            The message lists all problems.
        ResourceError: ``worlds`` is ``auto``, and one does not fit into memory.
    """
    given = {name: value for layer in layers for name, value in layer.items()}
    if not (names := [name for name in AUTOMATIC if given.get(name) == AUTO]):
        return _configure(preset, *layers)
    sizes = automatic_sizes(_configure(preset, *layers, dict.fromkeys(names, 1)), names)
    config = _configure(preset, *layers, {name: size for name, (size, _) in sizes.items()})
    return dataclasses.replace(config, chosen={name: why for name, (_, why) in sizes.items()})


def _configure(preset: str, *layers: Mapping[str, Any]) -> Config:
    require_preset(preset)
    chosen = presets()[preset]
    given, origins = dict[str, Any](), dict[str, str]()
    for layer in layers:
        given |= layer
        known = getattr(layer, "origins", {})
        origins |= {name: f" from {known[name]}" if name in known else "" for name in layer}
    if given.get("minutes") is not None:
        given.setdefault("updates", None)
    learner = {**chosen.values, **given}.get("learner")
    if not isinstance(learner, str | None):
        raise ConfigError(f"learner: expected a name, got {quote(learner)}{origins.get('learner', '')}.")
    chosen_task = task(chosen.env, learner)
    usual = {**eager(), **preset_values(chosen, chosen_task), "learner": chosen_task.learner}
    values = {**usual, **given, "learner": chosen_task.learner}
    model = model_of(chosen_task.settings, tuple(TOGGLES.values()))
    defaults = {name: field.default for name, field in model.model_fields.items()}
    unknown, values = unknown_names(model, values, origins, ELSEWHERE), with_tuples(model, values)
    problems, wrong = wrong_values(model, values, origins)
    values = {**defaults, **values}
    rules = (*RULES, *getattr(chosen_task.environment.kind, "rules", ()))
    problems = [*unknown, *problems, *violations(rules, values, wrong, origins)]
    if not problems:
        values |= {name: as_stored(name, values[name]) for name in TABLES}  # as a folder of a run holds them
        usual = {**defaults, **with_tuples(model, usual)}
        usual |= {name: as_stored(name, usual[name]) for name in TABLES}
        problems = plateau_problems(values["plateau"]) + alarm_problems(values["alarms"])
        problems += curriculum_problems(values, chosen_task.environment.kind)
    if problems:
        more = f" All settings: {program()} settings {preset}." if unknown else ""
        raise ConfigError(f"{preset}: " + "; ".join(problems) + "." + more)

    def part(cls: type[Any]) -> Any:
        return cls(**{setting.name: values[setting.name] for setting in settings_of(cls)})

    run, source, own, toggles, env = map(part, parts(chosen_task.settings))
    changed = {field.name: values[f"eval_{field.name}"] for field in dataclasses.fields(env)}
    evaluation = dataclasses.replace(env, **{name: value for name, value in changed.items() if value is not None})
    chosen_task.algorithm.require_same(own, env.spec, evaluation.spec)
    return Config(preset, run, source, own, toggles, env, values, evaluation, chosen_task, usual)


def gather(
    file: Path | None,
    texts: Iterable[str],
    options: Mapping[str, Any],
    toggles: str | None = None,
    toggle_texts: Iterable[str] = (),
) -> Layer:
    """Return the settings on a command line, of which later ones override earlier ones.

    Their order is: a named set of toggles, a settings file, ``key=value`` texts of settings, those of toggles, and the
    options that are not None.
    """
    assigned = dict(map(parse_setting, texts))
    toggled = dict(parse_setting(text, "--toggle") for text in toggle_texts)
    for name in toggled:
        if name not in TOGGLES:
            hint = suggest(name, TOGGLES)
            raise ConfigError(f"unknown toggle {quote(name)} from --toggle{hint}. All toggles: {program()} toggles.")
    chosen = {name: value for name, value in options.items() if value is not None}
    result = Layer({}, {})
    for layer in (
        *([] if toggles is None else [toggle_layer(toggles, options.get("device"))]),
        *([] if file is None else [read_yaml(file)]),
        Layer(assigned, dict.fromkeys(assigned, "--set")),
        Layer(toggled, dict.fromkeys(toggled, "--toggle")),
        Layer(chosen, {name: f"--{name}" for name in chosen}),
    ):
        result |= layer
        result.origins |= layer.origins
    return result


def single_layer(settings: Iterable[tuple[str, Any, str]]) -> Layer:
    """Return settings, each a name, a value and its origin, as one layer."""
    result = Layer({}, {})
    for name, value, origin in settings:
        if name in result:
            raise ConfigError(f"{name} is given twice, by {result.origins[name]} and by {origin}; leave out one.")
        result[name], result.origins[name] = value, origin
    return result


def toggle_layer(name: str, device: str | None = None) -> Layer:
    """Return a named set of toggles for a device; None stands for ``auto``."""
    on_cuda = torch.cuda.is_available() and device != "cpu"
    known = toggle_presets(torch.device("cuda" if on_cuda else "cpu"))
    if name not in known:
        raise ConfigError(f"unknown toggles {quote(name)}{suggest(name, known)}. Known sets: {', '.join(known)}.")
    values = {**as_dict(Toggles()), **known[name]}
    return Layer(values, dict.fromkeys(values, f"--toggles {name}"))


def read_yaml(path: Path) -> Layer:
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable as UTF-8: {error.reason} at byte {error.start}.") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', error)}.") from error
    values = yaml_value(text, str(path), lines=True)
    if not isinstance(values, dict):
        got = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path}: expected lines `name: value`, got {got}.")
    if odd := [name for name in values if not isinstance(name, str)]:
        raise ConfigError(f"{path}: expected lines `name: value`, got the name {quote(odd[0])}.")
    return Layer(values, {name: f"{path}:{line}" for name, line in yaml_lines(text).items()})


def parse_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Split ``key=value``, and parse the value as YAML 1.2."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{option} {text!r}: expected key=value.")
    return key.strip(), yaml_value(value, f"{option} {quote(text)}")


def parts(settings: tuple[type[Any], ...]) -> tuple[type[Any], ...]:
    """Return the classes whose fields are the settings of a run, the environment last."""
    source, learner, env = settings
    return RunConfig, source, learner, Toggles, env


@lru_cache
def model_of(settings: tuple[type[Any], ...], toggles: tuple[Toggle, ...]) -> type[BaseModel]:
    """Create one strict model with every setting of a run, anew if a toggle was registered again."""
    fields: dict[str, Any] = {}
    for part in parts(settings):
        evaluation = evaluation_of(part)
        for each in settings_of(part):
            own = {each.name: (each.kind, each.default)}
            if part is settings[2]:
                own[f"eval_{each.name}"] = (each.kind | None, evaluation.get(each.name))
            if taken := fields.keys() & own:
                raise ConfigError(f"{part.__name__}.{each.name}: {min(taken)!r} is another setting; rename the field.")
            fields |= own
    return strict_model(fields)
