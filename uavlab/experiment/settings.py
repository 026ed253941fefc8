"""What can be set: each part of an experiment declares its settings once, with types, ranges, defaults and meanings."""

import dataclasses
import inspect
import re
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from uavlab.core.registry import Resume
from uavlab.runtime.toggles import TOGGLES, Toggles

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.M)


class Setting(NamedTuple):
    """One setting of a part: its name, type and default, what it means, and whether a resumed run may change it."""

    name: str
    kind: Any
    default: Any
    about: str
    resume: Resume


def settings_of(part: type[Any]) -> list[Setting]:
    """Return the settings that a part declares: a dataclass's fields, or all registered toggles."""
    if part is Toggles:
        return [Setting(name, t.kind, t.default, t.about, t.resume) for name, t in TOGGLES.items()]
    hints, abouts = get_type_hints(part, include_extras=True), _meanings(part)
    return [
        Setting(f.name, hints[f.name], f.default, abouts.get(f.name, ""), _resume(hints[f.name]))
        for f in dataclasses.fields(part)
    ]


def format_kind(kind: Any) -> str:
    """Write a type and its limits as a person would: ``int >= 1, <= 256 or null``."""
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


def _meanings(part: type[Any]) -> dict[str, str]:
    """Read what the docstrings of a class and its bases say under ``Attributes``."""
    meanings: dict[str, str] = {}
    for base in reversed(part.__mro__):
        listed = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        meanings |= {name: " ".join(text.replace("``", "").split()) for name, text in ATTRIBUTE.findall(listed)}
    return meanings


def _resume(kind: Any) -> Resume:
    marks = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Resume)]
    return marks[0] if marks else Resume.NO
