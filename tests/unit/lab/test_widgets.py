"""Panels save a line of text, callbacks show their errors, and Stop ends a loop."""

import asyncio
from collections.abc import Iterator

import ipywidgets as widgets
import pytest

from uavlab_lab.headless.strip_outputs import WIDGET
from uavlab_lab.widgets import Panel, Stop, guard, paragraphs, scroll_box, stoppable


class TestPanel:
    def test_its_saved_output_reads_without_a_kernel(self) -> None:
        bundle = Panel([widgets.Checkbox()], "Seed and updates.")._repr_mimebundle_()
        assert set(bundle) == {WIDGET, "text/plain"}
        assert bundle["text/plain"] == "Seed and updates."


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


class TestHtml:
    def test_a_box_scrolls_by_keys_and_has_a_name(self) -> None:
        box = scroll_box("<table></table>", "<runs>", "10em")
        assert "<table></table>" in box
        assert "tabindex='0'" in box
        assert "aria-label='&lt;runs&gt;'" in box
        assert "overflow: auto; max-height: 10em" in box

    def test_paragraphs_are_text(self) -> None:
        page = paragraphs(["<b>", 5])
        assert page.count("<p ") == 2
        assert ">&lt;b&gt;</p>" in page
        assert ">5</p>" in page


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
