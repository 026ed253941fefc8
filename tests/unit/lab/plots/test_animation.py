"""Animations show the first and the last state in few frames, and their controls name every frame."""

import plotly.graph_objects as go
import pytest

from uavlab.lab.plots import animation


@pytest.mark.parametrize("most", [3, 16, 40])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40, 41, 79, 1001])
def test_first_and_last_are_among_few(count: int, most: int) -> None:
    shown = animation.chosen(count, most)
    assert len(shown) <= most
    assert (shown[0], shown[-1]) == (0, count - 1)
    assert shown == sorted(set(shown))


def test_short_flights_are_shown_whole() -> None:
    assert animation.chosen(15, 16) == list(range(15))


def test_the_slider_jumps_to_frames_by_name() -> None:
    made = animation.slider([go.Frame(name="1"), go.Frame(name="4")], prefix="step ", suffix=" of 4", redraw=True)
    assert [(step["label"], step["args"][0]) for step in made["steps"]] == [("1", ["1"]), ("4", ["4"])]
    assert made["currentvalue"] == {"prefix": "step ", "suffix": " of 4"}
    assert all(step["args"][1]["frame"]["redraw"] for step in made["steps"])


def test_buttons_play_and_pause() -> None:
    play, pause = animation.buttons(pause_ms=300, redraw=True)["buttons"]
    assert (play["label"], pause["label"]) == ("Play", "Pause")
    assert play["args"][1]["frame"] == {"duration": 300, "redraw": True}
    assert animation.buttons()["buttons"][0]["args"][1]["frame"]["redraw"] is False
