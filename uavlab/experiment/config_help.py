"""Every setting of a preset, read from the classes that declare them: its kind and range, its value, its meaning."""

import dataclasses
import inspect
import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from uavlab.experiment.config import configure, parts
from uavlab.experiment.presets import presets

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.M)


def described(preset: str) -> list[dict[str, Any]]:
    """Give ``name``, ``value``, ``kind`` and ``meaning`` of each setting, in the order of their classes.

    The environment's have twins ``eval_<name>`` that change them for evaluation alone; those are left out.

    Raises:
        ConfigError: An unknown preset.
    """
    values, rows = configure(preset).values, []
    for part in parts(presets()[preset].env):
        hints, said = get_type_hints(part, include_extras=True), meanings(part)
        rows += [
            {"name": f.name, "value": values[f.name], "kind": kind(hints[f.name]), "meaning": said.get(f.name, "")}
            for f in dataclasses.fields(part)
        ]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Lay them out for reading, one in a line."""
    lines = [f"{row['name']:20} {row['value']!s:10} {row['kind']:34} {row['meaning']}" for row in rows]
    last = "With eval_ before it, a setting of the environment changes for evaluation alone: eval_horizon."
    return "\n".join([*lines, last])


def meanings(cls: type) -> dict[str, str]:
    """Read what the docstrings of a class and its bases say under ``Attributes``."""
    said: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        listed = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        said |= {name: " ".join(text.replace("``", "").split()) for name, text in ATTRIBUTE.findall(listed)}
    return said


def kind(hint: Any) -> str:
    """Write a type and its limits as a person would: ``int >= 1, <= 256 or null``."""
    first, *limits = get_args(hint) or (hint,)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, (first, *limits)))
    if hint is NoneType:
        return "null"
    if get_origin(hint) is tuple:
        return f"list of ({kind(first)})"
    if hasattr(hint, "__metadata__"):
        pairs = [(sign, getattr(limit, name, None)) for limit in limits for name, sign in SIGNS.items()]
        bounds = ", ".join(f"{sign} {bound:,}" for sign, bound in pairs if bound is not None)
        return f"{kind(first)} {bounds}".rstrip()
    return " or ".join(map(kind, (first, *limits))) if limits else first.__name__
