"""Widget panels that read well without a kernel, show their callbacks' errors, and stop a running cell.

Jupyter shows an exception in a widget callback nowhere, and a cell that never awaits hears no button; hence `guard`
and `stoppable`. Callbacks may run in another thread: they set flags or read finished arrays, nothing else.
"""

import asyncio
import base64
import functools
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

import ipywidgets as widgets
import plotly.graph_objects as go
import plotly.io as pio

from uavlab.lab.headless.strip_outputs import FIGURE

T = TypeVar("T")
ALERT = "<b role='alert'>"
BREATHS = 10  # turns of the event loop that one widget message needs; with a single turn a click waits for over 1 s


class Panel(widgets.VBox):
    """A column of widgets whose saved output also holds a still copy of its figure and a short, stable text.

    With a kernel the widgets show; in a fresh clone the interactive copy; on GitHub the PNG if there is one.
    Display it with ``shown = display(panel, display_id=True)`` and call ``shown.update(panel)`` after the last change,
    or the saved copy shows the figure as it was at first.
    """

    def __init__(
        self, children: Sequence[widgets.Widget], figure: go.Figure, label: str, png: bytes | None = None
    ) -> None:
        """Stack ``children``; ``label`` says in words what ``figure`` shows and must not differ from run to run."""
        super().__init__(children)
        self.figure, self.label, self.png = figure, label, png

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown = super()._repr_mimebundle_(**options)
        bundle, metadata = shown if isinstance(shown, tuple) else (shown, {})
        copy = json.loads(go.Figure(self.figure).to_json())
        for trace in copy["data"]:
            trace.pop("uid", None)  # random, so every run would save another copy
        bundle = {**bundle, "text/plain": self.label, FIGURE: copy}
        png = self.png
        if png is None and "png" in pio.renderers.default:  # PLOTLY_RENDERER=plotly_mimetype+png: what plain figures do
            png = go.Figure(self.figure).to_image("png")
        if png:
            bundle["image/png"] = base64.b64encode(png).decode()
        return bundle, metadata


def guard(status: widgets.HTML) -> Callable[[Callable[..., T]], Callable[..., T | None]]:
    """Decorate a widget callback so that ``status`` shows its exceptions, until it next succeeds."""

    def decorate(callback: Callable[..., T]) -> Callable[..., T | None]:
        @functools.wraps(callback)
        def guarded(*args: Any, **kwargs: Any) -> T | None:
            try:
                result = callback(*args, **kwargs)
            except Exception as e:  # whatever it is, this line is the only place where it can be seen
                status.value = f"{ALERT}{type(e).__name__}: {html.escape(str(e))}</b>"
                return None
            if status.value.startswith(ALERT):
                status.value = ""
            return result

        return guarded

    return decorate


class Stop(widgets.HBox):
    """A Stop button with a status line, for `stoppable`."""

    def __init__(self) -> None:
        """Start unpressed; the button works while a loop runs."""
        self.requested = False
        self.button = widgets.Button(description="Stop", disabled=True, tooltip="End the loop after this step")
        self.status = widgets.HTML()
        self.button.on_click(self._press)
        super().__init__([self.button, self.status])

    def say(self, text: str) -> None:
        """Show one line of text beside the button."""
        self.status.value = f"<span role='status'>{html.escape(text)}</span>"

    def _press(self, _: Any) -> None:
        self.requested = True
        self.say("stopping after this step")


async def stoppable(steps: Iterable[T], stop: Stop, every: float = 0.2) -> AsyncIterator[T]:
    """Yield ``steps`` until they end, Stop is pressed or the cell is interrupted; the next cells run all the same.

    Only where the loop's own body awaits may an interrupt end the cell with ``CancelledError``.

    ``async for step in stoppable(training(...), stop): ...`` in a cell lets widgets work while it runs. However the
    loop ends, a generator is closed, so that its ``finally`` runs.

    Args:
        steps: Any iterable; what it yields is passed on.
        stop: The button to obey; it is released first.
        every: Least time between two moments in which widgets are heard (s).
    """
    iterator = iter(steps)
    stop.requested, stop.button.disabled = False, False
    made, how, due = 0, "ended", time.monotonic() + every
    try:
        for item in iterator:
            made += 1
            yield item
            if time.monotonic() >= due:
                for _ in range(BREATHS):
                    await asyncio.sleep(0)
                due = time.monotonic() + every
            if stop.requested:
                break
        how = "stopped" if stop.requested else "finished"
    except (KeyboardInterrupt, asyncio.CancelledError):
        how = "interrupted"  # Jupyter's interrupt arrives as either; it means Stop, so the cell goes on behind the loop
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
        stop.button.disabled = True
        stop.say(f"{how} after {made} steps")
