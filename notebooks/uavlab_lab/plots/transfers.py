"""Scores of policies by the size of the team, or by the stage of a curriculum, from records of ``uavlab transfer``."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from uavlab_lab.labels import label_of
from uavlab_lab.plots.charts import lines


def transfer_chart(
    tables: Mapping[str, Mapping[str, Any]], *, ratios: bool = False, title: str = "", caption: str = ""
) -> go.Figure:
    """Draw a line for each policy, and for each baseline of the first one.

    Args:
        tables: Records of ``uavlab transfer`` by the name of the policy, all of the same kind and metric.
        ratios: Draw ratios to the score at home, without baselines.
        title: Title.
        caption: Details under it.
    """
    first = next(iter(tables.values()))
    kind, label, value = first["kind"], label_of(first["metric"]), "ratio" if ratios else "score"
    rows = [
        {kind: row[kind], "policy": name, **row[value]}
        for name, table in tables.items()
        for row in table["rows"]
        if row[value]
    ]
    plans = [] if ratios else [*first["rows"][0]["plans"]]
    rows += [{kind: row[kind], "policy": plan, **row["plans"][plan]} for plan in plans for row in first["rows"]]
    figure = lines(
        rows, kind, "mean", by="policy", ends=("low", "high"), log_x=kind == "size", title=title, caption=caption
    )
    figure.update_xaxes(title="size of the team" if kind == "size" else kind)
    return figure.update_yaxes(title=f"ratio to home, {label}" if ratios else label)
