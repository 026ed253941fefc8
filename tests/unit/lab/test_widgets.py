"""Panels save a still copy and show errors, buttons redraw a figure, Stop ends a loop, and a run draws its scores."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from tests.support.fixtures_config import tiny
from tests.support.fixtures_mapping import TINY_MISSION
from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment.run import Progress, Run
from uavlab.lab.headless.strip_outputs import FIGURE, WIDGET
from uavlab.lab.widgets import LiveRun, Panel, Stop, ToggleRow, guard, stoppable, training_curves


class TestPanel:
    def test_its_saved_output_reads_without_a_kernel(self) -> None:
        figure = go.Figure(go.Scatter(y=[1, 2]), {"title": "Curve"})
        panel = Panel([widgets.Checkbox()], figure, "Return rises from 1 to 2.")
        bundle = panel._repr_mimebundle_()
        assert set(bundle) == {WIDGET, FIGURE, "text/plain"}
        assert bundle["text/plain"] == "Return rises from 1 to 2."
        assert bundle[FIGURE]["layout"]["title"]["text"] == "Curve"

    def test_a_renderer_of_png_saves_a_picture_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype+png")
        monkeypatch.setattr(go.Figure, "to_image", lambda self, kind: b"\x89PNG")
        bundle = Panel([], go.Figure(), "label")._repr_mimebundle_()
        assert base64.b64decode(bundle["image/png"]) == b"\x89PNG"

    def test_the_copy_is_taken_when_it_is_shown(self) -> None:
        panel = Panel([], go.Figure(), "label")
        panel.figure.add_scatter(y=[3])
        bundle = panel._repr_mimebundle_()
        assert len(bundle[FIGURE]["data"]) == 1
        assert "image/png" not in bundle

    def test_two_panels_save_the_same(self) -> None:
        def saved() -> dict[str, object]:
            figure = go.FigureWidget(go.Scatter(y=[1]))
            bundle = Panel([figure], figure, "label")._repr_mimebundle_()
            return {name: value for name, value in bundle.items() if name != WIDGET}

        assert saved() == saved()


CHOICES: dict[str, Any] = {"agents": [2, 4], "rungs": {"loop": True, "vmap": False}}


def draw(agents: int, rungs: tuple[str, ...]) -> go.Figure:
    if agents == 4 and not rungs:
        raise ConfigError("nothing to show for <4>")
    figure = go.Figure(layout={"title": f"{agents} agents"})
    for number, rung in enumerate(rungs):
        figure.add_bar(x=[agents + number], y=[rung], name=rung)
    return figure


@pytest.fixture
def row() -> ToggleRow:
    return ToggleRow(draw, CHOICES, "time by rung")


def title_and_names(row: ToggleRow) -> tuple[str, list[str]]:
    return row.figure.layout.title.text, [trace.name for trace in row.figure.data]


class TestToggleRow:
    def test_it_begins_with_the_first_of_a_list_and_what_is_on(self, row: ToggleRow) -> None:
        assert row.values() == {"agents": 2, "rungs": ("loop",)}
        assert title_and_names(row) == ("2 agents", ["loop"])
        assert row.status.value == "<span role='status'>Shown: agents: 2 · rungs: loop</span>"

    def test_a_click_draws_the_figure_again(self, row: ToggleRow) -> None:
        row.buttons["rungs"][1].value = True
        assert title_and_names(row) == ("2 agents", ["loop", "vmap"])
        row.buttons["agents"][0].value = 4
        assert title_and_names(row) == ("4 agents", ["loop", "vmap"])
        assert [list(trace.x) for trace in row.figure.data] == [[4], [5]]
        assert "agents: 4 · rungs: loop, vmap" in row.status.value
        row.buttons["rungs"][0].value = row.buttons["rungs"][1].value = False
        row.buttons["agents"][0].value = 2
        assert title_and_names(row) == ("2 agents", [])

    def test_what_the_last_figure_had_does_not_linger(self) -> None:
        def sometimes_banded(band: str) -> go.Figure:
            figure = go.Figure(go.Scatter(y=[1]))
            if band == "with":
                figure.add_vline(x=1)
                figure.update_xaxes(type="log", title="x")
            return figure

        row = ToggleRow(sometimes_banded, {"band": ["with", "without"]}, "label")
        assert len(row.figure.layout.shapes) == 1
        row.buttons["band"][0].value = "without"
        assert (len(row.figure.layout.shapes), row.figure.layout.xaxis.type) == (0, None)

    def test_a_refusal_is_shown_and_the_figure_stays(self, row: ToggleRow) -> None:
        row.buttons["agents"][0].value = 4
        row.buttons["rungs"][0].value = False
        assert row.status.value == "<b role='alert'>ConfigError: nothing to show for &lt;4&gt;</b>"
        assert title_and_names(row) == ("4 agents", ["loop"])
        row.buttons["agents"][0].value = 2
        assert title_and_names(row) == ("2 agents", [])
        assert "agents: 2" in row.status.value

    def test_its_saved_copy_is_the_present_figure(self, row: ToggleRow) -> None:
        row.buttons["agents"][0].value = 4
        bundle = row._repr_mimebundle_()
        assert bundle["text/plain"] == "time by rung"
        assert bundle[FIGURE]["layout"]["title"]["text"] == "4 agents"

    def test_names_are_text_never_markup(self) -> None:
        row = ToggleRow(lambda pick: go.Figure(), {"pick": ["<img src=x>"]}, "label")
        assert "<img" not in row.status.value


class TestGuard:
    def test_shows_the_exception_escaped_until_the_next_success(self) -> None:
        status = widgets.HTML()

        @guard(status)
        def divide(by: int) -> float:
            if by == 0:
                raise ValueError("<img src=x onerror=alert(1)> & co")
            return 1 / by

        assert divide(0) is None
        assert status.value == "<b role='alert'>ValueError: &lt;img src=x onerror=alert(1)&gt; &amp; co</b>"
        assert divide(2) == 0.5
        assert status.value == ""
        assert divide.__name__ == "divide"

    def test_leaves_other_text_alone(self) -> None:
        status = widgets.HTML("ready")
        guard(status)(lambda: None)()
        assert status.value == "ready"

    def test_does_not_swallow_an_interrupt(self) -> None:
        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            guard(widgets.HTML())(interrupted)()


class Steps:
    """Numbers, and whether their generator was closed."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, count: int = 1000, interrupt_at: int | None = None) -> Iterator[int]:
        try:
            for n in range(count):
                if n == interrupt_at:
                    raise KeyboardInterrupt
                yield n
        finally:
            self.closed = True


class TestStoppable:
    def test_yields_everything_and_says_so(self) -> None:
        stop, steps = Stop(), Steps()

        async def cell() -> list[int]:
            return [n async for n in stoppable(steps(3), stop)]

        assert asyncio.run(cell()) == [0, 1, 2]
        assert steps.closed
        assert stop.status.value == "<span role='status'>finished after 3 steps</span>"
        assert stop.button.disabled

    def test_takes_what_is_no_generator(self) -> None:
        async def cell() -> list[int]:
            return [n async for n in stoppable([7, 8], Stop())]

        assert asyncio.run(cell()) == [7, 8]

    def test_stops_after_the_step_in_which_the_button_is_pressed(self) -> None:
        stop, steps, seen = Stop(), Steps(), []

        async def cell() -> None:
            async for n in stoppable(steps(), stop):
                seen.append(n)
                if n == 2:
                    assert not stop.button.disabled
                    stop.button.click()
            seen.append(-1)  # the cell goes on

        asyncio.run(cell())
        assert seen == [0, 1, 2, -1]
        assert steps.closed
        assert "stopped after 3 steps" in stop.status.value

    def test_hears_others_while_it_runs(self) -> None:
        stop, steps, seen = Stop(), Steps(), []

        async def cell() -> None:
            asyncio.get_running_loop().call_soon(stop.button.click)
            seen.extend([n async for n in stoppable(steps(), stop, every=0)])

        asyncio.run(cell())
        assert len(seen) < 10  # a loop that never awaits would see all 1000

    def test_a_press_left_from_the_last_loop_does_not_count(self) -> None:
        stop = Stop()
        stop.button.click()

        async def cell() -> list[int]:
            return [n async for n in stoppable(range(2), stop)]

        assert asyncio.run(cell()) == [0, 1]

    @pytest.mark.parametrize("how", ["raised in a step", "cancelled"])
    def test_an_interrupt_ends_the_loop_and_the_cell_goes_on(self, how: str) -> None:
        stop, steps, seen = Stop(), Steps(), []

        async def cell() -> str:
            task = asyncio.current_task()
            assert task
            async for n in stoppable(steps(interrupt_at=4 if how == "raised in a step" else None), stop, every=0):
                seen.append(n)
                if n == 3 and how == "cancelled":
                    task.cancel()
            return "went on"

        assert asyncio.run(cell()) == "went on"
        assert seen == [0, 1, 2, 3]
        assert steps.closed
        assert "interrupted after 4 steps" in stop.status.value

    @pytest.mark.parametrize("how", ["break", "error in the cell"])
    def test_leaving_the_loop_closes_the_generator(self, how: str) -> None:
        stop, steps = Stop(), Steps()

        async def cell() -> None:
            try:
                async for _ in stoppable(steps(), stop):
                    if how == "break":
                        break
                    raise ValueError
            except ValueError:
                pass
            await asyncio.sleep(0.01)
            assert steps.closed
            assert stop.button.disabled
            assert "ended after 1 steps" in stop.status.value

        asyncio.run(cell())

    def test_an_error_in_the_steps_passes_on(self) -> None:
        async def cell() -> None:
            async for _ in stoppable((1 / n for n in (1, 0)), Stop()):
                pass

        with pytest.raises(ZeroDivisionError):
            asyncio.run(cell())


class TestLiveRun:
    def test_the_curve_grows_with_the_scores(self) -> None:
        run = Run(tiny(updates=4))
        panel, lengths = LiveRun(run), []
        for progress in run.train():
            panel.show(progress)
            lengths.append(len(panel.figure.data[0].x or ()))
        assert lengths == [0, 1, 1, 2]
        scored = [row for row in run.recorder.rows if "eval/completion" in row]
        assert [list(trace.x) for trace in panel.figure.data] == [[2, 4], [2, 4]]
        assert list(panel.figure.data[0].y) == [row["eval/completion"] for row in scored]
        assert list(panel.figure.data[1].y) == [row["eval/formation_strict"] for row in scored]

    def test_the_status_line(self) -> None:
        panel = LiveRun(Run(tiny()))
        panel.show(Progress(number=50, target=200, seconds=10.0, metrics={"q": 1.0}))
        assert "update 50 of 200, 5 per second, 30 s to go" in panel.stop.status.value  # 150 updates at 5 per second
        panel.show(Progress(number=51, target=200, seconds=10.2))
        assert "update 50" in panel.stop.status.value

    def test_the_last_score_of_a_short_run_is_drawn_too(self) -> None:
        run = Run(tiny(updates=2, evaluate_every=100))
        panel = LiveRun(run)
        for progress in run.train():
            panel.show(progress)
        assert list(panel.figure.data[0].x) == [2]


class TestTrainingCurves:
    ROWS = (
        {"update": 1, "q": 0.5},
        {"update": 2, "eval/completion": 0.25, "eval/formation_strict": 0.5},
        {"update": 4, "eval/completion": 0.75, "eval/formation_strict": 0.125},
    )

    def test_only_scores_are_drawn(self) -> None:
        figure = training_curves(LeaderFollower(), self.ROWS, "Learning")
        assert [list(trace.x) for trace in figure.data] == [[2, 4], [2, 4]]
        assert [list(trace.y) for trace in figure.data] == [[0.25, 0.75], [0.5, 0.125]]
        assert len({trace.line.dash for trace in figure.data}) == 2  # distinct without colour
        assert [trace.name for trace in figure.data] == ["completion (of episodes)", "formation strict (of steps)"]
        assert (figure.layout.title.text, figure.layout.xaxis.title.text) == ("Learning", "updates")
        assert (figure.layout.yaxis.title.text, figure.layout.yaxis.range) == (
            "share of episodes or steps",
            (-0.02, 1.02),
        )

    def test_before_the_first_score(self) -> None:
        assert [list(trace.x) for trace in training_curves(LeaderFollower()).data] == [[], []]

    def test_another_environment_has_its_own_metric_and_unit(self) -> None:
        [line] = training_curves(TINY_MISSION, [{"update": 3, "eval/entropy": 0.5, "eval/f1": 0.9}]).data
        assert (line.name, list(line.x), list(line.y)) == ("entropy (bit)", [3], [0.5])
