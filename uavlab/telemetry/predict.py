"""Predictions along one flight: hidden quantities and tracking error ahead, with standard deviations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.storage.files import atomic_write
from uavlab.telemetry import dataset, flights
from uavlab.telemetry.dataset import HIDDEN, FlightDataset
from uavlab.telemetry.flights import Telemetry
from uavlab.telemetry.forecaster import Forecast
from uavlab.telemetry.logs.columns import TRUTH, read_column_map
from uavlab.telemetry.metrics import UNITS, by_target, predict_windows
from uavlab.telemetry.simulation import RATE

COLUMNS = (*HIDDEN, *(f"error_{axis}" for axis in dataset.AXES))
"""Predicted quantities: the hidden quantities now, and the tracking error at the horizon (m)."""

OWN_UNITS = {name: UNITS[name if name in HIDDEN else "error"] for name in COLUMNS}


@dataclass(frozen=True)
class Prediction:
    """Predictions of ``COLUMNS`` for M windows of a flight."""

    time: Float[Tensor, " M"]  # of each window's last row, after the first row of the log (s)
    values: Float[Tensor, "M columns"]
    sd: Float[Tensor, " columns"]  # predicted standard deviation of the errors
    truth: Float[Tensor, "M columns"]  # NaN where the log does not hold it


def require_task(task: Any, preset: str) -> Telemetry:
    """Return the task of a trained run for ``predict``; raise a ConfigError for other presets than telemetry."""
    if not isinstance(task, Telemetry):
        raise ConfigError(f"{preset}: not trained on logs; expected a run of telemetry.")
    return task


def predict(forecast: Forecast, task: Telemetry, flight: FlightDataset, stride: int = 10) -> Prediction:
    """Predict from windows ``stride`` rows apart in the first flight, by the first network of a forecast."""
    rows, least = int(flight.bounds[1]), sum(task.shape)
    if rows < least:
        raise FileError(f"flight: {rows} rows at {RATE} a second; a window and what follows it are {least}.")
    _, values, truth = zip(*predict_windows(forecast, flight, task.shape, stride, 1), strict=True)
    start, _ = dataset.window_starts(flight.bounds[:2].cpu(), least, stride)
    sd = forecast.deviation[0].cpu()
    return Prediction(
        time=(start + task.window - 1) / RATE,
        values=_columns(torch.cat(values, 1)[0].cpu()),
        sd=torch.cat([sd[:-1], sd[-1:].expand(3)]),
        truth=_columns(torch.cat(truth).cpu()),
    )


def predict_log(
    forecast: Forecast, task: Telemetry, path: Path, mapping: Path | None = None, stride: int = 10
) -> Prediction:
    """Predict from windows of a log, whether or not it holds the truth."""
    columns = flights.read(path, read_column_map(mapping) if mapping else None)
    known = {name: column for name, column in columns.items() if name not in TRUTH or column.isfinite().all()}
    try:
        return predict(forecast, task, dataset.concatenate([known]), stride)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def summary(prediction: Prediction) -> list[dict[str, Any]]:
    """Summarise each column by ``column, unit, mean, low, high, sd`` and ``rmse``, which is None without the truth."""
    rows = []
    for n, name in enumerate(COLUMNS):
        values = prediction.values[:, n]
        error = values - prediction.truth[:, n]
        row: dict[str, Any] = {"column": name, "unit": OWN_UNITS[name], "mean": values.mean().item()}
        row |= {"low": values.min().item(), "high": values.max().item(), "sd": prediction.sd[n].item()}
        rows.append(row | {"rmse": error.square().mean().sqrt().item() if error.isfinite().all() else None})
    return rows


def write_csv(prediction: Prediction, path: Path) -> None:
    """Write the time, each column and its sd to a CSV file; a ResourceError leaves no file."""
    names = ["time", *COLUMNS, *(f"{name}_sd" for name in COLUMNS)]
    time = prediction.time
    values = torch.cat([time[:, None], prediction.values, prediction.sd.expand(len(time), -1)], 1)
    lines = [",".join(names), *(",".join(f"{value:.6g}" for value in row) for row in values.tolist())]
    with atomic_write(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _columns(values: Float[Tensor, "M out"]) -> Float[Tensor, "M columns"]:
    targets = by_target(values[None])[0]
    return torch.cat([targets[:, :-1, 0], targets[:, -1]], 1)
