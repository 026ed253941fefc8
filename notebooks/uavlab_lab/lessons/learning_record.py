"""Whole runs by the clock: the record of ``uavlab bench learning`` as a figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.installation import ROOT
from uavlab_lab.plots.charts import learning_curves

Row = Mapping[str, Any]
RECORD = ROOT / "figures" / "records" / "bench_learning.json"


def join_runs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Join the runs of each setting into a row as ``compare.learning`` returns it; seconds are means over runs."""
    joined = []
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
        joined.append({"setting": setting, "first_update_s": first, "curve": curve})
    return joined


def curves_over_time(rows: Sequence[Row], goal: float, *, warm: bool = False) -> go.Figure:
    """Draw completion over seconds of training, titled with the mean, least and most seconds to ``goal``."""
    texts = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        reached = [row["to_goal_warm_s" if warm else "to_goal_s"] for row in rows if row["setting"] == setting]
        if None in reached:
            texts.append(f"{setting} not in every run")
        else:
            mean = sum(reached) / len(reached)
            texts.append(f"{setting} {mean:.0f} s ({min(reached):.0f} to {max(reached):.0f})")
    return learning_curves(
        join_runs(rows), "completion", "seconds", warm=warm, title=f"To completion {goal}: {', '.join(texts)}"
    )
