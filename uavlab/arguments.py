"""What the functions of ``uavlab.api`` take: a task, settings, a run or its folder, as the objects that they name."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Env
from uavlab.core.text import quote
from uavlab.experiment import policy
from uavlab.experiment.config import Config, Device, Layer, configure, single_layer, toggle_layer
from uavlab.experiment.names import run_folder
from uavlab.experiment.policy import TrainedPolicy
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab.registration import name_and_parameters

Task = str | Env[Any]
Settings = Mapping[str, Any]
Trained = Run | TrainedPolicy | str | Path


def task_config(task: Any, toggles: Any, settings: Settings | None, options: Settings) -> Config:
    name, parameters = name_and_parameters(task)
    return configure(name, *layers(toggles, settings, options, parameters))


def environment(function: str, task: Task, parameters: Settings) -> Any:
    """Return the environment of a task with these parameters over it; ``function`` is named in errors."""
    name, own = name_and_parameters(task)
    env = configure(name, own, parameters).env
    if other := sorted(parameters.keys() - {field.name for field in fields(env)}):
        raise ConfigError(f"{function}: {other[0]} is a setting of a run, not of {type(env).__name__}; leave it out.")
    return env


def layers(toggles: Any, settings: Any, options: Settings, parameters: Settings | None = None) -> list[Layer]:
    """Return a named set of toggles, and over it what is given by name: no setting twice."""
    single = {} if isinstance(toggles, str) else toggles or {}
    given = {name: value for name, value in options.items() if value is not None}
    sources = {"the environment": parameters or {}, "toggles": single, "settings": settings or {}, "an argument": given}
    for source, values in sources.items():
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: got {quote(values)}; expected values by name, such as {{'lr': 1e-3}}.")
    over = single_layer(
        (name, value, getattr(values, "origins", {}).get(name, source))
        for source, values in sources.items()
        for name, value in values.items()
    )
    return [toggle_layer(toggles, over.get("device")), over] if isinstance(toggles, str) else [over]


def config_of(what: Any, device: Device | None = None) -> Config:
    """Return the settings of a run or of its folder, or of a task."""
    if isinstance(what, Run | TrainedPolicy):
        return what.config
    if isinstance(what, str | Path) and os.path.exists(Path(what, "config.json")):
        return read_config(Path(what), *([] if device is None else [{"device": device}]))
    return task_config(what, None, None, {"device": device})


def trained_policy(function: str, what: Any, device: Device | None = None) -> TrainedPolicy:
    """Return the best policy of a run or of its folder; ``function`` is named in the error."""
    if isinstance(what, Run):
        return what.trained()
    if isinstance(what, str | Path):
        return policy.load(run_folder(what), device)
    if isinstance(what, TrainedPolicy):
        return what
    raise ConfigError(f"{function}: got {quote(what)}; expected a run or its folder, or a task and policy=.")


def run_folders(function: str, runs: Any) -> list[Path]:
    """Return the folders of a run or of several, each once; ``function`` is named in errors."""
    several = isinstance(runs, Iterable) and not isinstance(runs, Trained)  # iterating over a run would train it
    folders = [_folder(function, run) for run in (runs if several else [runs])]
    if not folders:
        raise ConfigError(f"{function}: got no run; expected at least one.")
    return [*{folder.resolve(): folder for folder in folders}.values()]


def _folder(function: str, run: Any) -> Path:
    if isinstance(run, str | Path):
        return run_folder(run)
    if not isinstance(run, Run | TrainedPolicy):
        raise ConfigError(f"{function}: got {quote(run)}; expected a run that is kept in a folder, or its folder.")
    if run.folder is None:
        raise ConfigError(f"{function}: {run!r} has no folder; train it with out=FOLDER, or export it to one.")
    return run.folder
