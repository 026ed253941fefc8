"""What people type: names that are nearly right, and values written as YAML 1.2."""

import difflib
from collections.abc import Iterable
from typing import Any

from uavlab.core.errors import ConfigError


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that looks most like ``name``, as the tail of a message; empty if none does."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def yaml_value(text: str, where: str) -> Any:
    """Read ``text`` as YAML 1.2 does, building plain values alone.

    Raises:
        ConfigError: It is not YAML, or it asks for other objects; the message names ``where`` it was found.
    """
    from ruamel.yaml import YAML  # late: notebooks import this module, and most read no YAML

    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # malformed tags make ruamel stumble in any way, and deep nesting ends its recursion
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f"{where}: not readable as YAML: {type(error).__name__}: {why}") from error
