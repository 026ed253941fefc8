"""The claims ledger as a person asks it: some of its rows, their claimed ranges beside measured points, in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.bench.claims import report
from uavlab.bench.claims.ledger import Claim
from uavlab.lab.plots.style import CLAIM, CLAIM_EDGE, DARK, blank, short

Row = Mapping[str, Any]

ALL = "all"
POINTS = {  # colour and symbol of a verdict
    "holds": ("#2e8b57", "circle"),
    "partly": ("#b8860b", "diamond"),
    "does not hold": ("#8b1e3f", "x"),
}
OTHER = ("#777777", "square")
UNITS = {"ratio": ("times (logarithmic)", 1.0), "fraction": ("share (%)", 100.0)}
"""The units that are drawn, with the axis' title and what a number is multiplied by; all others are in the table."""


def laid(ledger: Sequence[Claim], record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Lay claims beside what a record has of them, as ``claims.rows`` does, with the claims' own words added.

    Returns:
        Its rows with ``system``, ``technique``, ``setting`` and ``metric``, the ends ``low`` and ``high`` of the 95 %
        interval (None without one), and ``claimed_text`` and ``measured_text`` for people.
    """
    words = ("system", "technique", "setting", "metric")
    entries = record["measured"] if record else {}
    found = []
    for claim, row in zip(ledger, report.rows(ledger, record), strict=True):
        _, said, measured, _ = report.texts(row)
        own = {word: getattr(claim, word) for word in words}
        own |= {end: entries.get(claim.claim, {}).get(end) for end in ("low", "high")}
        found.append({**row, **own, "claimed_text": said, "measured_text": measured})
    return found


def chosen(rows: Sequence[Row], system: str = ALL, verdict: str = ALL) -> list[Row]:
    """Keep the rows of a system and with a verdict."""
    return [row for row in rows if system in (ALL, row["system"]) and verdict in (ALL, row["verdict"])]


def counted(rows: Sequence[Row]) -> str:
    """Say how many rows have each verdict, the most frequent first: ``3 claims: 2 holds, 1 partly``."""
    many = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{count} {verdict}" for verdict, count in many.most_common())
    return f"{len(rows)} claims: {said}" if rows else "no such claims"


def beside(rows: Sequence[Row], unit: str, title: str = "") -> go.Figure:
    """Draw each claimed range as a bar and what was measured as a point, coloured and shaped by the verdict.

    Args:
        rows: As ``laid`` gives them; those in other units, or without a measured number, are left out.
        unit: One of ``UNITS``.
        title: The finding.
    """
    axis, factor = UNITS[unit]
    rows = [row for row in rows if row["unit"] == unit and row["measured"] is not None]
    figure = blank(title, axis, height=170 + 24 * max(len(rows), 2))
    lows = [row["claimed_low"] for row in rows]
    highs = [_open_end(row) for row in rows]
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
    for verdict in dict.fromkeys(row["verdict"] for row in rows):
        some = [row for row in rows if row["verdict"] == verdict]
        tint, symbol = POINTS.get(verdict, OTHER)
        figure.add_scatter(
            y=[row["claim"] for row in some],
            x=[factor * row["measured"] for row in some],
            error_x=_intervals(some, factor, tint),
            name=verdict,
            mode="markers",
            marker={"color": tint, "symbol": symbol, "size": 10},
            hovertext=[row["measured_text"] for row in some],
            hoverinfo="y+text",
        )
    names = [row["claim"] for row in rows]
    figure.update_yaxes(autorange="reversed", type="category", categoryorder="array", categoryarray=names)
    if unit == "ratio":
        figure.update_xaxes(type="log", dtick="D2")
        figure.add_vline(x=1, line={"color": DARK, "width": 1, "dash": "dot"})
    else:
        figure.update_xaxes(rangemode="tozero")
    return figure


def _intervals(rows: Sequence[Row], factor: float, tint: str) -> dict[str, Any]:
    """Draw the intervals of those that have one."""
    ends = [(row["low"], row["measured"], row["high"]) for row in rows]
    up = [0.0 if high is None else factor * (high - value) for _, value, high in ends]
    down = [0.0 if low is None else factor * (value - low) for low, value, _ in ends]
    return {"type": "data", "symmetric": False, "array": short(up), "arrayminus": short(down), "color": tint}


def _open_end(row: Row) -> float:
    """Give the upper end of a claim; one without draws up to what was measured, at least."""
    low, high = row["claimed_low"], row["claimed_high"]
    return max(low, row["measured"]) if high is None else high
