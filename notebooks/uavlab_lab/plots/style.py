"""The drawing style of all figures: template, colours, pens, blank figures, curves, whiskers, bands.

Figures are transparent, because a saved figure does not know the theme that it is shown in. Every colour has a contrast
of at least 3 on white and on the dark of JupyterLab, #111; that of words has 4.3 on both, and no colour has more.
"""

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from uavlab.core.text import one_line
from uavlab_lab.labels import label_of

COLORS = ("#3a7bd5", "#d8701a", "#2b9a57", "#d1435b", "#8a67cf", "#ad8200", "#2092a4", "#808080", "#c9649c", "#76882a")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")
TEXT, DARK, REST = "#747a82", "#747a82", "rgba(128, 128, 128, 0.35)"  # words; whiskers and guides; what is left over
BUTTON, BUTTON_TEXT = "#b4bbc6", "#1b1f24"  # buttons are light on every page; plotly draws a pressed one almost white
WIDE, LONG, SIDE = 70, 90, 40  # characters of a line of a title, a caption and an axis, on a page 700 px wide
GRID, CLEAR = "rgba(128, 128, 128, 0.22)", "rgba(0, 0, 0, 0)"
CLAIM, CLAIM_EDGE = "rgba(184, 134, 11, 0.22)", "#ad8200"

BREAK = "<br>"
REMOVED = ["select", "lasso", "zoomin", "zoomout", "autoscale", "editInChartStudio", "sendDataToCloud"]
AXIS = {
    "title": {"font": {"size": 13}},
    "gridcolor": GRID,
    "linecolor": GRID,
    "zerolinecolor": GRID,
    "automargin": True,
    "ticklabelstandoff": 4,  # px; zeros of both axes would touch at the origin
    "exponentformat": "none",  # never SI prefixes, which read as units
    "separatethousands": True,
    "minorloglabels": "none",
}
TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "colorway": COLORS,
        "font": {"color": TEXT, "size": 13},
        "title": {
            "font": {"size": 15},
            "subtitle": {"font": {"size": 12, "color": TEXT}},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14, "l": 10},
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
        "margin": {"l": 60, "r": 60, "b": 60},
        "hoverlabel": {"font": {"size": 13}},
        "modebar": {"bgcolor": CLEAR, "color": TEXT, "activecolor": COLORS[0], "orientation": "v", "remove": REMOVED},
        "xaxis": AXIS,
        "yaxis": AXIS,
    }
)


def blank(title: str, x: str = "", y: str = "", height: int = 420, caption: str = "") -> go.Figure:
    """Return an empty figure with a caption under its title; ``x`` and ``y`` are the axes' titles, with units."""
    heading, note = in_lines(title, WIDE), in_lines(caption, LONG)
    rows, notes = 1 + heading.count(BREAK), 1 + note.count(BREAK) if note else 0
    pad = {"t": 14 * rows, "l": 10}  # plotly sets further lines above the first
    words = {"text": heading, "pad": pad} | ({"subtitle": {"text": note}} if note else {})
    top = 24 + 20 * rows + 16 * notes + (8 if notes else 0)
    figure = go.Figure()
    figure.update_layout(template=TEMPLATE, title=words, height=height + top - 44, margin={"t": top})
    figure.update_xaxes(title=in_lines(x, SIDE))
    figure.update_yaxes(title=in_lines(y, SIDE))
    return figure


def panels(
    style: go.Figure, rows: int, columns: int, titles: Sequence[str], room: int = 24, **options: Any
) -> go.Figure:
    """Return a figure of several plots in the style of a ``blank`` one, with room for titles over the plots (px)."""
    look = style.layout
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=titles, **options)
    return figure.update_layout(
        template=look.template, title=look.title, height=look.height, margin={"t": look.margin.t + room}
    )


def plain(text: Any) -> str:
    """Return text that a figure shows as it is; plotly takes some for markup, for a formula or for a value's place."""
    escaped = html.escape(one_line(str(text)), quote=False)
    return escaped.replace("$", "&#36;").replace("%{", "&#37;{")


def in_lines(text: Any, most: int) -> str:
    """Return text as ``plain`` does, in lines of at most ``most`` characters."""
    return BREAK.join(map(plain, textwrap.wrap(str(text), most)))


def words(name: Any) -> str:
    """Return what a figure calls a raw name: its label, as ``plain`` text."""
    return plain(label_of(str(name)))


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


def add_curve(
    figure: go.Figure, number: int, name: str, x: Sequence[float], band: Iterable[Iterable[float]], **place: Any
) -> None:
    """Add the line of a ``band`` (lower ends, means, upper ends) and its intervals as a pale area of its colour.

    ``place`` are properties of both traces, such as the axes of a panel.
    """
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
        **place,
    )
    figure.add_scatter(x=[*x], y=short(mean), name=name, mode="lines+markers", **pen(number), **place)


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
    """Add a vertical band from ``low`` to ``high``, which the legend calls the claimed range."""
    edge = {"color": CLAIM_EDGE, "width": 1}
    figure.add_vrect(x0=low, x1=high, fillcolor=CLAIM, line=edge, layer="below", name="claimed", showlegend=True)


def short(numbers: Iterable[float]) -> list[float]:
    """Round to six digits, since a saved notebook holds thousands of numbers."""
    return [float(f"{number:.6g}") for number in numbers]


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis for positive values, labelled at 1, 2 and 5, or at powers of ten."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    steps = (1,) if high - low > 2.5 else (1, 2, 5)
    places = [step * 10.0**power for power in powers for step in steps]
    texts = [f"{place:,g}" if 1e-3 <= place < 1e6 else _power(place) for place in places]
    return {"type": "log", "tickvals": places, "ticktext": texts}


def _power(place: float) -> str:
    power = math.floor(math.log10(place) + 1e-9)
    step = round(place / 10.0**power)
    return f"10<sup>{power}</sup>" if step == 1 else f"{step}·10<sup>{power}</sup>"
