"""Every setting of a preset, read from the classes that declare them: its kind and range, its value, its meaning."""

from typing import Any

from uavlab.experiment.config import configure, parts
from uavlab.experiment.settings import format_kind, settings_of


def describe(preset: str) -> list[dict[str, Any]]:
    """Return ``name``, ``value``, ``kind`` and ``meaning`` of each setting, in the order of their classes.

    The environment's have twins ``eval_<name>`` that change them for evaluation alone; those are left out.

    Raises:
        ConfigError: An unknown preset.
    """
    config = configure(preset)
    settings = [setting for part in parts(config.task.settings) for setting in settings_of(part)]
    return [
        {"name": each.name, "value": config.values[each.name], "kind": format_kind(each.kind), "meaning": each.about}
        for each in settings
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Format settings for people, one in a line."""
    lines = [f"{row['name']:20} {row['value']!s:10} {row['kind']:34} {row['meaning']}" for row in rows]
    last = "With eval_ before it, a setting of the environment changes for evaluation alone: eval_horizon."
    return "\n".join([*lines, last])
