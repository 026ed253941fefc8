"""Figures from measured rows: speed-ups, stages, ceilings, learning, counts against theory, timelines, tables.

Every function takes rows (mappings of plain numbers) and returns a plain plotly figure of a few kilobytes, or a table.
A ``title`` states a finding in a few words: build it from the rows, for example with ``outcome`` and ``speedup``. A
``caption`` under it has the details. Titles of axes name the quantity and its unit.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab.core.statistics import student
from uavlab_lab.labels import label_of, unit_of
from uavlab_lab.plots.style import (
    CLEAR,
    DARK,
    REST,
    add_claim,
    add_curve,
    blank,
    color,
    in_lines,
    log_axis,
    pen,
    plain,
    short,
    whiskers,
    words,
)
from uavlab_lab.plots.tables import Table as Table
from uavlab_lab.plots.tables import table as table

Row = Mapping[str, Any]
Ends = tuple[str, str]

ENDS: Ends = ("low", "high")
NAME = 30  # characters of a line of a bar's name
OUTCOMES = {"faster": color(2), "not different": color(7), "slower": color(3)}


def outcome(row: Row, ends: Ends = ENDS) -> str:
    """Judge a speed-up by its 95 % interval: ``faster``, ``slower`` or ``not different``."""
    low, high = (row[end] for end in ends)
    return "faster" if low > 1 else "slower" if high < 1 else "not different"


def speedup(row: Row, value: str = "over_first") -> str:
    """Return a speed-up with its interval: ``2.10x (2.02 to 2.18)``."""
    return f"{row[value]:.2f}x ({row['low']:.2f} to {row['high']:.2f})"


def bars(
    rows: Sequence[Row],
    value: str = "over_first",
    *,
    label: str = "setting",
    ends: Ends | None = None,
    by: str | None = None,
    title: str = "",
    caption: str = "",
    axis: str = "times as fast as the first row",
    shape: str = ".2f",
    claim: tuple[float, float] | None = None,
    log: bool = False,
) -> go.Figure:
    """Draw a horizontal bar per row, the first on top, with its interval where every row has one.

    ``rows`` are as ``compare`` returns them, or any with these keys: ``value`` of the number (rows where it is None are
    left out), ``label`` of the bar's name, ``ends`` of its interval (by default ``low`` and ``high`` for
    ``over_first``, and none for all else), and ``by`` of a group with a colour of its own. ``shape`` is the format of
    the numbers beside the bars, and ``claim`` their claimed range, drawn as a band.

    Speed-ups (``over_...``) get a guide at 1; with intervals and without groups, they are coloured by ``outcome``.
    """
    rows = [row for row in rows if row.get(value) is not None]
    ends = ENDS if ends is None and value == "over_first" else ends
    ratio = value.startswith("over")
    names = list(dict.fromkeys(_name(row[label]) for row in rows))
    grouped = list(group_rows(rows, by))
    figure = blank(title, axis, height=150 + max(34, 22 * len(grouped)) * max(len(names), 2), caption=caption)
    for number, group, some in grouped:
        spread = whiskers(some, value, ends)
        judged = [outcome(row, ends) for row in some] if ratio and ends and spread and not by else None
        places = {"y": [_name(row[label]) for row in some], "orientation": "h", "offsetgroup": str(number)}
        figure.add_bar(
            x=short(row[value] for row in some),
            name=words(group) if isinstance(group, str) else f"{words(by)} {group}",
            showlegend=by is not None,
            marker_color=[OUTCOMES[each] for each in judged] if judged else color(number),
            error_x=spread,
            **places,
        )
        figure.add_scatter(  # the numbers, beyond the end of bar and interval
            x=short(row[ends[row[value] >= 0]] if ends and spread else row[value] for row in some),
            text=[f"{row[value]:{shape}}  " if row[value] < 0 else f"  {row[value]:{shape}}" for row in some],
            mode="text",
            textposition=["middle left" if row[value] < 0 else "middle right" for row in some],
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
            **places,
        )
        add_outcomes(figure, judged or ())
    list_downwards(figure, names)
    figure.update_layout(scattermode="group")
    figure.update_xaxes(log_axis(row[value] for row in rows) if log else _linear_axis(rows, (value, *(ends or ()))))
    if ratio:
        figure.add_vline(x=1, line={"color": DARK, "width": 1, "dash": "dot"})
    if claim:
        add_claim(figure, *claim)
    return figure


def _name(value: Any) -> str:
    """Return the name of a bar, in lines."""
    return in_lines(label_of(str(value)), NAME) or " "


def _linear_axis(rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
    """Return an axis from 0, with room for the numbers left of negative bars."""
    values = [row[key] for row in rows for key in keys if row.get(key) is not None]
    least, most = min(values, default=0.0), max(0.0, *values, 0.0)
    if least >= 0:
        return {"rangemode": "tozero"}
    room = 0.28 * (most - least)
    return {"range": short((least - room, most + room if most else 0.0))}


def add_outcomes(figure: go.Figure, judged: Collection[str]) -> None:
    """Explain the colours of the outcomes that occur, in the legend."""
    for name in (name for name in OUTCOMES if name in judged):
        marker = {"color": OUTCOMES[name], "symbol": "square", "size": 11}
        figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)


def lines(
    rows: Sequence[Row],
    x: str,
    y: str,
    *,
    by: str | None = None,
    ends: Ends | None = None,
    title: str = "",
    caption: str = "",
    x_axis: str = "",
    y_axis: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> go.Figure:
    """Draw a line per value of ``by`` through the rows, with intervals where all of its rows have them.

    ``rows`` have the keys ``x`` and ``y``, and perhaps ``by`` and ``ends`` (of the interval of ``y``); those whose
    ``y`` is None are left out.
    """
    rows = [row for row in rows if row.get(y) is not None]
    figure = blank(title, x_axis or label_of(x), y_axis or label_of(y), caption=caption)
    for number, group, some in group_rows(rows, by):
        figure.add_scatter(
            x=[row[x] for row in some],
            y=[row[y] for row in some],
            name="" if group is None else words(group),
            mode="lines+markers",
            showlegend=by is not None,
            error_y=whiskers(some, y, ends),
            **pen(number),
        )
    places = sorted({row[x] for row in rows})
    few = 2 < len(places) <= 12  # two are the ends of straight lines
    figure.update_xaxes(log_axis(places) if log_x else {}, tickvals=places if few else None)
    if log_x and few:
        figure.update_xaxes(ticktext=[f"{place:,g}" for place in places])
    figure.update_yaxes(log_axis(row[y] for row in rows) if log_y else {"rangemode": "tozero"})
    return figure


def stages(
    columns: Mapping[str, Sequence[Row]], value: str = "share", *, title: str = "", caption: str = "", axis: str = ""
) -> go.Figure:
    """Draw the stages of some programs, ``Monitor.read`` by program, as stacked bars.

    ``value`` is ``share`` (the rest up to 1 is drawn as ``other``), ``mean_ms`` or ``total_ms``.
    """
    names = list(dict.fromkeys(row["name"] for rows in columns.values() for row in rows))
    table = {column: {row["name"]: row[value] for row in rows} for column, rows in columns.items()}
    if shares := value == "share":
        names.append("other")
        table = {column: parts | {"other": max(0.0, 1 - sum(parts.values()))} for column, parts in table.items()}
    height = 130 + 60 * len(columns) + 20 * math.ceil(len(names) / 2)  # a narrow page has two names in a line
    figure = blank(title, axis or ("share of the time" if shares else value), height=height, caption=caption)
    for number, name in enumerate(names):
        sizes = [parts.get(name, 0.0) for parts in table.values()]
        figure.add_bar(
            x=short(sizes),
            y=[in_lines(label_of(column), 16) for column in table],
            name=words(name),
            orientation="h",
            marker_color=REST if name == "other" else color(number),
            text=[f"{size:.0%}" if shares and size >= 0.04 else "" for size in sizes],
            textposition="inside",
            hovertemplate=f"{plain(name)}: %{{x:.3g}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed")
    if shares:
        figure.update_xaxes(tickformat=".0%", range=[0, 1])
    return figure


def roofline(points: Sequence[Row], rate: float, bandwidth: float, *, title: str = "", caption: str = "") -> go.Figure:
    """Draw achieved FLOP/s over FLOPs per byte under the roof of this machine, both axes logarithmic.

    ``points`` have ``name, flops, bytes, ms`` of a call; ``rate`` (FLOP/s) is the ceiling of matrix products and
    ``bandwidth`` (bytes/s) that of memory.
    """
    figure = blank(title, "intensity (FLOPs per byte)", "achieved (GFLOP/s)", caption=caption)
    ridge = rate / bandwidth
    places = [point["flops"] / point["bytes"] for point in points]
    left, right = min([*places, ridge]) / 8, max([*places, ridge]) * 8
    roof = {place: min(rate, bandwidth * place) for place in (left, ridge, right, *places)}
    figure.add_scatter(
        x=short((left, ridge, right)),
        y=short(roof[place] / 1e9 for place in (left, ridge, right)),
        name=f"roof of this machine: {bandwidth / 1e9:.3g} GB/s, then {rate / 1e9:.3g} GFLOP/s",
        mode="lines",
        line={"color": DARK, "width": 3},
    )
    for number, (point, place) in enumerate(zip(points, places, strict=True)):
        achieved = 1e3 * point["flops"] / point["ms"]
        figure.add_scatter(
            x=short([place]),
            y=short([achieved / 1e9]),
            name=f"{plain(point['name'])}: {achieved / roof[place]:.0%} of the roof",
            mode="markers",
            marker={**pen(number)["marker"], "size": 14},
        )
    figure.update_xaxes(log_axis((left, right)))
    figure.update_yaxes(log_axis(height / 1e9 for height in roof.values()))
    return figure


def learning_curves(
    rows: Sequence[Row],
    metric: str = "completion",
    x: str = "update",
    *,
    warm: bool = False,
    title: str = "",
    caption: str = "",
) -> go.Figure:
    """Draw for every setting the mean of a score over runs, with Student's 95 % interval.

    ``rows`` are as ``compare.learning`` returns them, with scores ``metric`` in ``each``. ``x`` is ``update`` or
    ``seconds`` (of the process that trains all runs of a setting); ``warm`` counts these from the end of the first
    update, without building and compiling. The vertical axis has room for every run; a band of few runs may leave
    it.
    """
    across = {"update": "updates", "seconds": "seconds of training" + (", warm-up left out" if warm else "")}[x]
    scores = [at["each"][metric] for row in rows for at in row["curve"]]
    counts = {*map(len, scores)} or {0}
    most_runs = f"{'up to ' if len(counts) > 1 else ''}{max(counts)}"
    notes = [unit_of(metric), f"mean of {most_runs} runs" if max(counts) > 1 else ""]
    up = f"{label_of(metric)} ({', '.join(filter(None, notes))})" if any(notes) else label_of(metric)
    figure = blank(title, across, up, caption=caption)
    for number, row in enumerate(rows):
        less = row["first_update_s"] if warm and x == "seconds" else 0.0
        at = short(point[x] - less for point in row["curve"])
        bounds = [student(point["each"][metric]) for point in row["curve"]]
        mean, low, high = zip(*bounds, strict=True) if bounds else ((), (), ())
        add_curve(figure, number, words(row["setting"]), at, (low, mean, high))
    if scores:
        least, most = min(map(min, scores)), max(map(max, scores))
        room = 0.05 * (most - least or 1)
        figure.update_yaxes(range=short((least - room, most + room)))
    figure.update_xaxes(rangemode="tozero")
    return figure


def against_theory(
    x: Sequence[float],
    observed: Sequence[float],
    expected: Sequence[float],
    *,
    title: str = "",
    caption: str = "",
    x_axis: str = "",
) -> go.Figure:
    """Draw counts of draws as bars at ``x``, and expected ones as a line with the range of 95 % of Poisson counts."""
    figure = blank(title, x_axis, "draws", caption=caption)
    figure.add_bar(x=list(x), y=list(observed), name="observed", marker_color=color(0), opacity=0.75)
    spread = short(1.96 * math.sqrt(count) for count in expected)
    figure.add_scatter(
        x=list(x),
        y=short(expected),
        name="theory, with its 95 % range",
        mode="lines+markers",
        line={"color": color(1), "width": 2},
        error_y={"type": "data", "array": spread, "color": color(1)},
    )
    figure.update_layout(bargap=0.15)
    return figure


def timeline(spans: Sequence[Row], *, title: str = "", caption: str = "") -> go.Figure:
    """Draw ``spans`` (``lane, name, start, end`` in ms), one lane below the other; equal names share a colour."""
    lanes = list(dict.fromkeys(plain(span["lane"]) for span in spans))
    figure = blank(title, "time (ms)", height=130 + 60 * len(lanes), caption=caption)
    for number, name, some in group_rows(spans, "name"):
        figure.add_bar(
            base=short(span["start"] for span in some),
            x=short(span["end"] - span["start"] for span in some),
            y=[plain(span["lane"]) for span in some],
            orientation="h",
            name=words(name),
            marker={"color": color(number), "line": {"color": CLEAR, "width": 1}},
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    return list_downwards(figure, lanes)


def group_rows(rows: Sequence[Row], by: str | None) -> Iterator[tuple[int, Any, list[Row]]]:
    """Yield number, value and rows of each group with one value of ``by``; all rows are one group without it."""
    for number, group in enumerate(dict.fromkeys(row[by] for row in rows) if by else [None]):
        yield number, group, [row for row in rows if by is None or row[by] == group]


def list_downwards(figure: go.Figure, names: Sequence[str]) -> go.Figure:
    """List ``names`` along the vertical axis, the first on top."""
    return figure.update_yaxes(autorange="reversed", type="category", categoryorder="array", categoryarray=names)
