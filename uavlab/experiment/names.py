"""Presets and runs that a command line names: a mistyped one is refused before torch is imported."""

import os
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import program
from uavlab.core.text import quote, require_known, suggest
from uavlab.experiment.external_names import is_external, require_trusted
from uavlab.experiment.presets import presets
from uavlab.storage.files import json_digest, read_json

DIGEST = "sha256"  # in config.json: of the rest of it
MAX_LISTED = 5  # runs in one message


def require_names(given: Mapping[str, Any]) -> None:
    """Refuse unknown names among the parameters of a command.

    Args:
        given: Parameters by name: ``preset``, ``run`` or ``runs``, ``plan`` (a baseline; ``runs`` are presets then),
            ``plans`` (baselines; ``runs`` may be presets then); others are ignored.
    """
    several = given["runs"] if isinstance(given.get("runs"), tuple) else ()
    names = [given[key] for key in ("preset", "run") if key in given]
    for name in [*several, *names]:
        task = (
            "preset" in given
            or given.get("plan") is not None
            or (given.get("plans") and (name in presets() or is_external(name)))
        )
        is_run = os.path.exists(f"{name}/config.json")
        if is_run and "preset" in given:
            own, text = read_settings(Path(name))["preset"], shlex.quote(name)
            step = f"continue it by `{program()} resume {text}`, or name its preset, {own}"
            raise ConfigError(f"{quote(name)} is a run, expected a preset; {step}.")
        if task and not is_run:
            require_preset(name)
        else:
            require_run(run_folder(name))


def require_preset(name: str) -> None:
    """Register an external environment of this name, and raise a ConfigError if there is no such preset."""
    if is_external(name) and name not in presets():
        register_external(name)
    require_known("preset", name, presets())


def register_external(name: str) -> None:
    """Register the external environment of this name; torch is imported once it is known to exist."""
    import_module("uavlab.workers.registration").register(name)


def run_folder(name: str | Path) -> Path:
    """Return an argument as a run's folder if it exists or contains a separator."""
    if not isinstance(name, str | Path):
        raise ConfigError(
            f"got {quote(name)}; expected the folder of a run. To train a run on, iterate over it; it has its policy."
        )
    text = str(name)
    if Path(text).exists() or "/" in text or "\\" in text:
        return Path(text)
    known = presets()
    if text in known:
        raise ConfigError(f"{text!r} is a preset, expected a run; train it first: {program()} train {text}.")
    hint = _near(Path(text)) or suggest(text, known)
    raise ConfigError(f"{text!r} is neither a run nor a preset{hint}; expected the folder of a run.")


def runs_in(*folders: Path) -> list[str]:
    """Return the first runs that lie in these folders."""
    inside = [path.parent for folder in folders for path in sorted(folder.glob("*/config.json"))]
    return [str(path) for path in inside[:MAX_LISTED]]


def _near(folder: Path) -> str:
    """Return `` (did you mean ...?)`` with a run around a path, or of a similar name; empty if there is none."""
    around = [path for path in folder.parents if (path / "config.json").exists()]
    runs = runs_in(folder.parent, Path(), Path("runs"))
    return (
        f" (did you mean {str(around[0])!r}?)" if around else suggest(folder.name, (), {Path(r).name: r for r in runs})
    )


def require_run(folder: Path) -> None:
    """Refuse a folder without readable settings, unless it has checkpoints, which hold them too."""
    try:
        read_settings(folder)
    except FileError:
        if not any(folder.glob("checkpoints/ckpt-*")):
            raise


def read_settings(folder: Path) -> dict[str, Any]:
    """Read ``preset`` and ``values`` of a run, and the ``sha256`` of the rest of the file."""
    path = folder / "config.json"
    if not path.exists():
        inside = runs_in(folder)
        other = f"; runs in it: {', '.join(inside)}" if inside else f"; expected a folder that `{program()} train` made"
        raise FileError(f"{path}: missing, so {folder} is no run{other if inside else _near(folder) + other}.")
    return check_settings(path, read_json(path))


def own_digest(stored: Mapping[str, Any]) -> str:
    """Return the digest that settings of a run should hold."""
    return json_digest({name: value for name, value in stored.items() if name != DIGEST})


def is_damaged(stored: Mapping[str, Any]) -> bool:
    """Return whether settings of a run do not match their own digest."""
    return stored.get(DIGEST) != own_digest(stored)


def check_settings(path: Path, stored: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds if it is the settings of a run."""
    if not isinstance(stored.get("preset"), str) or not isinstance(stored.get("values"), dict):
        raise FileError(f"{path}: expected the preset and the values of a run.")
    if stored["preset"] not in presets() and is_external(stored["preset"]) and not is_damaged(stored):
        require_trusted(path.parent, stored["preset"])
        register_external(stored["preset"])
    if stored["preset"] not in presets():
        if is_damaged(stored):
            raise FileError(f"{path}: damaged: preset {quote(stored['preset'])}, and it does not match its own digest.")
        name, env = quote(stored["preset"]), quote(stored.get("environment", stored["preset"]))
        raise ConfigError(
            f"{path.parent}: trained on {name}, which is not registered here; import the file that registers the "
            f"environment {env} first, or run this command with it: python FILE.py COMMAND ..."
        )
    return stored
