"""Widgets that show errors of their callbacks and can stop a loop.

Jupyter does not show exceptions of widget callbacks, and a cell that never awaits receives no button press: `guard`
and `stoppable` help. Callbacks may run in another thread, so they only set flags or read finished arrays.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import ipywidgets as widgets

from uavlab.core.text import markup

T = TypeVar("T")
ALERT = "<b role='alert'>"
BREATHS = 10  # turns of the event loop that one widget message needs; with a single turn a click waits for over 1 s


class Panel(widgets.VBox):
    """A column of widgets that a page without a kernel shows as one line of text."""

    def __init__(self, children: Sequence[widgets.Widget], label: str) -> None:
        """Stack ``children``; ``label`` describes them in words that must not differ from run to run."""
        super().__init__(children)
        self.label = label

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return {**super()._repr_mimebundle_(**options), "text/plain": self.label}


@contextmanager
def guard(status: widgets.HTML) -> Iterator[None]:
    """Decorate a widget callback: show its exceptions in ``status`` until a call succeeds."""
    try:
        yield
    except Exception as e:  # of any kind: it is shown nowhere else
        status.value = f"{ALERT}{type(e).__name__}: {markup(e)}</b>"
        return
    if status.value.startswith(ALERT):
        status.value = ""


def write_status(status: widgets.HTML, text: str) -> None:
    """Write one line of text, which screen readers announce."""
    status.value = f"<span role='status'>{markup(text)}</span>"


def paragraphs(texts: Iterable[Any]) -> str:
    """Return texts as paragraphs of HTML, which show them as they are."""
    return "".join(f"<p style='line-height: 1.4; margin: 0 0 .4em'>{markup(text)}</p>" for text in texts)


def scroll_box(content: str, label: str, most: str = "24em") -> str:
    """Return HTML in a box that scrolls when it is wider than the page or higher than ``most``, by keys, too.

    ``label`` is what screen readers call the box. Its tables look like those of the notebook.
    """
    names = f"class='jp-RenderedHTMLCommon' role='region' tabindex='0' aria-label='{markup(label)}'"
    never_wider = "width: 0; min-width: 100%; box-sizing: border-box"  # than the page, whatever it holds
    style = f"overflow: auto; max-height: {most}; {never_wider}"
    return f"<div {names} style='{style}'><div style='width: fit-content'>{content}</div></div>"


class Stop(Panel):
    """A Stop button with a status line, for `stoppable`."""

    def __init__(self) -> None:
        """Start unpressed; the button works while a loop runs."""
        self.requested = False
        self.button = widgets.Button(description="Stop", disabled=True, tooltip="End the loop after this step")
        self.status = widgets.HTML()
        self.button.on_click(self._press)
        super().__init__([widgets.HBox([self.button, self.status])], "Stop ends the loop after the step in progress.")

    def _press(self, _: Any) -> None:
        self.requested = True
        write_status(self.status, "stopping after this step")


async def stoppable(steps: Iterable[T], stop: Stop, every: float = 0.2, unit: str = "steps") -> AsyncIterator[T]:
    """Yield ``steps`` until they end, Stop is pressed or the cell is interrupted; later cells still run.

    ``async for step in stoppable(training(...), stop): ...`` in a cell lets widgets work while it runs. A generator is
    closed however the loop ends, so that its ``finally`` runs. An interrupt may end the cell with ``CancelledError``
    only where the loop's own body awaits. Widgets are served every ``every`` seconds. The status line counts ``unit``.
    """
    iterator = iter(steps)
    stop.requested, stop.button.disabled = False, False
    count, end, due = 0, "ended", time.monotonic() + every
    try:
        for item in iterator:
            count += 1
            yield item
            if time.monotonic() >= due:
                for _ in range(BREATHS):
                    await asyncio.sleep(0)
                due = time.monotonic() + every
            if stop.requested:
                break
        end = "stopped" if stop.requested else "finished"
    except (KeyboardInterrupt, asyncio.CancelledError):
        end = "interrupted"  # Jupyter's interrupt arrives as either; like Stop, it lets the cell continue
    finally:
        if hasattr(iterator, "close"):
            iterator.close()
        stop.button.disabled = True
        write_status(stop.status, f"{end} after {count:,} {unit}")
