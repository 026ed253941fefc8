"""Names that a command line may hold, known before torch is imported, so that a mistyped one is refused at once.

``names.json`` lists what the package registers; ``python tools/names.py`` writes it. It is read only while torch is not
imported, when no file of a user's own can have registered anything. Afterwards the registries answer.
"""

import re
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.installation import INSTALLED, PACKAGE, program
from uavlab.core.text import quote, suggest
from uavlab.experiment.layers import merge, parse_setting, read_yaml, set_layer
from uavlab.storage.files import read_json

INDEX = Path(__file__).with_name("names.json")
MAX_LISTED = 20  # unknown settings named in one message
ELSEWHERE = {
    **{"learning_rate": "lr", "actor_lr": "lr", "lr_actor": "lr", "lr_critic": "critic_lr", "discount": "gamma"},
    **{"batch_size": "batch", "buffer_size": "capacity", "hidden_size": "hidden", "total_steps": "updates"},
    **{"n_envs": "worlds", "n_agents": "followers", "polyak": "tau"},
}
"""Names of settings in other programs, for suggestions."""


@lru_cache
def index() -> dict[str, Any]:
    """Return ``presets`` (purpose and environment of each), ``settings`` of environments, ``toggles`` and ``sets``."""
    return read_json(INDEX)


def registries_loaded() -> bool:
    """Return whether the registries can be asked without importing torch first."""
    return "torch" in sys.modules


def preset_purposes() -> dict[str, str]:
    """Return the purpose of each preset."""
    if not registries_loaded():
        return {name: about for name, (about, _) in index()["presets"].items()}
    from uavlab.experiment.presets import presets

    return {name: preset.about for name, preset in presets().items()}


def require_names(given: Mapping[str, Any]) -> None:
    """Refuse unknown names among the parameters of a command, if torch is not imported; else the command does that.

    Args:
        given: Parameters by name: ``preset``, ``run`` or ``runs``, ``plan`` (a baseline, by which ``runs`` are
            presets), ``settings``, ``config_file``, ``toggles``, ``toggle_texts``; others are ignored.

    Raises:
        ConfigError: A preset, setting, toggle or set of toggles is unknown, or an argument is no run.
        FileError: A folder is no run.
    """
    if registries_loaded():
        return
    if (chosen := given.get("toggles")) is not None:
        require_toggle_set(chosen, _with_new([chosen], index()["sets"]))
    layers = [] if given.get("config_file") is None else [read_yaml(given["config_file"])]
    _, origins = merge([*layers, set_layer(given.get("settings", ()))])
    toggles = [parse_setting(text, "--toggle")[0] for text in given.get("toggle_texts", ())]
    for name in toggles:
        require_toggle(name, _with_new([name], index()["toggles"]))
    several = given["runs"] if isinstance(given.get("runs"), tuple) else ()
    runs, presets = [*several, *([given["run"]] if isinstance(given.get("run"), str) else [])], []
    if given.get("plan") is not None:
        runs, presets = [], runs
    for folder in [run_folder(run) for run in runs]:
        presets.append(read_settings(folder)["preset"])
        require_registered(folder, presets[-1], _with_new(presets, index()["presets"]))
    for preset in [*presets, *([given["preset"]] if "preset" in given else [])]:
        require_preset(preset, _with_new([preset], index()["presets"]))
        if preset in index()["presets"] and "learner" not in origins:
            settings = index()["settings"][index()["presets"][preset][1]]
            if problems := unknown_settings(origins, _with_new(origins, settings)):
                raise ConfigError(f"{preset}: " + "; ".join(problems) + "." + advice(preset))


def _with_new(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return known names, and those of a checkout that its sources contain: they may be newer than the index."""
    new = [name for name in names if name not in known]
    if INSTALLED or not new:
        return list(known)
    words = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))))
    return [*known, *(name for name in new if name in words)]


def require_preset(preset: str, known: Collection[str]) -> None:
    """Raise a ConfigError if there is no such preset."""
    if preset not in known:
        raise ConfigError(f"unknown preset {quote(preset)}{suggest(preset, known)}. Known presets: {', '.join(known)}.")


def require_toggle(name: str, known: Collection[str]) -> None:
    """Raise a ConfigError if there is no such toggle."""
    if name not in known:
        hint = suggest(name, known)
        raise ConfigError(f"unknown toggle {quote(name)} from --toggle{hint}. All toggles: {program()} toggles.")


def require_toggle_set(name: str, known: Collection[str]) -> None:
    """Raise a ConfigError if there is no such set of toggles."""
    if name not in known:
        raise ConfigError(f"unknown toggles {quote(name)}{suggest(name, known)}. Known sets: {', '.join(known)}.")


def unknown_settings(origins: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return a phrase for each name, given with its origin, that is not a known setting."""
    unknown = [name for name in origins if name not in known]
    elsewhere = {other: own for other, own in ELSEWHERE.items() if own in known}
    problems = [
        f"unknown setting {quote(name)}{origins[name]}{suggest(name, known, elsewhere)}"
        for name in unknown[:MAX_LISTED]
    ]
    return problems + ([f"{len(unknown) - MAX_LISTED} more unknown settings"] if len(unknown) > MAX_LISTED else [])


def advice(preset: str) -> str:
    """Return the sentence that follows a message about unknown settings."""
    return f" All settings: {program()} settings {preset}."


def run_folder(text: str) -> Path:
    """Return an argument of a command line as a run's folder if it exists or contains a separator.

    Raises:
        ConfigError: The argument is a preset or unknown.
    """
    if Path(text).exists() or "/" in text or "\\" in text:
        return Path(text)
    known = preset_purposes()
    if text in known:
        raise ConfigError(f"{text!r} is a preset, expected a run; train it first: {program()} train {text}.")
    raise ConfigError(f"{text!r} is neither a run nor a preset{suggest(text, known)}; expected the folder of a run.")


def read_settings(folder: Path) -> dict[str, Any]:
    """Read ``preset`` and ``values`` of the run in a folder.

    Raises:
        FileError: The folder holds no run.
    """
    path = folder / "config.json"
    if not path.exists():
        raise FileError(f"{path}: missing, so {folder} is no run; expected a folder that `{program()} train` made.")
    stored = read_json(path)
    if not isinstance(stored.get("preset"), str) or not isinstance(stored.get("values"), dict):
        raise FileError(f"{path}: expected the preset and the values of a run.")
    return stored


def require_registered(folder: Path, preset: str, known: Collection[str]) -> None:
    """Raise a ConfigError if the preset of the run in a folder is not known."""
    if preset not in known:
        raise ConfigError(
            f"{folder}: trained on {quote(preset)}, which is not registered here; import the file that registers it "
            f"(`@uavlab.env({preset!r})`) first, or run this command with it: python FILE.py COMMAND ..."
        )
