"""Widget panels that are readable without a kernel, show errors of their callbacks, and can stop or watch a run.

Jupyter does not show exceptions of widget callbacks, and a cell that never awaits receives no button press: `guard`
and `stoppable` help. Callbacks may run in another thread, so they only set flags or read finished arrays.
"""

import asyncio
import base64
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import ipywidgets as widgets
import plotly.graph_objects as go
import plotly.io as pio

from uavlab.experiment.run import Progress, Run
from uavlab.lab.headless.strip_outputs import FIGURE
from uavlab.lab.plots.style import blank, pen

T = TypeVar("T")
Choice = str | int | float
Choices = Mapping[str, Sequence[Choice] | Mapping[str, bool]]

ALERT = "<b role='alert'>"
PARTS = {"last": "of episodes", "outcome": "of episodes", "mean": "of steps"}  # shares, in metrics without unit
BREATHS = 10  # turns of the event loop that one widget message needs; with a single turn a click waits for over 1 s


class Panel(widgets.VBox):
    """A column of widgets whose saved output also holds a still copy of its figure and a short, stable text.

    With a kernel the widgets show; in a fresh clone the interactive copy; on GitHub the PNG if there is one.
    Display it with ``handle = display(panel, display_id=True)`` and call ``handle.update(panel)`` after the last
    change, or the saved copy shows the first state of the figure.
    """

    def __init__(self, children: Sequence[widgets.Widget], figure: go.Figure | None, label: str) -> None:
        """Stack ``children``; ``label`` describes ``figure`` in words that must not differ from run to run."""
        super().__init__(children)
        self.figure: Any = figure
        self.label = label

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = {**super()._repr_mimebundle_(**options), "text/plain": self.label}
        if self.figure is not None:
            copy = bundle[FIGURE] = json.loads(go.Figure(self.figure).to_json())
            for trace in copy["data"]:
                trace.pop("uid", None)  # random, so every run would save another copy
            if "png" in pio.renderers.default:  # as plain figures do with PLOTLY_RENDERER=plotly_mimetype+png
                bundle["image/png"] = base64.b64encode(go.Figure(self.figure).to_image("png")).decode()
        return bundle


def live_figure(figure: go.Figure) -> go.FigureWidget:
    """Return a figure that a kernel can change and that fills the width of its cell; each takes 5 MB."""
    widget = go.FigureWidget(figure)
    widget._config = {**widget._config, "responsive": True}
    return widget


@contextmanager
def guard(status: widgets.HTML) -> Iterator[None]:
    """Decorate a widget callback: show its exceptions in ``status`` until a call succeeds."""
    try:
        yield
    except Exception as e:  # of any kind: it is shown nowhere else
        status.value = f"{ALERT}{type(e).__name__}: {html.escape(str(e))}</b>"
        return
    if status.value.startswith(ALERT):
        status.value = ""


def write_status(status: widgets.HTML, text: str) -> None:
    """Write one line of text, which screen readers announce."""
    status.value = f"<span role='status'>{html.escape(text)}</span>"


class ToggleRow(Panel):
    """Buttons over finished measurements, a line that repeats the choice in words, and a figure redrawn at each click.

    Make one per notebook, because each holds a live figure.

        def draw(agents: int, rungs: tuple[str, ...]) -> go.Figure: ...
        ToggleRow(draw, {"agents": [2, 4, 8], "rungs": {"loop": True, "vmap": False}}, "Update time by rung")

    Display it as the last expression of a cell.
    """

    def __init__(self, draw: Callable[..., go.Figure], choices: Choices, label: str) -> None:
        """Start with the first value of each list, and the names that are True in each mapping.

        ``draw`` takes each choice as a keyword argument, one value of a list or the tuple of a mapping's selected
        names, and returns a plain figure; ``label`` describes it in words that do not differ from run to run.
        """
        self.draw, self.status = draw, widgets.HTML()
        self.buttons = {name: _buttons(name, options) for name, options in choices.items()}
        widget = live_figure(draw(**self.values()))
        rows = [widgets.HBox([widgets.Label(name), *row], layout=WRAP) for name, row in self.buttons.items()]
        super().__init__([*rows, self.status, widget], widget, label)
        redraw = guard(self.status)(self._redraw)
        for button in (button for row in self.buttons.values() for button in row):
            button.observe(redraw, "value")
        self._write_choices()

    def values(self) -> dict[str, Any]:
        """Return the choices by name."""
        return {name: _value(row) for name, row in self.buttons.items()}

    def _redraw(self, _: Any = None) -> None:
        fresh = self.draw(**self.values())  # may raise: then the old figure stays
        for key in self.figure.layout.to_plotly_json().keys() - fresh.layout.to_plotly_json().keys():
            self.figure.layout[key] = None  # a browser keeps every property that is not unset
        self.figure.data = ()
        self.figure.layout = fresh.layout
        self.figure.add_traces(fresh.data)
        self._write_choices()

    def _write_choices(self) -> None:
        """Write the state of the buttons in words, for readers who cannot see it."""
        texts = {name: ", ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in self.values().items()}
        write_status(self.status, "Shown: " + " · ".join(f"{name}: {text}" for name, text in texts.items()))


WRAP = widgets.Layout(flex_flow="row wrap", align_items="center")


def _buttons(name: str, options: Sequence[Choice] | Mapping[str, bool]) -> list[Any]:
    """Create one group of exclusive buttons for a list, or one toggle button for each name of a mapping."""
    if isinstance(options, Mapping):
        fit = widgets.Layout(width="auto")
        return [widgets.ToggleButton(value=on, description=str(each), layout=fit) for each, on in options.items()]
    pairs = [(str(option), option) for option in options]
    return [widgets.ToggleButtons(options=pairs, style={"button_width": "auto"}, tooltips=[name] * len(pairs))]


def _value(row: Sequence[Any]) -> Any:
    if isinstance(row[0], widgets.ToggleButtons):
        return row[0].value
    return tuple(button.description for button in row if button.value)


class Stop(widgets.HBox):
    """A Stop button with a status line, for `stoppable`."""

    def __init__(self) -> None:
        """Start unpressed; the button works while a loop runs."""
        self.requested = False
        self.button = widgets.Button(description="Stop", disabled=True, tooltip="End the loop after this step")
        self.status = widgets.HTML()
        self.button.on_click(self._press)
        super().__init__([self.button, self.status])

    def _press(self, _: Any) -> None:
        self.requested = True
        write_status(self.status, "stopping after this step")


async def stoppable(steps: Iterable[T], stop: Stop, every: float = 0.2) -> AsyncIterator[T]:
    """Yield ``steps`` until they end, Stop is pressed or the cell is interrupted; later cells still run.

    ``async for step in stoppable(training(...), stop): ...`` in a cell lets widgets work while it runs. A generator is
    closed however the loop ends, so that its ``finally`` runs. An interrupt may end the cell with ``CancelledError``
    only where the loop's own body awaits. Widgets are served every ``every`` seconds.
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
        write_status(stop.status, f"{end} after {count} steps")


class LiveRun(Panel):
    """A learning curve that grows while a run trains, a status line and a Stop button."""

    def __init__(self, run: Run) -> None:
        """Watch ``run``; pass each of its progress reports to ``show``."""
        self.run, self.stop = run, Stop()
        widget = live_figure(training_curves(run.config.env, title="Learning: scores while training"))
        names = " and ".join(trace.name for trace in widget.data)
        super().__init__([self.stop, widget], widget, f"{names} over the updates")

    def show(self, progress: Progress) -> None:
        """Refresh the status line, and the curve when there is a new score."""
        if progress.metrics or progress.score:
            rate = progress.number / max(progress.seconds, 1e-9)
            rest = (progress.target - progress.number) / rate if progress.target else 0
            text = f"update {progress.number} of {progress.target}, {rate:.0f} per second, {rest:.0f} s to go"
            write_status(self.stop.status, text)
        if progress.score:
            self.draw()

    def draw(self) -> None:
        """Redraw the curve from all scores so far."""
        curves = training_curves(self.run.config.env, self.run.recorder.rows)
        with self.figure.batch_update():
            for trace, curve in zip(self.figure.data, curves.data, strict=True):
                trace.x, trace.y = curve.x, curve.y


def training_curves(env: Any, rows: Sequence[Mapping[str, float]] = (), title: str = "") -> go.Figure:
    """Draw the metrics in the ``score`` of an environment over the updates of a run.

    Each of ``rows`` with the key ``eval/NAME`` is a point of the metric NAME.
    """
    metrics = [metric for metric in env.metrics if metric.name in env.score]
    shares = all(metric.over in PARTS and not metric.unit for metric in metrics)
    units = ", ".join(dict.fromkeys(metric.unit or metric.name for metric in metrics))
    figure = blank(title, "updates", "share of episodes or steps" if shares else units)
    for number, metric in enumerate(metrics):
        scored = [row for row in rows if f"eval/{metric.name}" in row]
        figure.add_scatter(
            x=[row["update"] for row in scored],
            y=[row[f"eval/{metric.name}"] for row in scored],
            name=f"{metric.name.replace('_', ' ')} ({metric.unit or PARTS.get(metric.over, metric.over)})",
            mode="lines+markers",
            **pen(number),
        )
    figure.update_xaxes(rangemode="tozero")
    return figure.update_yaxes(range=[-0.02, 1.02]) if shares else figure
