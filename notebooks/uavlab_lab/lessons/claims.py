"""Rows of the claims ledger, drawn as claimed ranges with measured points."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import Claim
from uavlab_lab.plots.charts import Row, group_rows, list_downwards
from uavlab_lab.plots.style import CLAIM, CLAIM_EDGE, DARK, blank, color, log_axis, whiskers

ALL = "all"  # systems
POINTS = {  # colour and symbol of a verdict
    "holds": (color(2), "circle"),
    "exceeds": (color(0), "triangle-right"),
    "partly": (color(5), "diamond"),
    "does not hold": (color(3), "x"),
    "refuted by arithmetic": (color(3), "cross"),
}
OTHER = (color(7), "square")
UNITS = {"ratio": ("times (logarithmic)", 1.0), "fraction": ("share (%)", 100.0)}
"""The units that can be drawn, each with the title of its axis and a factor."""


def claim_rows(ledger: Sequence[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Join claims with a record (``report.rows``), and add ``system``, ``claimed_text`` and ``measured_text``."""
    rows = []
    for claim, row in zip(ledger, report.rows(ledger, record), strict=True):
        _, claimed, _, measured, _ = report.texts(row)
        rows.append({**row, "system": claim.system, "claimed_text": claimed, "measured_text": measured})
    return rows


def select_rows(rows: Sequence[Row], system: str = ALL) -> list[Row]:
    """Return the rows of a system."""
    return [row for row in rows if system in (ALL, row["system"])]


def ranges(rows: Sequence[Row], unit: str, title: str = "", caption: str = "") -> go.Figure:
    """Draw each claimed range in a ``unit`` of ``UNITS`` as a bar, and its measurement as a point.

    ``rows`` are those of ``claim_rows``; those in other units, or without a measurement, are left out.
    """
    axis, factor = UNITS[unit]
    rows = [row for row in rows if row["unit"] == unit and row["measured"] is not None]
    figure = blank(title, axis, height=170 + 24 * max(len(rows), 2), caption=caption)
    lows = [row["claimed_low"] for row in rows]
    highs = [_upper_end(row) for row in rows]
    figure.add_bar(
        y=[row["claim"] for row in rows],
        base=[factor * low for low in lows],
        x=[factor * (high - low) for low, high in zip(lows, highs, strict=True)],
        orientation="h",
        name="claimed",
        marker={"color": CLAIM, "line": {"color": CLAIM_EDGE, "width": 1.5}},
        hovertext=[row["claimed_text"] for row in rows],
        hoverinfo="y+text",
    )
    for _, verdict, some in group_rows(rows, "verdict"):
        tint, symbol = POINTS.get(verdict, OTHER)
        figure.add_scatter(
            y=[row["claim"] for row in some],
            x=[factor * row["measured"] for row in some],
            error_x=whiskers([_scale(row, factor) for row in some], "measured", ("low", "high"), tint),
            name=verdict,
            mode="markers",
            marker={"color": tint, "symbol": symbol, "size": 10},
            hovertext=[row["measured_text"] for row in some],
            hoverinfo="y+text",
        )
    list_downwards(figure, [row["claim"] for row in rows])
    if unit == "ratio":
        figure.update_xaxes(log_axis([*lows, *highs, *(row["measured"] for row in rows)]))
        figure.add_vline(x=1, line={"color": DARK, "width": 1, "dash": "dot"})
    else:
        figure.update_xaxes(rangemode="tozero")
    return figure


def _scale(row: Row, factor: float) -> dict[str, float]:
    """Return a measurement and the ends of its interval, which are the measurement itself without an interval."""
    return {key: factor * (row["measured"] if row[key] is None else row[key]) for key in ("measured", "low", "high")}


def _upper_end(row: Row) -> float:
    """Return the upper end of a claim; an open one reaches at least to the measurement."""
    low, high = row["claimed_low"], row["claimed_high"]
    return max(low, row["measured"]) if high is None else high
