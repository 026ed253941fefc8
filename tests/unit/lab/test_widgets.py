"""Widgets show errors of their callbacks, Stop ends a loop, and a run in a cell draws its scores at once."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import pytest

from tests.support.fixtures_config import tiny
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab_lab import live_run
from uavlab_lab.headless import FIGURE
from uavlab_lab.widgets import Stop, guard, paragraphs, scroll_box, stoppable


def test_an_error_is_shown_until_the_next_success() -> None:
    status = widgets.HTML("ready")

    @guard(status)
    def divide(by: int) -> float:
        if by == 0:
            raise ValueError("<img src=x> & co")
        return 1 / by

    divide(1)
    assert status.value == "ready"
    divide(0)
    assert status.value == "<b role='alert'>ValueError: &lt;img src=x&gt; &amp; co</b>"
    divide(2)
    assert status.value == ""
    assert "aria-label='&lt;runs&gt;'" in scroll_box("<table>", "<runs>")
    assert ">&lt;b&gt;</p>" in paragraphs(["<b>", 5])


def steps(closed: list[bool], interrupt_at: int | None = None) -> Iterator[int]:
    """Yield numbers, and note that the generator was closed."""
    try:
        for n in range(1000):
            if n == interrupt_at:
                raise KeyboardInterrupt
            yield n
    finally:
        closed.append(True)


@pytest.mark.parametrize("how", ["pressed", "interrupted", "cancelled", "left", "heard"])
def test_a_loop_ends_and_the_cell_goes_on(how: str) -> None:
    stop, closed, seen = Stop(), [], []
    stop.button.click()  # a press left from the last loop does not count

    async def cell() -> str:
        task = asyncio.current_task()
        assert task
        if how == "heard":
            asyncio.get_running_loop().call_soon(stop.button.click)
        each = stoppable(steps(closed, 4 if how == "interrupted" else None), stop, every=0)
        async for n in each:
            seen.append(n)
            if n == 3 and how == "pressed":
                stop.button.click()
            elif n == 3 and how == "cancelled":
                task.cancel()
            elif n == 3 and how == "left":
                await each.aclose()  # type: ignore[attr-defined]
                break
        return "went on"

    assert asyncio.run(cell()) == "went on"
    assert (closed, stop.button.disabled) == ([True], True)
    assert len(seen) < 10 if how == "heard" else seen == [0, 1, 2, 3]
    end = {"pressed": "stopped", "heard": "stopped", "left": "ended"}.get(how, "interrupted")
    assert stop.status.value == f"<span role='status'>{end} after {len(seen)} steps</span>"


class Screen:
    """Stands for the notebook: what was displayed, and each picture that an output had."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.pictures: list[Any] = []

    def display(self, item: Any, display_id: bool = False) -> "Screen | None":
        (self.pictures if display_id else self.shown).append(item)
        return self if display_id else None

    def update(self, item: Any, raw: bool = False) -> None:
        self.pictures.append(item)


def test_each_score_is_drawn_at_once_and_the_last_picture_is_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(live_run, "display", screen.display)
    run = Run(tiny(updates=4))
    asyncio.run(live_run.train(run))
    [stop], [*pictures, last] = screen.shown, screen.pictures
    counts = [len(re.findall("<circle", picture.data)) // 2 for picture in pictures]  # for wide and narrow pages
    assert counts == [0, 2, 4]  # two metrics, scored after updates 2 and 4
    scored = [row["eval/completion"] for row in run.recorder.rows if "eval/completion" in row]
    assert (last[FIGURE]["data"][0]["x"], last[FIGURE]["data"][0]["y"]) == ([2, 4], scored)
    assert "finished after 4 updates" in stop.status.value
    monkeypatch.setattr(live_run, "describe", lambda progress: screen.shown[-1].button.click() or "")
    run = Run(tiny(updates=100))
    asyncio.run(live_run.train(run))
    assert 0 < run.number < 100


def test_the_status_line_and_the_curves() -> None:
    progress = Progress(number=50, target=200, seconds=10.0)  # 150 updates at 5 per second
    assert live_run.describe(progress) == "update 50 of 200, 30 s to go; 5 updates per second"
    row = {"update": 2, "eval/completion": 0.25, "eval/formation_strict": 0.5, "eval/mean_r2": -0.5}
    figure = live_run.training_curves(LeaderFollower(), [{"update": 1, "q": 0.5}, row], "Learning")
    drawn = [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data]
    assert drawn == [("completion (of episodes)", [2], [0.25]), ("strict formation (of steps)", [2], [0.5])]
    assert figure.layout.yaxis.range == (-0.02, 1.02)
