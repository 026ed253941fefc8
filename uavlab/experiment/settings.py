"""Declarations of settings: each part of an experiment declares type, range, default and meaning of its fields."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Resume
from uavlab.runtime.toggles import TOGGLES, Toggles

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
EVALUATION = "With eval_ before it, a setting of the environment changes for evaluation alone, such as eval_{}."
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.M)


class Setting(NamedTuple):
    """One setting of a part: name, type, default, meaning, and whether a resumed run may change it."""

    name: str
    kind: Any
    default: Any
    about: str
    resume: Resume


def settings_of(part: type[Any]) -> list[Setting]:
    """Return the settings that a part declares: a dataclass's fields, or all registered toggles."""
    if part is Toggles:
        return [Setting(name, t.kind, t.default, t.about, t.resume) for name, t in TOGGLES.items()]
    return [*_declared(part)]  # type: ignore[arg-type]  # mypy knows no hash of classes


@lru_cache
def _declared(part: type[Any]) -> tuple[Setting, ...]:
    """Return the settings of a dataclass; a panel of a live run asks for them hundreds of times at each change."""
    hints, abouts = get_type_hints(part, include_extras=True), _meanings(part)
    return tuple(
        Setting(f.name, hints[f.name], f.default, abouts.get(f.name, ""), _resume_mark(hints[f.name]))
        for f in dataclasses.fields(part)
    )


def format_kind(kind: Any) -> str:
    """Format a type and its limits as text: ``int >= 1, <= 256 or null``."""
    first, *limits = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        return ", ".join(map(str, (first, *limits)))
    if kind is NoneType:
        return "null"
    if get_origin(kind) is tuple:
        return f"list of ({format_kind(first)})"
    if hasattr(kind, "__metadata__"):
        pairs = [(sign, getattr(limit, name, None)) for limit in limits for name, sign in SIGNS.items()]
        bounds = ", ".join(f"{sign} {bound:,}" for sign, bound in pairs if bound is not None)
        return f"{format_kind(first)} {bounds}".rstrip()
    return " or ".join(map(format_kind, (first, *limits))) if limits else first.__name__


def describe_settings(parts: Iterable[type[Any]], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``name``, ``value``, ``kind`` and ``meaning`` of each setting, in the order of the declaring classes.

    The settings ``eval_<name>`` of an environment are left out.
    """
    return [
        {"name": each.name, "value": values[each.name], "kind": format_kind(each.kind), "meaning": each.about}
        for part in parts
        for each in settings_of(part)
    ]


def format_settings(rows: Iterable[Mapping[str, Any]], env: type[Any]) -> str:
    """Format the rows of ``describe_settings`` as lines of text, the last one on the settings of the environment."""
    lines = [f"{row['name']:20} {row['value']!s:10} {row['kind']:34} {row['meaning']}" for row in rows]
    lines += [EVALUATION.format(setting.name) for setting in settings_of(env)[:1]]
    return "\n".join(lines)


def _meanings(part: type[Any]) -> dict[str, str]:
    """Parse the ``Attributes`` sections in the docstrings of a class and its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(part.__mro__):
        listed = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        meanings |= {name: " ".join(text.replace("``", "").split()) for name, text in ATTRIBUTE.findall(listed)}
    return meanings


def _resume_mark(kind: Any) -> Resume:
    return next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Resume)), Resume.NO)


def evaluation_of(env: type[Any]) -> dict[str, Any]:
    """Return the settings of an environment that differ where policies are evaluated, as its class names them."""
    values = getattr(env, "evaluation", {})
    if unknown := values.keys() - {setting.name for setting in settings_of(env)}:
        raise ConfigError(
            f"{env.__name__}.evaluation: {min(unknown)!r} is no setting of this environment; name those that differ "
            "where policies are evaluated."
        )
    return values
