"""Parts of the tour: widgets for the settings of its run, and the published scores of the leader-follower test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from uavlab.core.installation import ROOT
from uavlab_lab.plots import charts
from uavlab_lab.widgets import Panel

TEAM = ROOT / "figures" / "tour"
"""The exported policy of the team that ``make tour`` trains."""

PX_PER_UNIT = 30 * 0.1  # the published path is a sum of speed / 30 over steps of 0.1 s

MASAC = {
    "completion": 0.848,
    "formation_strict": 0.291,
    "flight_time": 255.9,
    "path": 130.3 * PX_PER_UNIT,
    "energy": 207.5,
    "collision": 0.15,
    "timeout": 0.002,
}
"""The shipped weights of Fang, Yang and Pan 2024, measured in their program: 5 x 100 episodes, sampled actions.

Their flight time is the index of the last step, and their formation is divided by it; ours count every step, one more
in an episode of some 250.
"""

PAPER = {"formation_strict": 0.3233, "flight_time": 264.9, "path": 151.2 * PX_PER_UNIT, "energy": 293.5}
"""The figures of their paper, doi 10.1360/SSI-2024-0050: 100 episodes; without completion."""

MADDPG = {"formation_strict": 0.0068, "flight_time": 309.2, "path": 186.3 * PX_PER_UNIT, "energy": 305.9}
"""Their baseline, from the same figures."""

COLUMNS = {"published weights, measured": MASAC, "published MASAC": PAPER, "published MADDPG": MADDPG}

ROWS = (
    ("completion", "completion", ".2f"),
    ("formation_strict", "strict formation", ".2f"),
    ("formation_mean", "mean formation", ".2f"),
    ("flight_time", "time (0.1 s steps)", ".0f"),
    ("path", "path (px)", ".0f"),
    ("energy", "energy (Σ |action|)", ".0f"),
    ("collision", "collisions", ".2f"),
    ("timeout", "time-outs", ".2f"),
)


class Choices(Panel):
    """Widgets for some settings of a run; in a headless run they hold the notebook's parameters."""

    def __init__(self, followers: int, obstacles: int, seed: int, updates: int) -> None:
        """Show the parameters."""
        narrow = widgets.Layout(width="230px")
        self.followers = widgets.BoundedIntText(followers, min=1, max=16, description="followers", layout=narrow)
        self.obstacles = widgets.BoundedIntText(obstacles, min=1, max=8, description="obstacles", layout=narrow)
        self.seed = widgets.BoundedIntText(seed, min=0, max=2**31, description="seed", layout=narrow)
        self.updates = widgets.BoundedIntText(updates, min=1, max=10**6, step=500, description="updates", layout=narrow)
        fields = [self.followers, self.obstacles, self.seed, self.updates]
        label = "followers, obstacles, seed and updates: change them, then run the next cell"
        super().__init__([widgets.HBox(fields)], label)

    def values(self) -> dict[str, Any]:
        """Return the chosen settings.

        The run trains with one follower and flies with any number, because followers share one network. Beyond the one
        published obstacle the agents see the offset to the two nearest.
        """
        obstacles = self.obstacles.value
        return {
            "eval_followers": self.followers.value,
            "obstacles": obstacles,
            "sight": 2 if obstacles > 1 else 0,
            "seed": self.seed.value,
            "updates": self.updates.value,
        }


def comparison(columns: Mapping[str, Mapping[str, Any]], metrics: Sequence[tuple[str, str, str]]) -> charts.Table:
    """Tabulate figures side by side: a column per policy, a row per metric (key, label, format).

    A figure is a number, or a mapping with ``mean``, ``low`` and ``high``.
    """

    def text(value: Any, shape: str) -> str:
        if isinstance(value, Mapping):
            return f"{value['mean']:{shape}}  [{value['low']:{shape}}, {value['high']:{shape}}]"
        return "not published" if value is None else f"{value:{shape}}"

    rows = [
        {"": label, **{name: text(figures.get(key), shape) for name, figures in columns.items()}}
        for key, label, shape in metrics
    ]
    return charts.table(rows, {name: name for name in ("", *columns)})


def free_folder(base: str) -> Path | None:
    """Return a folder that no run uses yet: ``base``, ``base-2`` and so on, relative to the repository's root.

    An empty ``base`` returns None, so that nothing is written.
    """
    if not base:
        return None
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "notebooks").is_dir()), here)
    number, folder = 1, root / base
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = root / f"{base}-{number}"
    return folder
