"""The picture of the README loads fast, fits its column, and shows on every background."""

from PIL import Image

from tools import hero


def test_the_picture_is_small_and_has_no_background() -> None:
    path = hero.FIGURES / "hero.webp"
    assert path.stat().st_size < 2e6
    with Image.open(path) as film:
        assert (film.size, film.info["loop"]) == (hero.SIZE, 0)
        assert film.n_frames > 2 * hero.READS  # type: ignore[attr-defined]
        assert film.convert("RGBA").getpixel((880, 490))[3] == 0  # type: ignore[index]
