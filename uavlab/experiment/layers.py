"""Layers of settings from a command line or a YAML file, each value with its origin; imported without torch."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, yaml_lines, yaml_value
from uavlab.storage.files import read_regular

LARGEST_FILE = 50_000  # bytes of a settings file


class Layer(dict[str, Any]):
    """Settings with the origin of each value for error messages, such as ``mine.yaml:7`` or ``--seed``."""

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        super().__init__(values)
        self.origins = origins


def merge(layers: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of all layers, later ones over earlier ones, and a phrase on the origin of each, or ``""``."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values |= layer
        known = getattr(layer, "origins", {})
        origins |= {name: f" from {known[name]}" if name in known else "" for name in layer}
    return values, origins


def set_layer(texts: Iterable[str]) -> Layer:
    """Return the layer of ``key=value`` texts, the values of the option ``--set``.

    Raises:
        ConfigError: A text is not readable.
    """
    assigned = dict(map(parse_setting, texts))
    return Layer(assigned, dict.fromkeys(assigned, "--set"))


def read_yaml(path: Path) -> Layer:
    """Read settings from a YAML 1.2 file.

    Raises:
        ConfigError: The file is missing, too large, not YAML, or not a mapping of names to values.
    """
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not readable as UTF-8: {error.reason} at byte {error.start}.") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', error)}.") from error
    values = yaml_value(text, str(path), lines=True)
    if not isinstance(values, dict):
        got = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path}: expected lines `name: value`, got {got}.")
    if odd := [name for name in values if not isinstance(name, str)]:
        raise ConfigError(f"{path}: expected lines `name: value`, got the name {quote(odd[0])}.")
    return Layer(values, {name: f"{path}:{line}" for name, line in yaml_lines(text).items()})


def parse_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Split ``key=value``, and parse the value as YAML 1.2.

    Raises:
        ConfigError: The text has no ``=``, or its value is not YAML.
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"{option} {text!r}: expected key=value.")
    return key.strip(), yaml_value(value, f"{option} {quote(text)}")
