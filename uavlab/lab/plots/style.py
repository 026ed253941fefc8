"""The drawing style of all figures: colours, pens, blank figures, curves, whiskers, bands."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

COLORS = ("#1b4f9c", "#e07b39", "#2e8b57", "#8b1e3f", "#7a5ea8", "#b8860b", "#4a9fb5", "#777777", "#d98cb3", "#5b6b2f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")
DARK, REST = "#444444", "#d5d5d5"  # whiskers and guides; what is left over
CLAIM, CLAIM_EDGE = "rgba(184, 134, 11, 0.22)", "#b8860b"
WIDE = 88  # characters of a title's line


def blank(title: str, x: str = "", y: str = "", height: int = 420) -> go.Figure:
    """Return an empty figure; ``x`` and ``y`` are the axes' titles, with units."""
    rows = textwrap.wrap(title, WIDE) or [""]
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        title={"text": "<br>".join(rows), "font": {"size": 16}, "y": 1, "yanchor": "top", "pad": {"t": 18}},
        height=height + 22 * len(rows),
        margin={"l": 80, "r": 30, "t": 56 + 22 * len(rows), "b": 60},
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
    )
    figure.update_xaxes(title=x, automargin=True)
    figure.update_yaxes(title=y, automargin=True)
    return figure


def color(number: int) -> str:
    """Return the colour of the line or bar of this number."""
    return COLORS[number % len(COLORS)]


def pen(number: int) -> dict[str, Any]:
    """Return line and marker of a number; lines differ in colour, dash and symbol."""
    return {
        "line": {"color": color(number), "width": 2, "dash": DASHES[number % len(DASHES)]},
        "marker": {"color": color(number), "size": 7, "symbol": SYMBOLS[number % len(SYMBOLS)]},
    }


def pale(number: int) -> str:
    """Return the colour of this number, translucent for areas."""
    red, green, blue = (int(color(number)[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"


def add_curve(figure: go.Figure, number: int, name: str, x: Sequence[float], band: Iterable[Iterable[float]]) -> None:
    """Add the line of a ``band`` (lower ends, means, upper ends) and its intervals as a pale area of its colour."""
    low, mean, high = band
    figure.add_scatter(
        x=[*x, *reversed(x)],
        y=short([*high, *reversed([*low])]),
        mode="lines",
        fill="toself",
        fillcolor=pale(number),
        line={"width": 0},
        showlegend=False,
        hoverinfo="skip",
    )
    figure.add_scatter(x=[*x], y=short(mean), name=name, mode="lines+markers", **pen(number))


def whiskers(
    rows: Sequence[Mapping[str, Any]], value: str, ends: tuple[str, str] | None, color: str = DARK
) -> dict[str, Any] | None:
    """Return the error bars of ``rows``; None where any row lacks an interval."""
    if ends is None or any(row.get(end) is None for row in rows for end in ends):
        return None
    low, high = ends
    down, up = [row[value] - row[low] for row in rows], [row[high] - row[value] for row in rows]
    return {"type": "data", "symmetric": False, "array": short(up), "arrayminus": short(down), "color": color}


def add_claim(figure: go.Figure, low: float, high: float) -> None:
    """Add a vertical band from ``low`` to ``high``, labelled as the claimed range."""
    label = {"text": "claimed", "x": (low + high) / 2, "xanchor": "center", "y": 1, "yanchor": "bottom"}
    edge = {"color": CLAIM_EDGE, "width": 1}
    figure.add_vrect(x0=low, x1=high, fillcolor=CLAIM, line=edge, layer="below", annotation=label)


def short(numbers: Iterable[float]) -> list[float]:
    """Round to six digits, since a saved notebook holds thousands of numbers."""
    return [float(f"{number:.6g}") for number in numbers]
