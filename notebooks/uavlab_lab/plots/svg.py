"""A line chart as SVG text, for pictures that change many times a minute while a cell runs.

JupyterLab replaces such a picture in place. It ignores a plotly figure that is changed in place, and a figure as a
widget does not fill the page.
"""

import math
from collections.abc import Mapping, Sequence

from uavlab.core.text import markup
from uavlab_lab.plots.style import COLORS, GRID

WIDTH, NARROW, HEIGHT = 900, 480, 300
MOST = 240  # points of a curve, so that a picture of a long run stays small
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 34, 44
DASHES = ("", "7 5", "2 4", "9 4 2 4")
STYLE = """<style>
.uavlab-chart { container-type: inline-size }
.uavlab-chart > .narrow { display: none }
@container (max-width: 640px) { .uavlab-chart > .narrow { display: block } .uavlab-chart > .wide { display: none } }
</style>"""
NAMESPACE = "xmlns='http://www.w3.org/2000/svg'"
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

    A narrow page shows a drawing of its own, whose words are as large.

    Args:
        curves: By name; one without a name is not in the legend.
        x_axis: Name of the horizontal axis, and its unit.
        y_axis: The same of the vertical one.
        x_end: Least end of the horizontal axis.
        y_range: Ends of the vertical axis.
        marks: Places x of vertical lines, each with a short text.
        dots: Whether points have dots.
    """
    x_end = max([x_end, 1e-9, *(x for points in curves.values() for x, _ in points)])
    low, high = y_range or bounds([y for points in curves.values() for _, y in points])
    label = markup(": ".join(filter(None, (f"{y_axis} over {x_axis}", ", ".join(curves)))))

    def draw(kind: str, width: int) -> str:
        def place(x: float, y: float) -> tuple[float, float]:
            across, up = x / x_end, (y - low) / (high - low)
            return LEFT + across * (width - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

        parts = [_text(LEFT, HEIGHT - 8, x_axis), _text(4, 16, y_axis)]
        for y in ticks(low, high):
            height = place(0, y)[1]
            parts += [_line(LEFT, height, width - RIGHT, height), _text(LEFT - 6, height + 4, f"{y:g}", "end")]
        for x in ticks(0, x_end, width // 150):
            parts.append(_text(place(x, low)[0], HEIGHT - BOTTOM + 18, f"{x:,g}", "middle"))
        for x, text in marks:
            across = place(x, low)[0]
            parts += [_line(across, TOP, across, HEIGHT - BOTTOM, "5 3"), _text(across + 3, TOP + 11, text)]
        for number, points in enumerate(curves.values()):
            parts.append(_curve(number, [place(x, y) for x, y in points if math.isfinite(y)], dots))
        size = f"viewBox='0 0 {width} {HEIGHT}' style='width: 100%; max-height: 420px'"
        return f"<svg {NAMESPACE} role='img' aria-label='{label}' class='{kind}' {size}>{''.join(parts)}</svg>"

    drawings = draw("wide", WIDTH) + draw("narrow", NARROW)
    return f"<div class='uavlab-chart'>{STYLE}{drawings}{legend([*curves])}</div>"


def _curve(number: int, places: Sequence[tuple[float, float]], dots: bool) -> str:
    """Return the line and the dots of a curve."""
    color = COLORS[number % len(COLORS)]
    each = [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{color}'/>" for x, y in places if dots]
    return f"<polyline points='{_path(places)}' {_stroke(number)}/>{''.join(each)}"


def legend(names: Sequence[str]) -> str:
    """Return HTML with the line of each curve before its name; a narrow page has several rows of them."""
    style = "display: inline-flex; align-items: center; gap: 6px; margin-right: 18px; overflow-wrap: anywhere"
    line = "<svg width='30' height='12' aria-hidden='true'><path d='M1 6h28' {}/></svg>"
    return "".join(
        f"<span style='{style}'>{line.format(_stroke(number))}{markup(name)}</span>"
        for number, name in enumerate(names)
        if name
    )


def thin(points: Points, most: int = MOST) -> Points:
    """Return at most about ``most`` points, evenly spaced, and the last one."""
    step = -(-len(points) // most) or 1
    return [*points[::step], *(points[-1:] if (len(points) - 1) % step else ())]


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


def _line(x0: float, y0: float, x1: float, y1: float, dash: str = "") -> str:
    stroke = f"stroke='currentColor' stroke-dasharray='{dash}' opacity='.6'" if dash else f"stroke='{GRID}'"
    return f"<line x1='{x0:.1f}' y1='{y0:.1f}' x2='{x1:.1f}' y2='{y1:.1f}' {stroke}/>"
