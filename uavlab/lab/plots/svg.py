"""A line chart as SVG text, for pictures that change many times a minute while a cell runs.

JupyterLab replaces such a picture in place. It ignores a plotly figure that is changed in place, and a figure as a
widget does not fill the page.
"""

import math
from collections.abc import Mapping, Sequence

from uavlab.core.text import markup
from uavlab.lab.plots.style import COLORS, GRID

WIDTH, NARROW, HEIGHT = 900, 480, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 34, 44
DASHES = ("", "7 5", "2 4", "9 4 2 4")
STYLE = """<style>
.uavlab-chart { container-type: inline-size }
.uavlab-chart .narrow { display: none }
@container (max-width: 640px) { .uavlab-chart .narrow { display: block } .uavlab-chart .wide { display: none } }
</style>"""
INK = "fill: var(--jp-ui-font-color1, currentColor); font: 13px var(--jp-ui-font-family, sans-serif)"
Points = Sequence[tuple[float, float]]


def line_chart(
    curves: Mapping[str, Points],
    x_axis: str,
    y_axis: str,
    x_end: float,
    y_range: tuple[float, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
    dots: bool = True,
) -> str:
    """Draw curves through points (x, y) from 0 to ``x_end``; without ``y_range``, the axis has room for all points.

    Each of ``marks`` is a vertical line at x, with a short text on it; ``dots`` are drawn at the points. A narrow page
    shows a drawing of its own, whose text is as large.
    """
    x_end = max([x_end, 1e-9, *(x for points in curves.values() for x, _ in points)])
    ends = y_range or _bounds([y for points in curves.values() for _, y in points if math.isfinite(y)])
    label = markup(": ".join(filter(None, (f"{y_axis} over {x_axis}", ", ".join(curves)))))
    wide, narrow = (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{label}' class='{kind}' "
        f"viewBox='0 0 {width} {HEIGHT}' style='width: 100%; max-height: 420px'>"
        f"{_content(curves, (x_axis, y_axis), (x_end, *ends), marks, dots, width)}</svg>"
        for kind, width in (("wide", WIDTH), ("narrow", NARROW))
    )
    return f"<div class='uavlab-chart'>{STYLE}{wide}{narrow}</div>"


def _content(
    curves: Mapping[str, Points],
    axes: tuple[str, str],
    ends: tuple[float, float, float],
    marks: Sequence[tuple[float, str]],
    dots: bool,
    width: int,
) -> str:
    """Return what is in a drawing of this width; ``ends`` are those of x, and the low and high one of y."""
    (x_axis, y_axis), (x_end, low, high) = axes, ends
    names = [name for name in curves if name]
    rows = 0 if LEFT + 250 + 220 * len(names) <= width else len(names)  # of names under that of the axis
    top = TOP + 16 * rows

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / x_end, (y - low) / (high - low)
        return LEFT + across * (width - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - top - BOTTOM)

    parts = [_text(LEFT, HEIGHT - 8, x_axis), _text(4, 16, y_axis)]
    for y in ticks(low, high):
        height = place(0, y)[1]
        parts += [_line(LEFT, height, width - RIGHT, height), _text(LEFT - 6, height + 4, f"{y:g}", "end")]
    for x in ticks(0, x_end, width // 150):
        parts.append(_text(place(x, low)[0], HEIGHT - BOTTOM + 18, f"{x:,g}", "middle"))
    for x, text in marks:
        across = place(x, low)[0]
        parts += [_line(across, top, across, HEIGHT - BOTTOM, "5 3"), _text(across + 3, top + 11, text)]
    for number, (name, points) in enumerate(curves.items()):
        color, places = COLORS[number % len(COLORS)], [place(x, y) for x, y in points if math.isfinite(y)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        stroke = f"fill='none' stroke='{color}' stroke-width='2.5' stroke-dasharray='{DASHES[number % len(DASHES)]}'"
        parts.append(f"<polyline points='{path}' {stroke}/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{color}'/>" for x, y in places if dots]
        if name:
            left, line = (LEFT + 34, 32 + 16 * number) if rows else (LEFT + 250 + 220 * number, 16)
            parts += [f"<path d='M{left - 34} {line - 4}h28' {stroke}/>", _text(left, line, name)]
    return "".join(parts)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` + 1 round numbers from ``low`` to ``high``, evenly spaced."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis with room for all values."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' style='{INK}'>{markup(text)}</text>"


def _line(x0: float, y0: float, x1: float, y1: float, dash: str = "") -> str:
    stroke = f"stroke='currentColor' stroke-dasharray='{dash}' opacity='.6'" if dash else f"stroke='{GRID}'"
    return f"<line x1='{x0:.1f}' y1='{y0:.1f}' x2='{x1:.1f}' y2='{y1:.1f}' {stroke}/>"
