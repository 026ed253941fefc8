"""Names that people write, read without torch: presets, runs, and external environments.

Presets are named settings to start from (``presets.toml``); every environment is also one, with all defaults. A
mistyped name is refused before torch is imported. External environments have these names:

| name                | what it is                                                                       |
| ------------------- | -------------------------------------------------------------------------------- |
| ``gymnasium:ID``    | what ``gymnasium.make`` makes                                                    |
| ``pettingzoo:MODULE`` | what ``parallel_env`` of a module makes                                        |
| ``MODULE:FACTORY``, ``FILE.py:FACTORY`` | what a function or class of your own makes: one of either kind |

Arguments of the factory follow, as in ``pettingzoo:mpe2.simple_spread_v3,N=5,continuous_actions=true``.
"""

import importlib.util
import json
import os
import shlex
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.extras import require
from uavlab.core.installation import program
from uavlab.core.registry import ENVIRONMENTS, Registry
from uavlab.core.text import quote, require_known, suggest, yaml_value
from uavlab.storage.files import json_digest, read_json

FILE = Path(__file__).with_name("presets.toml")
FORMS = "gymnasium:ID, pettingzoo:MODULE, MODULE:FACTORY or FILE.py:FACTORY, then ,ARGUMENT=VALUE"
PACKAGES = {"gymnasium": ("gymnasium",), "pettingzoo": ("gymnasium", "pettingzoo"), "factory": ("gymnasium",)}
DIGEST = "sha256"  # in config.json: of the rest of it
MAX_LISTED = 5  # runs in one message
LONGEST = 1000  # characters of the name of an external environment
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Preset:
    """Settings that differ from the defaults, and one line on their purpose."""

    env: str
    about: str
    values: dict[str, Any] = field(default_factory=dict)


PRESETS: Registry[Preset] = Registry("preset")

for name, table in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
    base = PRESETS[table.pop("base")] if "base" in table else Preset("", "")
    env, about = table.pop("env", base.env), table.pop("about")
    if "minutes" in table:
        table.setdefault("updates", None)
    PRESETS.register(name, Preset(env, about, {**base.values, **table}))


def presets() -> dict[str, Preset]:
    """Return all presets by name, with one of all defaults for each registered environment."""
    plain = {name: Preset(name, f"{env} with its defaults.") for name, env in ENVIRONMENTS.items()}
    return {**PRESETS, **{name: preset for name, preset in plain.items() if name not in PRESETS}}


@dataclass(frozen=True)
class Origin:
    """Where an external environment comes from."""

    name: str  # the whole one
    kind: str  # ``gymnasium``, ``pettingzoo`` or ``factory``
    target: str  # the id, or the module or file
    factory: str = ""  # what is called; empty for ``gymnasium``
    arguments: Mapping[str, Scalar] = field(default_factory=dict)  # of the call


def is_external(name: Any) -> bool:
    return isinstance(name, str) and ":" in name


def parse_external(name: str) -> Origin:
    """Return where an environment comes from; nothing is imported."""
    if len(name) > LONGEST:
        problem = f"{quote(name)}: {len(name):,} characters; expected at most {LONGEST:,}"
        raise ConfigError(f"{problem}: let a function of your own hold the arguments.")
    head, *pairs = name.split(",")
    scheme, _, rest = head.partition(":")
    kind = scheme if scheme in PACKAGES else "factory"
    target, _, factory = (rest, "", "") if kind == "gymnasium" else (rest, "", "parallel_env")
    if kind == "factory":
        target, _, factory = head.rpartition(":")
    if not target or (kind == "factory" and not factory):
        raise ConfigError(f"{quote(name)}: expected {FORMS}.")
    arguments = dict(_argument(name, pair) for pair in pairs)
    require("external", name, *PACKAGES[kind])
    return Origin(name, kind, target, factory, arguments)


def _argument(name: str, pair: str) -> tuple[str, Scalar]:
    key, sign, text = pair.partition("=")
    if not sign or not key.isidentifier():
        raise ConfigError(f"{quote(name)}: got {quote(pair)} after a comma; expected ARGUMENT=VALUE.")
    value = yaml_value(text, f"{quote(name)}: {key}")
    if not isinstance(value, Scalar):
        raise ConfigError(f"{quote(name)}: {key} is {quote(value)}; expected a number, a text, true, false or null.")
    return key, value


def compose(target: str | Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Return the name of an environment with arguments; a function or class stands for ``MODULE:FACTORY``."""
    texts = {k: json.dumps(v) if v is None or isinstance(v, bool) else str(v) for k, v in arguments.items()}
    name = ",".join([target if isinstance(target, str) else _place(target), *map("=".join, texts.items())])
    if not is_external(name):
        raise ConfigError(f"external: got {quote(name)}; expected {FORMS}.")
    if any("," in text for text in texts.values()):
        raise ConfigError(f"external: got {quote(dict(arguments))}; expected values without commas.")
    return name


def _place(factory: Callable[..., Any]) -> str:
    module, own = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__":
        module = getattr(sys.modules["__main__"], "__file__", "")
    if not module or not own or "<" in own:
        raise ConfigError(
            f"external: {quote(factory)} is in no file, so no other process can make it; write it to a file, such as "
            "mine.py by %%writefile mine.py in a notebook, and name mine.py:FACTORY."
        )
    return f"{module}:{own}"


def require_trusted(folder: Path, name: str) -> None:
    """Raise if a run's folder names code that a file must not start: other than of installed environments."""
    if not is_installed(name):
        own = quote(name)
        raise ConfigError(
            f"{folder}: trained on {own}, code that a run's folder must not start by itself; if you trust it, "
            f"run `{program()} --env {shlex.quote(name)} COMMAND ...`, or ul.external({own}) in Python first."
        )


def trust_option(name: str) -> list[str]:
    """Return the option that lets a command start the environment of a run; empty where it needs none."""
    return ["--env", name] if is_external(name) and not is_installed(name) else []


def is_installed(name: str) -> bool:
    """Return whether an external environment is of a package that lies where packages are installed."""
    origin = parse_external(name)
    if origin.kind == "factory":
        return False
    if origin.kind == "gymnasium" and ":" not in origin.target:
        return True  # an id of gymnasium's own
    spec = importlib.util.find_spec(origin.target.partition(":")[0].partition(".")[0])
    homes = [Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")]
    return spec is not None and spec.origin is not None and any(h in Path(spec.origin).resolve().parents for h in homes)


def require_names(given: Mapping[str, Any]) -> None:
    """Refuse unknown names among the parameters of a command: ``preset``, ``run`` or ``runs``.

    With ``plan`` (a baseline) ``runs`` are presets, with ``plans`` they may be.
    """
    several = given["runs"] if isinstance(given.get("runs"), tuple) else ()
    for name in [*several, *(given[key] for key in ("preset", "run") if key in given)]:
        tasks = given.get("plans") and (name in presets() or is_external(name))
        task = "preset" in given or given.get("plan") is not None or tasks
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
    around = [str(path) for path in folder.parents if (path / "config.json").exists()]
    similar = {Path(run).name: run for run in runs_in(folder.parent, Path(), Path("runs"))}
    return f" (did you mean {around[0]!r}?)" if around else suggest(folder.name, (), similar)


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
