"""Settings: each part of an experiment declares type, range, default and meaning of its fields.

What people write is checked as a whole: all problems of a table, of names, types, ranges and rules, are collected.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from uavlab.core.errors import ConfigError
from uavlab.core.registry import Resume
from uavlab.core.text import quote, suggest
from uavlab.core.types import Rule
from uavlab.runtime.toggles import TOGGLES, Toggles

SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
EVALUATION = "With eval_ before it, a setting of the environment changes for evaluation alone, such as eval_{}."
MAX_LISTED = 20  # unknown settings named in one message
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
    hints, abouts, settings = get_type_hints(part, include_extras=True), _meanings(part), []
    for field in dataclasses.fields(part):
        kind = hints[field.name]
        marks = (mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Resume))
        settings.append(Setting(field.name, kind, field.default, abouts.get(field.name, ""), next(marks, Resume.NO)))
    return tuple(settings)


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
    """Return ``name``, ``value``, ``kind`` and ``meaning`` of each setting that classes declare, in their order."""
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


def evaluation_of(env: type[Any]) -> dict[str, Any]:
    """Return the settings of an environment that differ where policies are evaluated, as its class names them."""
    values = getattr(env, "evaluation", {})
    if unknown := values.keys() - {setting.name for setting in settings_of(env)}:
        raise ConfigError(
            f"{env.__name__}.evaluation: {min(unknown)!r} is no setting of this environment; name those that differ "
            "where policies are evaluated."
        )
    return values


def strict_model(fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Create a model of settings: type and default by name. It converts no types, and refuses infinity and NaN."""
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Settings", __config__=strict, **fields)  # type: ignore[call-overload]


def fields_of(kind: type[Any], *without: str) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each field of a dataclass, for ``strict_model``; a field without one is required."""
    own = [each for each in settings_of(kind) if each.name not in without]
    return {each.name: (each.kind, ... if each.default is dataclasses.MISSING else each.default) for each in own}


def with_tuples(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists to tuples where tuples are expected, because YAML and JSON have only lists."""
    several = {name for name, field in model.model_fields.items() if "tuple[" in str(field.annotation)}
    return {k: tuple(v) if k in several and isinstance(v, list) else v for k, v in values.items()}


def as_stored(name: str, value: Any) -> Any:
    """Return a table as the folder of a run holds it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {error}; expected texts, numbers, true or false, lists and tables.") from None


def unknown_names(
    model: type[BaseModel], values: Iterable[Any], origins: Mapping[str, str], elsewhere: Mapping[str, str]
) -> list[str]:
    """Return a problem for each name that is no setting; ``elsewhere`` maps names of other programs to ours."""
    unknown = [name for name in values if name not in model.model_fields]
    known = {other: own for other, own in elsewhere.items() if own in model.model_fields}
    problems = [
        f"unknown setting {quote(name)}{origins.get(name, '')}{suggest(str(name), model.model_fields, known)}"
        for name in unknown[:MAX_LISTED]
    ]
    return problems + [f"{len(unknown) - MAX_LISTED} more unknown settings"] * (len(unknown) > MAX_LISTED)


def wrong_values(
    model: type[BaseModel], values: Mapping[str, Any], origins: Mapping[str, str]
) -> tuple[list[str], set[str]]:
    """Return a problem for each value of a wrong type or out of range, and the names of such settings."""
    try:
        model.model_validate({k: v for k, v in values.items() if k in model.model_fields})
    except ValidationError as error:
        return [_format_error(e, origins) for e in error.errors()], {str(e["loc"][0]) for e in error.errors()}
    return [], set()


def violations(
    rules: Iterable[Rule], values: Mapping[str, Any], wrong: set[str], origins: Mapping[str, str]
) -> list[str]:
    """Return a problem for each rule that does not hold; those of ``wrong`` settings are left out."""
    problems = []
    for fields, holds, message in rules:
        if all(f in values and f not in wrong for f in fields):
            given = [values[f] for f in fields]
            if not holds(*given):
                whence = ", ".join(f + origins[f] for f in fields if origins.get(f))
                problems.append(message.format(*given) + (f" ({whence})" if whence else ""))
    return problems


def problems_of(
    model: type[BaseModel],
    values: Mapping[str, Any],
    rules: Iterable[Rule] = (),
    others: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return all problems of a table; rules also see the values of ``others``."""
    values = with_tuples(model, values)
    problems, wrong = wrong_values(model, values, {})
    known = {**(others or {}), **values}
    return [*unknown_names(model, values, {}, {}), *problems, *violations(rules, known, wrong, {})]


def _format_error(error: Any, origins: Mapping[str, str]) -> str:
    name, message = error["loc"][0], error["msg"]
    got = "" if error["type"] == "missing" else f", got {quote(error['input'])}"
    return f"{name}: {message[0].lower()}{message[1:]}{got}{origins.get(str(name), '')}"
