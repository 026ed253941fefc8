"""The learning record as small multiples: a panel for each environment, a line with its interval for each learner."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from uavlab_lab.labels import label_of, unit_of
from uavlab_lab.plots.style import BREAK, DARK, add_curve, blank, in_lines, panels, short, words

Row = Mapping[str, Any]

COLUMNS, PANEL, BETWEEN = 2, 190, 84  # panels beside each other; px of a panel's height and of the gap below it
BELOW = 96  # px for the last axis and the legend
LINE, LETTERS = 54, 11  # characters and px of a line over a panel
MARKER = 4  # px
LEVELS = {"random": ("random actions", "dot"), "plan": ("best plan", "dash")}


def learning_record(rows: Sequence[Row], *, title: str = "", caption: str = "") -> go.Figure:
    """Draw the validation scores of pairs over minutes of training, with levels of random actions and of the best plan.

    ``rows`` are those of ``uavlab bench learners``. A learner has one colour in all panels. Vertical axes have room for
    every seed; an interval of few seeds may leave them.
    """
    environments = list(dict.fromkeys(row["environment"] for row in rows))
    learners = list(dict.fromkeys(row["learner"] for row in rows))
    down, across = math.ceil(len(environments) / COLUMNS), min(COLUMNS, len(environments))
    heads = [_head(next(row for row in rows if row["environment"] == name)) for name in environments]
    inner = down * PANEL + (down - 1) * BETWEEN
    style = blank(title, caption=caption)
    top = style.layout.margin.t + 36
    style.update_layout(height=top + inner + BELOW)
    figure = panels(
        style,
        down,
        across,
        heads,
        room=36,
        horizontal_spacing=0.12,
        vertical_spacing=BETWEEN / inner if down > 1 else 0,
        specs=[[{} if at * across + n < len(environments) else None for n in range(across)] for at in range(down)],
    )
    figure.update_layout(margin={"b": BELOW, "r": 20})
    figure.update_annotations(font_size=LETTERS, yanchor="bottom", xanchor="left", align="left")
    seen: set[str] = set()
    for number, name in enumerate(environments):
        some = [row for row in rows if row["environment"] == name]
        place = {"xaxis": f"x{number + 1}", "yaxis": f"y{number + 1}"}
        for row in some:
            _add_learner(figure, learners.index(row["learner"]), row, place, seen)
        _add_levels(figure, some, place, seen)
        at = {"row": 1 + number // across, "col": 1 + number % across}
        last = number + across >= len(environments)
        figure.layout.annotations[number].update(x=figure.layout[f"xaxis{number + 1}"].domain[0])
        figure.update_xaxes(title="minutes of training" if last else "", rangemode="tozero", **at)
        figure.update_yaxes(title="" if number % across else "validation score", range=_room(some), **at)
    return figure


def score_text(weights: Mapping[str, float]) -> str:
    """Return a score as text: ``3 completion + formation - 0.0005 flight time``, with the unit of a figure alone."""
    unit = f" ({unit_of(name)})" if len(weights) == 1 and (name := next(iter(weights))) and unit_of(name) else ""
    text = ""
    for name, weight in weights.items():
        sign, size = "-" if weight < 0 else "+", "" if abs(weight) == 1 else f"{abs(weight):g} "
        text += (f" {sign} " if text else sign.strip("+")) + size + label_of(name)
    return text + unit


def _head(row: Row) -> str:
    """Return what stands over a panel: environment, score, and the name of the plan."""
    plan = f", plan: {words(row['plan'])}" if row["plan"] else ""
    return f"<b>{words(row['environment'])}</b>{plan}{BREAK}{in_lines(score_text(row['score']), LINE)}"


def _add_learner(figure: go.Figure, number: int, row: Row, place: Mapping[str, str], seen: set[str]) -> None:
    """Add the line of a learner; the legend names it once."""
    curve, name = row["validation"], row["learner"]
    if curve:
        band = [[point[key] for point in curve] for key in ("low", "mean", "high")]
        at = short(point["minutes"] for point in curve)
        add_curve(figure, number, words(name), at, band, legendgroup=name, **place)
        figure.data[-1].update(showlegend=name not in seen, marker_size=MARKER)
        seen.add(name)


def _add_levels(figure: go.Figure, rows: Sequence[Row], place: Mapping[str, str], seen: set[str]) -> None:
    """Add dashed lines at the scores of random actions and of the best plan."""
    end = max((point["minutes"] for row in rows for point in row["validation"]), default=1.0)
    for key, level in _levels(rows[0]).items():
        name, dash = LEVELS[key]
        line = {"color": DARK, "width": 1.5, "dash": dash}
        shown = {"name": name, "legendgroup": name, "showlegend": name not in seen, "legendrank": 2000}
        figure.add_scatter(x=[0, end], y=short([level, level]), mode="lines", line=line, **shown, **place)
        seen.add(name)


def _levels(row: Row) -> dict[str, float]:
    plan = {"plan": row["plans"][row["plan"]]["mean"]} if row["plan"] else {}
    return {"random": row["random"]["mean"], **plan}


def _room(rows: Sequence[Row]) -> list[float]:
    """Return a range for every seed at every time, and for the levels."""
    values = [value for row in rows for point in row["validation"] for value in point["each"]]
    values += _levels(rows[0]).values()
    room = 0.06 * (max(values) - min(values) or 1)
    return short((min(values) - room, max(values) + room))
