"""Presets: named settings to start from, read from ``presets.toml`` without importing torch.

Every environment is also a preset with all defaults.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uavlab.core.registry import ENVIRONMENTS, Registry

FILE = Path(__file__).with_name("presets.toml")


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
