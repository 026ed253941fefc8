"""Hidden states of flights: a trained network, unseen flights, its predictions, and residuals of the physics."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from uavlab.core.installation import ROOT
from uavlab.experiment import policy
from uavlab.experiment.config import Device
from uavlab.experiment.policy import TrainedPolicy
from uavlab.telemetry import flights
from uavlab.telemetry.flights import HIDDEN, FlightDataset, Telemetry
from uavlab.telemetry.forecaster import residuals
from uavlab.telemetry.predict import COLUMNS, OWN_UNITS, Z_90, Prediction, require_task
from uavlab_lab.labels import label_of
from uavlab_lab.plots.style import DARK, blank, color, pale, panels, short

SHIPPED = ROOT / "figures" / "telemetry"
WRONG = {"wind_north": 5.0, "payload": 0.3, "drag": 0.4, "motor_lag": 0.05, "battery_sag": 0.7}
"""Errors of hidden quantities, about one standard deviation each, to show which equation responds to which."""


def load_network(run: str = "", device: Device = "cpu") -> tuple[TrainedPolicy, str]:
    """Load the network of a run, or the one in ``figures/telemetry``, and describe which it is."""
    trained = policy.load(Path(run) if run else SHIPPED, device)
    require_task(trained.config.env, trained.config.preset)
    which = f"the run {Path(run).name}" if run else "the network of figures/telemetry"
    return trained, f"{which}, {trained.update:,} updates"


def unseen_flights(trained: TrainedPolicy, count: int = 2, seed: int = 10**6) -> list[FlightDataset]:
    """Simulate some of the shortest flights of a network's task, from seeds that no preset uses."""
    task = trained.config.env
    task = replace(task, logs="", mapping="", flights=max(3, count), first=seed, most=task.least)
    (chunk,) = flights.simulate(task)
    return [flights.concatenate([chunk[number]]) for number in range(count)]


def write_flight(folder: Path, seed: int = 2 * 10**6) -> Path:
    """Simulate a flight of 20 s and write it to a file, with the hidden quantities."""
    return next(flights.write(Telemetry(flights=3, first=seed, most=Telemetry.least), folder, 1))[0]


def draw_prediction(
    prediction: Prediction, names: Sequence[str] = COLUMNS, title: str = "", caption: str = ""
) -> go.Figure:
    """Draw columns of a prediction over time, with the band that should hold 90 % of the truth, and the truth."""
    columns = [name for name in COLUMNS if name in names]
    rows = max(1, -(-len(columns) // 2))
    style, heads = blank(title, height=120 + 165 * rows, caption=caption), [_title(name) for name in columns]
    grid = panels(style, rows, 2, heads, shared_xaxes=True, vertical_spacing=0.16 / rows)
    time = short(prediction.time.tolist())
    for number, name in enumerate(columns):
        n, place = COLUMNS.index(name), {"row": number // 2 + 1, "col": number % 2 + 1}
        values, truth, far = prediction.values[:, n], prediction.truth[:, n], Z_90 * prediction.sd[n]
        band = short([*(values + far).tolist(), *(values - far).flip(0).tolist()])
        area = {"fill": "toself", "fillcolor": pale(0), "line": {"width": 0}, "hoverinfo": "skip"}
        kinds = {"showlegend": number == 0}
        grid.add_scatter(x=[*time, *time[::-1]], y=band, mode="lines", name="90 %", **area, **kinds, **place)
        grid.add_scatter(
            x=time, y=short(values.tolist()), mode="lines", name="predicted", line_color=color(0), **kinds, **place
        )
        if truth.isfinite().all():
            line = {"color": DARK, "width": 2, "dash": "dot"}
            grid.add_scatter(x=time, y=short(truth.tolist()), mode="lines", name="truth", line=line, **kinds, **place)
    grid.update_annotations(font_size=13)
    grid.update_xaxes(title_text="time (s)", row=rows)
    if len(columns) < 2 * rows:  # an odd number leaves the last place empty
        grid.update_xaxes(visible=False, row=rows, col=2)
        grid.update_yaxes(visible=False, row=rows, col=2)
    return grid


def _title(name: str) -> str:
    return f"{label_of(name)} ({OWN_UNITS[name]})"


def physics_residuals(flight: FlightDataset, window: int, stride: int = 50) -> list[dict[str, Any]]:
    """Measure the residuals of the equations of flight at the true hidden quantities, and with one of them wrong.

    Returns:
        A row for the truth and for each of ``WRONG``: ``case``, and by equation the root mean square of the residual
        in standard deviations of the sensors' noise.
    """
    start = torch.arange(0, len(flight.inputs) - window, stride)
    rows = flight.gather(start, window, 1)
    cases = []
    for name, by in {"the truth": 0.0, **WRONG}.items():
        hidden = rows.truth.clone()
        if name in HIDDEN:
            hidden[:, HIDDEN.index(name)] += by
        parts = residuals(rows.inputs, hidden)
        root = {equation: part.square().mean().sqrt().item() for equation, part in parts.items()}
        case = f"{label_of(name)} wrong by {by:g} {OWN_UNITS[name]}" if name in HIDDEN else name
        cases.append({"case": case, **root})
    return cases


def printed_rates(paces: Sequence[float], windows: int, epoch: int) -> list[dict[str, Any]]:
    """Compare the throughput of each interval with a whole epoch over the time since its start, which always falls.

    ``paces`` are windows per second in intervals of ``windows`` each; the whole epoch has ``epoch`` windows.
    """
    rows, seconds = [], 0.0
    for number, pace in enumerate(paces, 1):
        seconds += windows / pace
        place = {"seconds": round(seconds, 3), "interval": number}
        rows.append({**place, "how": "of the interval alone", "pace": float(pace)})
        rows.append({**place, "how": "of the whole epoch, over the time since it began", "pace": epoch / seconds})
    return rows


def scores(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return R2 by target and name: the mean over rows of ``evaluate``, each a seed, and the lowest and highest.

    One row alone keeps its own interval.
    """
    rows = []
    for name, seeds in records.items():
        for target in seeds[0]["r2"]:
            each = [seed["r2"][target] for seed in seeds]
            ends = (each[0]["low"], each[0]["high"]) if len(each) == 1 else _ends([one["mean"] for one in each])
            mean = sum(one["mean"] for one in each) / len(each)
            rows.append({"target": target, "by": name, "r2": mean, "low": ends[0], "high": ends[1]})
    return rows


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)
