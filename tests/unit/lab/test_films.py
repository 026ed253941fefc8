"""The suffix of a file decides whether a flight becomes a page, a film or a picture; a refusal leaves no file."""

import sys
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
import pytest
from PIL import Image

from tests.support.web_page import loaded_addresses
from tests.unit.lab.plots.test_leader_follower import FOUR, fly_straight
from uavlab.core.errors import ConfigError, MissingPackageError, ResourceError
from uavlab_lab import films
from uavlab_lab.plots import flight


@pytest.fixture(scope="module")
def short() -> go.Figure:
    return flight.animate(FOUR, fly_straight(FOUR, 7))


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a square that moves, in place of the browser's drawing."""

    def draw(figures: list[go.Figure], files: list[Path], width: int, height: int) -> None:
        for number, file in enumerate(files):
            picture = Image.new("RGBA", (width, height))
            picture.paste("red", (10 * number, 0, 10 * number + 10, 10))
            picture.save(file)

    monkeypatch.setattr(plotly.io, "write_images", draw)


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_an_animation_has_every_frame(short: go.Figure, suffix: str, tmp_path: Path, squares: None) -> None:
    films.write(short, tmp_path / "deep" / f"flight{suffix}")
    with Image.open(tmp_path / "deep" / f"flight{suffix}") as written:
        assert written.n_frames == len(short.frames)  # type: ignore[attr-defined]
        assert (written.info["loop"], written.size) == (0, films.SIZE)
        written.seek(3)
        red, green, blue, solid = written.convert("RGBA").getpixel((35, 5))  # WebP keeps colours approximately
        assert min(red, solid) > 240 > 15 > max(green, blue)
        *white, solid = written.convert("RGBA").getpixel((300, 300))
        assert (min(white) > 240 and solid == 255) if suffix == ".gif" else solid == 0


def test_a_film_as_mp4_has_every_frame(short: go.Figure, tmp_path: Path, squares: None) -> None:
    av = pytest.importorskip("av", reason="no PyAV: the extra video is not part of make setup")
    short.layout.updatemenus[0].buttons[0].args[1]["frame"]["duration"] = 250
    films.write(short, path := tmp_path / "flight.mp4")
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        pictures = [frame.to_image() for frame in film.decode(stream)]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 4)
    assert [picture.size for picture in pictures] == [films.SIZE] * len(short.frames)
    red, green, blue = pictures[3].getpixel((35, 5))
    assert red > 200 > 60 > max(green, blue)
    assert min(pictures[3].getpixel((300, 300))) > 240  # white, not the black of what has no colour


def test_without_the_encoder_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackageError) as caught:
        films.require_kind(Path("flight.mp4"))
    assert str(caught.value) == 'films as MP4: needs av, not installed; pip install "uavlab[video]".'
    films.require_kind(Path("flight.webp"))


@pytest.mark.parametrize("name", ["flight.avi", "flight", "flight.HTM"])
def test_other_kinds_are_refused(short: go.Figure, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected one of \.html, \.gif, \.webp, \.mp4, \.png, \.svg, \.pdf\."):
        films.write(short, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_page_loads_nothing(short: go.Figure, tmp_path: Path) -> None:
    films.write(short, path := tmp_path / "deep" / "page.html")
    page = path.read_text(encoding="utf-8")
    assert loaded_addresses(page) == []
    assert "The whole team was in formation" in page
    assert '"frames":[' in page


def test_loading_from_elsewhere_would_be_seen(short: go.Figure) -> None:
    assert any("http" in address for address in loaded_addresses(short.to_html(include_plotlyjs="cdn")))


def test_a_refusing_disk_is_reported_and_an_older_film_stays(
    short: go.Figure, tmp_path: Path, squares: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"page\.html: cannot be written .*; choose another page"):
        films.write(short, tmp_path / "file" / "page.html")
    with pytest.raises(ResourceError, match=r"page\.png: not drawn \(.*; images need Chromium or Chrome"):
        films.write(short, tmp_path / "file" / "page.png")
    (tmp_path / "flight.gif").write_text("older")

    def refuse(*words: object, **settings: object) -> None:
        raise RuntimeError("\n\nno\nbrowser\n")

    monkeypatch.setattr(plotly.io, "write_images", refuse)
    with pytest.raises(ResourceError, match=r"flight\.gif: not drawn \(no browser\)"):
        films.write(short, tmp_path / "flight.gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "flight.gif"]
    assert (tmp_path / "flight.gif").read_text() == "older"
