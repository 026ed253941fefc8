"""The table of all optimizations, as the command line, the README and the notebooks show it."""

from typing import Any

from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.runtime.toggles import TOGGLES, Toggles, resolve, toggle_presets, turned


def rows(device: Device = "auto") -> list[dict[str, Any]]:
    """Describe every toggle.

    Returns:
        ``name, values, default, seam, equality, claim, cost``, ``sets`` (its value in every named set) and ``unusable``
        (by value, why it cannot be used on this device).
    """
    target = build.runtime(RunConfig(device=device)).device
    sets = {name: Toggles(**values) for name, values in toggle_presets(target).items()}
    found = []
    for toggle in TOGGLES:
        tried = {value: _reason(toggle.name, value, target) for value in toggle.choices}
        found.append(
            {
                "name": toggle.name,
                "values": toggle.values,
                "default": getattr(Toggles(), toggle.name),
                "seam": toggle.seam,
                "equality": toggle.equality,
                "claim": toggle.claim,
                "cost": toggle.cost,
                "sets": {name: getattr(values, toggle.name) for name, values in sets.items()},
                "unusable": {value: reason for value, reason in tried.items() if reason},
            }
        )
    return found


def table(device: Device = "auto") -> str:
    """Lay them out for reading."""
    lines = [f"{'toggle':16} {'values (first: the plain reference)':52} {'acts at':14} {'equality':10} said to bring"]
    for row in rows(device):
        lines.append(f"{row['name']:16} {row['values']:52} {row['seam']:14} {row['equality']:10} {row['claim']}")
        lines += [f"{'':16} not here: {value}: {reason}" for value, reason in row["unusable"].items()]
    named = [f"  {name}: {_changes(name, device)}" for name in toggle_presets(build.runtime(RunConfig()).device)]
    return "\n".join([*lines, "sets (`--toggles NAME`):", *named])


def _changes(name: str, device: Device) -> str:
    target = build.runtime(RunConfig(device=device)).device
    return " ".join(f"{k}={v}" for k, v in toggle_presets(target)[name].items()) or "every toggle at its first value"


def _reason(name: str, value: Any, device: Any) -> str:
    return resolve(turned(Toggles(update="batched"), {name: value}), device)[1].get(name, "")
