"""A line chart as SVG text, for pictures that change many times a minute while a cell runs.

JupyterLab replaces such a picture in place. It ignores a plotly figure that is changed in place, and a figure as a
widget does not fill the page.
"""

import math
from collections.abc import Mapping, Sequence

from uavlab.core.text import markup
from uavlab.lab.plots.style import COLORS, GRID

WIDTH, NARROW, HEIGHT = 900, 700, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 34, 44
DASHES = ("", "7 5", "2 4", "9 4 2 4")
INK = "fill: var(--jp-ui-font-color1, currentColor); font: 13px var(--jp-ui-font-family, sans-serif)"
Points = Sequence[tuple[float, float]]
Bands = Mapping[str, Sequence[tuple[float, float, float]]]


def line_chart(
    curves: Mapping[str, Points],
    x_axis: str,
    y_axis: str,
    x_end: float,
    y_range: tuple[float, float] | None = None,
    bands: Bands | None = None,
    named: bool = True,
) -> str:
    """Draw curves through points (x, y) from 0 to ``x_end``; without ``y_range``, the axis has room for all points.

    ``bands`` hold intervals (x, low, high) of curves by their names, which may leave the axis. The names stand above
    the plot if they are ``named``; else ``legend`` writes them, and words are larger on a narrow page.
    """
    width = WIDTH if named else NARROW
    low, high = y_range or bounds([y for points in curves.values() for _, y in points])
    x_end = max([x_end, 1e-9, *(x for points in curves.values() for x, _ in points)])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / x_end, (y - low) / (high - low)
        return LEFT + across * (width - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, HEIGHT - 8, x_axis), _text(4, 16, y_axis)]
    for y in ticks(low, high):
        height = place(0, y)[1]
        parts += [_line(LEFT, height, width - RIGHT, height), _text(LEFT - 6, height + 4, f"{y:g}", "end")]
    for x in ticks(0, x_end):
        parts.append(_text(place(x, low)[0], HEIGHT - BOTTOM + 18, f"{x:,g}", "middle"))
    for number, (name, points) in enumerate(curves.items()):
        color, places = COLORS[number % len(COLORS)], [place(x, y) for x, y in points if math.isfinite(y)]
        ends = [each for each in (bands or {}).get(name, ()) if all(map(math.isfinite, each))]
        edge = [(x, bottom) for x, bottom, _ in ends] + [(x, top) for x, _, top in reversed(ends)]
        area = _path([place(x, min(max(y, low), high)) for x, y in edge])
        parts += [f"<polygon points='{area}' fill='{color}' fill-opacity='0.18'/>"] if ends else []
        parts.append(f"<polyline points='{_path(places)}' {_stroke(number)}/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{color}'/>" for x, y in places]
        start = LEFT + 250 + 220 * number
        parts += [f"<path d='M{start - 34} 12h28' {_stroke(number)}/>", _text(start, 16, name)] if named else []
    label = markup(f"{y_axis} over {x_axis}: " + ", ".join(curves))
    size = f"viewBox='0 0 {width} {HEIGHT}' style='width: 100%; max-height: 420px'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{label}' {size}>{''.join(parts)}</svg>"


def legend(names: Sequence[str]) -> str:
    """Return HTML with the line of each curve of a chart before its name; a narrow page has several rows of them."""
    style = "display: inline-flex; align-items: center; gap: 6px; margin-right: 18px; overflow-wrap: anywhere"
    line = "<svg width='30' height='12' aria-hidden='true'><path d='M1 6h28' {}/></svg>"
    return "".join(
        f"<span style='{style}'>{line.format(_stroke(number))}{markup(name)}</span>"
        for number, name in enumerate(names)
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most ``most`` + 1 round numbers from ``low`` to ``high``, evenly spaced."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis with room for all values that are finite."""
    values = [*filter(math.isfinite, values)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _stroke(number: int) -> str:
    """Return the attributes of the line of a curve; lines differ in colour and dash."""
    look = (
        f"stroke='{COLORS[number % len(COLORS)]}' stroke-width='2.5' stroke-dasharray='{DASHES[number % len(DASHES)]}'"
    )
    return f"fill='none' {look}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' style='{INK}'>{markup(text)}</text>"


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f"<line x1='{x0:.1f}' y1='{y0:.1f}' x2='{x1:.1f}' y2='{y1:.1f}' stroke='{GRID}'/>"
