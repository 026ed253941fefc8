"""Names of external environments, read without torch.

| name                | what it is                                                                       |
| ------------------- | -------------------------------------------------------------------------------- |
| ``gymnasium:ID``    | what ``gymnasium.make`` makes                                                    |
| ``pettingzoo:MODULE`` | what ``parallel_env`` of a module makes                                        |
| ``MODULE:FACTORY``, ``FILE.py:FACTORY`` | what a function or class of your own makes: one of either kind |

Arguments of the factory follow, as in ``pettingzoo:mpe2.simple_spread_v3,N=5,continuous_actions=true``.
"""

import importlib.util
import shlex
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.extras import require
from uavlab.core.installation import program
from uavlab.core.text import quote, yaml_value

FORMS = "gymnasium:ID, pettingzoo:MODULE, MODULE:FACTORY or FILE.py:FACTORY, then ,ARGUMENT=VALUE"
PACKAGES = {"gymnasium": ("gymnasium",), "pettingzoo": ("gymnasium", "pettingzoo"), "factory": ("gymnasium",)}
LONGEST = 1000  # characters of a name
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Origin:
    """Where an external environment comes from.

    Attributes:
        name: The whole name.
        kind: ``gymnasium``, ``pettingzoo`` or ``factory``.
        target: The id, or the module or file.
        factory: What is called; empty for ``gymnasium``.
        arguments: Of the call, by name.
    """

    name: str
    kind: str
    target: str
    factory: str = ""
    arguments: Mapping[str, Scalar] = field(default_factory=dict)


def is_external(name: Any) -> bool:
    return isinstance(name, str) and ":" in name


def parse(name: str) -> Origin:
    """Return where an environment of this name comes from; nothing is imported."""
    if len(name) > LONGEST:
        raise ConfigError(
            f"{quote(name)}: {len(name):,} characters; expected at most {LONGEST:,}: let a function of your own hold "
            "the arguments."
        )
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
    head = target if isinstance(target, str) else _place(target)
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in arguments.items()}
    name = ",".join([head, *(f"{key}={'null' if arguments[key] is None else text}" for key, text in texts.items())])
    if is_external(name) and any("," in text for text in texts.values()):
        raise ConfigError(f"external: got {quote(dict(arguments))}; expected values without commas.")
    if not is_external(name):
        raise ConfigError(f"external: got {quote(name)}; expected {FORMS}.")
    return name


def _place(factory: Callable[..., Any]) -> str:
    """Return ``MODULE:FACTORY`` of a function or class."""
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
    """Return whether an external environment is of an installed package, and no file or factory."""
    origin = parse(name)
    module = origin.target.partition(":")[0] if ":" in origin.target else ""
    module = origin.target if origin.kind == "pettingzoo" else module
    return origin.kind != "factory" and (not module or _installed(module))


def _installed(module: str) -> bool:
    """Return whether the package of a module lies where packages are installed."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    homes = [Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")]
    return spec is not None and spec.origin is not None and any(h in Path(spec.origin).resolve().parents for h in homes)
