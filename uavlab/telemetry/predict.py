"""What a kept network tells of one flight: hidden quantities and the error ahead, window after window, with doubt."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import build
from uavlab.experiment.policy import Kept
from uavlab.storage.files import replacing
from uavlab.telemetry import dataset, flights, metrics
from uavlab.telemetry.dataset import HIDDEN, Series
from uavlab.telemetry.forecaster import Forecast
from uavlab.telemetry.logs.column_map import read_mapping
from uavlab.telemetry.logs.columns import TRUTH
from uavlab.telemetry.metrics import UNITS, by_task
from uavlab.telemetry.simulation.flights import RATE
from uavlab.telemetry.task import Telemetry

COLUMNS = (*HIDDEN, *(f"error_{axis}" for axis in dataset.AXES))
"""What is told: the hidden quantities now, and how far from its reference the vehicle will be at the horizon (m)."""

OWN_UNITS = {name: UNITS[name if name in HIDDEN else "error"] for name in COLUMNS}


@dataclass(frozen=True)
class Told:
    """A row for each window.

    Attributes:
        time: Of a window's last row, from the log's first (s).
        said: ``COLUMNS``.
        doubt: One standard deviation of each, as the network itself expects it.
        truth: The same columns; NaN where a log does not know it.
    """

    time: Float[Tensor, " M"]
    said: Float[Tensor, "M columns"]
    doubt: Float[Tensor, " columns"]
    truth: Float[Tensor, "M columns"]


def of(kept: Kept, flight: Series, stride: int, run: int = 0) -> Told:
    """Tell of windows ``stride`` rows apart in the first flight of a series, by one of the kept networks.

    Raises:
        ConfigError: What is kept flies, and tells nothing.
        FileError: The flight is shorter than a window and its horizon.
    """
    task = kept.config.env
    if not isinstance(task, Telemetry):
        raise ConfigError(f"{kept.config.preset}: flies, and tells nothing of logs; expected a run of telemetry.")
    rows, least = int(flight.bounds[1]), sum(task.shape)
    if rows < least:
        raise FileError(f"flight: {rows} rows at {RATE} a second; a window and what follows it are {least}.")
    forecast: Forecast = build.kept_policy(kept.config, task, kept.parameters[run : run + 1])
    _, said, truth = zip(*metrics.told(forecast, flight, task.shape, stride, 1), strict=True)
    start, _ = dataset.starts(flight.bounds[:2].cpu(), least, stride)
    sigma = ((0.5 * forecast.doubt).exp() * forecast.spread)[0]
    return Told(
        time=(start + task.window - 1) / RATE,
        said=_columns(torch.cat(said, 1)[0]),
        doubt=torch.cat([sigma[:-1], sigma[-1:].expand(3)]),
        truth=_columns(torch.cat(truth)),
    )


def of_log(kept: Kept, path: Path, mapping: Path | None = None, stride: int = 10, run: int = 0) -> Told:
    """Tell of a log in a file, whether or not it knows the truth.

    Raises:
        ConfigError: What is kept flies, and tells nothing.
        FileError: The log is damaged, lacks a column, or is too short.
    """
    columns = flights.read(path, read_mapping(mapping) if mapping else None)
    known = {name: column for name, column in columns.items() if name not in TRUTH or column.isfinite().all()}
    try:
        return of(kept, dataset.series([known]), stride, run)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def summary(told: Told) -> list[dict[str, Any]]:
    """Sum columns up: ``column, unit, mean, low, high, doubt``, and ``rmse``, which is None where no truth is known."""
    rows = []
    for n, name in enumerate(COLUMNS):
        said, off = told.said[:, n], told.said[:, n] - told.truth[:, n]
        row: dict[str, Any] = {"column": name, "unit": OWN_UNITS[name], "mean": said.mean().item()}
        row |= {"low": said.min().item(), "high": said.max().item(), "doubt": told.doubt[n].item()}
        rows.append(row | {"rmse": off.square().mean().sqrt().item() if off.isfinite().all() else None})
    return rows


def write(told: Told, path: Path) -> None:
    """Write a table as CSV, whole or not at all: time, each column, and its doubt.

    Raises:
        ResourceError: The disk refuses.
    """
    names = ["time", *COLUMNS, *(f"{name}_sd" for name in COLUMNS)]
    values = torch.cat([told.time[:, None], told.said, told.doubt.expand(len(told.time), -1)], 1)
    lines = [",".join(names), *(",".join(f"{value:.6g}" for value in row) for row in values.tolist())]
    with replacing(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _columns(values: Float[Tensor, "M out"]) -> Float[Tensor, "M columns"]:
    laid = by_task(values[None])[0]
    return torch.cat([laid[:, :-1, 0], laid[:, -1]], 1)
