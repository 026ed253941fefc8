"""An animated figure as a file: a page, a film or one moment of it, by the suffix of the file's name."""

import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
from PIL import Image

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.core.extras import require
from uavlab.core.text import quote
from uavlab.storage.files import atomic_write
from uavlab_lab.page import Page
from uavlab_lab.plots.flight import PLAY_MS, freeze, stills

FILM, MOMENTS = ".mp4", (".png", ".svg", ".pdf")
KINDS = (".html", FILM, *MOMENTS)
SIZE = (800, 640)  # of a film (px); even, as H.264 requires


def require_kind(path: Path) -> None:
    """Return if ``write`` can write such a file."""
    if path.suffix not in KINDS:
        raise ConfigError(f"{quote(str(path))}: got suffix {path.suffix!r}; expected one of {', '.join(KINDS)}.")
    if path.suffix == FILM:
        require("video", "films as MP4", "av")


def write(figure: go.Figure, path: Path) -> None:
    """Write a figure over an older file: a page, a film, or a moment."""
    require_kind(path)
    if path.suffix == ".html":
        page = Page("uavlab flight")
        page.add_figure(figure)
        page.write(path)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            if path.suffix == FILM:
                encode(draw(stills(figure), *SIZE), temporary, _frame_ms(figure))
            else:
                freeze(figure).write_image(temporary, width=900, height=640, scale=1.5)
    except (RuntimeError, OSError, ValueError) as error:
        why = " ".join(str(error).split())  # kaleido writes paragraphs
        raise ResourceError(f"{path}: not drawn ({why}); images need Chromium or Chrome, pages do not.") from error


def draw(figures: Sequence[go.Figure], width: int, height: int) -> list[Image.Image]:
    """Draw figures as pictures without background, all by one browser."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.png") for number in range(len(figures))]
        plotly.io.write_images(list(figures), files, width=width, height=height)
        return [Image.open(file).convert("RGBA") for file in files]


def encode(pictures: Sequence[Image.Image], path: Path, pause_ms: int) -> None:
    """Write pictures on white as H.264, which all browsers play; each is shown so long (ms)."""
    import av

    with av.open(str(path), "w", options={"movflags": "faststart"}) as film:
        stream = film.add_stream("libx264", rate=Fraction(1000, pause_ms), options={"crf": "20"})
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        for picture in pictures:
            white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            film.mux(stream.encode(av.VideoFrame.from_image(white)))
        film.mux(stream.encode())


def _frame_ms(figure: go.Figure) -> int:
    """Return how long the Play button shows each frame."""
    for menu in figure.layout.updatemenus:
        for button in menu.buttons:
            if button.method == "animate" and len(button.args) > 1:
                return int(button.args[1].get("frame", {}).get("duration") or PLAY_MS)
    return PLAY_MS
