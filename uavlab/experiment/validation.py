"""Checks of settings that people write: names, types, ranges and rules; all problems of a table are collected."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest
from uavlab.core.types import Rule
from uavlab.experiment.settings import settings_of

MAX_LISTED = 20  # unknown settings named in one message


def strict_model(fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Create a model of settings: type and default by name. It converts no types, and refuses infinity and NaN."""
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("Settings", __config__=strict, **fields)  # type: ignore[call-overload]


def fields_of(kind: type[Any], *without: str) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each field of a dataclass, for ``strict_model``; a field without one is required."""
    own = [each for each in settings_of(kind) if each.name not in without]
    return {each.name: (each.kind, ... if each.default is MISSING else each.default) for each in own}


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
