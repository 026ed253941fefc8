"""Whole runs by the clock: the record of ``uavlab bench learning``, laid out for a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from uavlab.lab.plots.charts import interval, learning_curves
from uavlab.storage.files import read_json

Row = Mapping[str, Any]
RECORD = Path(__file__).parents[2] / "figures" / "records" / "bench_learning.json"


def recorded(path: Path = RECORD) -> dict[str, Any]:
    """Read the record.

    Raises:
        FileError: It is missing or damaged.
    """
    return read_json(path)


def together(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Join the runs of each setting into a row as ``compare.learning`` gives it; seconds are means over runs."""
    found = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        runs = [row for row in rows if row["setting"] == setting]
        curve = [
            {
                "update": points[0][0],
                "seconds": sum(point[1] for point in points) / len(points),
                "each": {"completion": [point[2] for point in points]},
            }
            for points in zip(*(row["curve"] for row in runs), strict=True)
        ]
        first = sum(row["first_update_s"] for row in runs) / len(runs)
        found.append({"setting": setting, "first_update_s": first, "curve": curve})
    return found


def by_the_clock(rows: Sequence[Row], goal: float, *, warm: bool = False) -> go.Figure:
    """Draw completion over seconds of training, titled with the seconds until it first was ``goal``."""
    said = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        reached = [row["to_goal_warm_s" if warm else "to_goal_s"] for row in rows if row["setting"] == setting]
        if None in reached:
            said.append(f"{setting} not in every run")
        else:
            mean, low, high = interval(reached)
            said.append(f"{setting} {mean:.0f} s ({low:.0f} to {high:.0f})")
    return learning_curves(
        together(rows), "completion", "seconds", warm=warm, title=f"Completion {goal} after: {', '.join(said)}"
    )
