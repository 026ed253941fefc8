"""Pictures beside the interactive figures of an executed notebook, for pages that run no JavaScript, such as GitHub's.

A picture is SVG: JupyterLab would show a PNG in place of the figure. An animated figure has one moment of its flight,
without the buttons; a figure with views has all of them, one below the other.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io

from uavlab.core.errors import ResourceError
from uavlab_lab.headless import FIGURE, PICTURE
from uavlab_lab.plots.flight import freeze
from uavlab_lab.plots.views import still_views

WIDTH = 900


def add_pictures(bundles: Sequence[Any]) -> None:
    """Add a picture to each bundle of an output that holds a plotly figure.

    Raises:
        ResourceError: There is no browser to draw them.
    """
    each = [stills(bundle) for bundle in bundles]
    texts = iter(draw([still for figures in each for still in figures]))
    for bundle, figures in zip(bundles, each, strict=True):
        bundle.pop("image/png", None)
        bundle[PICTURE] = stack([next(texts) for _ in figures])


def draw(figures: Sequence[go.Figure], width: int = WIDTH) -> list[str]:
    """Draw figures as SVG of this width (px), all by one browser.

    Raises:
        ResourceError: There is no browser.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.svg") for number in range(len(figures))]
        try:
            heights = [figure.layout.height for figure in figures]  # plotly ignores them otherwise
            plotly.io.write_images(list(figures), paths, width=width, height=heights) if figures else None
        except (RuntimeError, OSError, ValueError) as error:
            why = " ".join(str(error).split())  # kaleido writes paragraphs
            raise ResourceError(f"pictures of figures: not drawn ({why}); they need Chromium or Chrome.") from error
        return [path.read_text(encoding="utf-8") for path in paths]


def stack(pictures: Sequence[str]) -> str:
    """Return one SVG that shows pictures one below the other."""
    if len(pictures) == 1:
        return pictures[0]
    top, parts = 0.0, []
    for picture in pictures:
        height = float(re.search(r'height="([\d.]+)"', picture)[1])  # type: ignore[index]
        parts.append(picture.replace("<svg ", f'<svg y="{top:g}" ', 1))
        top += height
    size = f'width="{WIDTH}" height="{top:g}" viewBox="0 0 {WIDTH} {top:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def stills(bundle: Any) -> list[go.Figure]:
    """Return the still figures of an output that holds a plotly figure: one moment of a flight, or every view."""
    figure = go.Figure(_without_config(bundle[FIGURE]))
    return [freeze(figure)] if figure.frames else still_views(figure)


def _without_config(figure: Any) -> dict[str, Any]:
    return {key: value for key, value in figure.items() if key != "config"}
