"""The picture of the README loads fast, fits its column, and shows on every background."""

from pathlib import Path

import plotly.graph_objects as go
import torch
from PIL import Image

from tools import hero
from uavlab.telemetry.predict import Prediction


def test_the_picture_is_small_and_has_no_background() -> None:
    path = Path(hero.FIGURES / "hero.webp")
    assert path.stat().st_size < 2e6
    with Image.open(path) as film:
        assert (film.size, film.info["loop"]) == (hero.SIZE, 0)
        assert film.n_frames > 2 * hero.READS  # type: ignore[attr-defined]
        assert film.convert("RGBA").getpixel((880, 490))[3] == 0  # type: ignore[index]


def test_a_log_is_read_up_to_a_moment() -> None:
    values = torch.arange(8.0).view(4, 2)
    part = hero._first(Prediction(torch.arange(4.0), values, torch.ones(2), values), 3)
    assert (part.time.tolist(), part.truth.tolist(), part.sd.tolist()) == ([0, 1, 2], values[:3].tolist(), [1, 1])


def test_letters_are_large() -> None:
    figure = hero._large(go.Figure(layout={"title": {"text": "a", "subtitle": {"text": "b"}}}), "c")
    assert (figure.layout.title.text, figure.layout.title.subtitle.text) == ("c", None)
    assert figure.layout.font.size >= 20
