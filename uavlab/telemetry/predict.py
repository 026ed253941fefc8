"""Predictions along a flight with standard deviations, scores per flight with intervals, and ridge regression."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.types import Metric, Scale
from uavlab.evaluation import interval
from uavlab.storage.files import atomic_write
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.flights import AXES, HIDDEN, FlightDataset, Telemetry
from uavlab.telemetry.forecaster import TARGETS, UNITS, Forecast, flatten_targets, target_scale
from uavlab.telemetry.logs.columns import TRUTH, read_column_map
from uavlab.telemetry.simulation import RATE
from uavlab.telemetry.window_source import DataSplit

CHUNK = 512  # windows predicted at a time
FITTED = 1000  # windows at a time in the fit of the linear baseline
MOST = 40_000  # windows in its fit, at most
PENALTIES = (1e1, 1e2, 1e3, 1e4, 1e5)
Z_90 = 1.645  # standard deviations within which 90 % of normally distributed errors lie
VARIANCE_FLOOR = 1e-4  # least variance of a target in a score, as a share of its variance in training
R2, RMSE, COVERAGE_90, VARIANCE_RATIO = KINDS = ("r2", "rmse", "inside", "variance")  # keys of records
BOUNDS = {R2: (-math.inf, 1.0), RMSE: (0.0, math.inf), COVERAGE_90: (0.0, 1.0), VARIANCE_RATIO: (0.0, math.inf)}
METRICS = (
    Metric("mean_r2", "mean", bounds=BOUNDS[R2]),
    *(
        Metric(f"{kind}/{name}", "mean", UNITS[name] if kind == RMSE else "", bounds=BOUNDS[kind])
        for kind in KINDS
        for name in TARGETS
    ),
)
"""``r2``: 1 minus the mean squared error over the variance of the truth. ``inside``: coverage, the share of errors
within the central 90 % interval by the predicted standard deviation. ``variance``: mean squared deviation of
predictions from the mean truth, over the variance of the truth; near 0, predictions are constant."""

COLUMNS = (*HIDDEN, *(f"error_{axis}" for axis in AXES))
"""Predicted quantities: the hidden quantities now, and the tracking error at the horizon (m)."""

OWN_UNITS = {name: UNITS[name if name in HIDDEN else "error"] for name in COLUMNS}


@torch.no_grad()
def predict_windows(
    forecast: Forecast, flights: FlightDataset, shape: tuple[int, int], stride: int, count: int
) -> Iterator[tuple[Tensor, Float[Tensor, "R N out"], Float[Tensor, "N out"]]]:
    """Yield flights, predictions and true targets of chunks of windows in the first ``count`` flights (host sync)."""
    device = forecast.log_variance.device
    start, flight = fleet.window_starts(flights.bounds.cpu()[: count + 1], sum(shape), stride)
    for first, numbers in zip(start.split(CHUNK), flight.split(CHUNK), strict=True):
        rows = flights.gather(first.to(flights.bounds.device), *shape)
        inputs = rows.inputs.to(device)
        yield numbers, forecast(inputs.expand(forecast.runs, *inputs.shape)), flatten_targets(rows)


def figures(
    forecast: Forecast, flights: FlightDataset, shape: tuple[int, int], stride: int, count: int
) -> dict[str, Float[Tensor, "R E"]]:
    """Score each flight, scaled such that means over flights are the scores over all windows (host sync).

    Returns:
        One number per run and flight for each of ``METRICS``; ``rmse`` holds squares, see ``summarise_scores``.
    """
    parts = zip(*predict_windows(forecast, flights, shape, stride, count), strict=True)
    flight, values, truth = (torch.cat(part, axis) for part, axis in zip(parts, (0, 1, 0), strict=True))
    values, truth = (by_target(outputs.double().cpu()) for outputs in (values, truth[None]))
    center = truth.mean(1, keepdim=True)
    spread = forecast.spread.double().cpu()
    variance = (truth - center).square().mean((1, 3)).clamp_min(VARIANCE_FLOOR * spread[:1].square())  # 1 targets
    sd = (0.5 * forecast.log_variance).exp().double().cpu() * spread
    square = (values - truth).square()
    covered = (square <= (Z_90 * sd[:, None, :, None]).square()).double()

    def average(numbers: Tensor) -> Tensor:
        """Sum over each flight's windows (R E targets), scaled such that means over flights are means over windows."""
        mean = numbers.mean(-1)
        total = mean.new_zeros(len(mean), int(flight.max()) + 1, mean.shape[-1]).index_add_(1, flight, mean)
        return total * (total.shape[1] / len(flight))

    mse = average(square)
    kinds = {
        R2: 1 - mse / variance[:, None],
        RMSE: mse,
        COVERAGE_90: average(covered),
        VARIANCE_RATIO: average((values - center).square()) / variance[:, None],
    }
    scores = {f"{kind}/{name}": rows[..., n] for kind, rows in kinds.items() for n, name in enumerate(TARGETS)}
    return {"mean_r2": kinds[R2].mean(-1), **scores}


def by_target(values: Float[Tensor, "R N out"]) -> Float[Tensor, "R N targets 3"]:
    """Split outputs by target: ``error`` is the last row ahead along three axes, other targets are repeated thrice."""
    hidden = values[..., : len(HIDDEN), None].expand(*values.shape[:2], len(HIDDEN), 3)
    return torch.cat([hidden, values[..., None, -3:]], 2)


def summarise_scores(scores: Mapping[str, Float[Tensor, "R E"]]) -> dict[str, Any]:
    """Return mean, low and high of each score by kind and target, and for several runs ``each`` run's mean."""
    result: dict[str, Any] = {}
    bounds = {metric.name: metric.bounds for metric in METRICS}
    for name, values in scores.items():
        kind, _, target = name.partition("/")
        power = 0.5 if kind == RMSE else 1.0
        row: dict[str, Any] = {end: x**power for end, x in vars(interval(values, bounds=bounds[name])).items()}
        if len(values) > 1:
            row["each"] = values.mean(1).pow(power).tolist()
        if target:
            result.setdefault(kind, {})[target] = row
        else:
            result[kind] = row
    return result


def fit_ridge(sets: DataSplit, shape: tuple[int, int], stride: int) -> Forecast:
    """Fit ridge regression to windows of the training flights; select the penalty by R^2 on validation flights.

    Source:
        Hoerl and Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", eq. 2.1.
    """
    starts, _ = fleet.window_starts(sets.training.bounds.cpu(), sum(shape), stride)
    starts = starts[:: -(-len(starts) // MOST)].to(sets.training.bounds.device)
    size, out, count = shape[0] * len(sets.inputs.center), len(HIDDEN) + 3 * shape[1], len(HIDDEN)
    square = sets.inputs.center.new_zeros(size + 1, size + 1, dtype=torch.float64)  # float32 loses digits of long sums
    product, squares = square.new_zeros(size + 1, out), square.new_zeros(out)
    for chunk in starts.split(FITTED):
        rows = sets.training.gather(chunk, *shape)
        flat, targets = (part.to(square) for part in (rows.inputs.flatten(1), flatten_targets(rows)))
        flat = torch.nn.functional.pad(flat, (0, 1), value=1.0)
        square, product = square + flat.T @ flat, product + flat.T @ targets
        squares = squares + targets.square().sum(0)
    spread = target_scale(sets.hidden, shape[1]).spread[: count + 1]
    inputs = Scale(sets.inputs.center[None], sets.inputs.spread[None])

    def solve(penalty: float) -> Forecast:
        diagonal = square.new_full((size + 1,), penalty)
        diagonal[-1] = 0.0  # no penalty on the constant
        exact = torch.linalg.solve(square + diagonal.diag(), product)
        left = (squares - 2 * (exact * product).sum(0) + (exact * (square @ exact)).sum(0)).clamp_min(0) / len(starts)
        variance = torch.cat([left[:count], left[count:].mean()[None]]).float() / spread.square()
        theta = exact.float()

        def function(windows: Float[Tensor, "1 N T F"]) -> Float[Tensor, "1 N out"]:
            return windows.flatten(2) @ theta[:-1] + theta[-1]

        return Forecast(function, inputs, variance.clamp_min(1e-9).log()[None], spread[None])

    def score(forecast: Forecast) -> float:
        return float(figures(forecast, sets.validation, shape, 5 * stride, 10**6)["mean_r2"].mean())

    return max((solve(penalty) for penalty in PENALTIES), key=score)


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
    start, _ = fleet.window_starts(flight.bounds[:2].cpu(), least, stride)
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
    columns = fleet.read(path, read_column_map(mapping) if mapping else None)
    known = {name: column for name, column in columns.items() if name not in TRUTH or column.isfinite().all()}
    try:
        return predict(forecast, task, fleet.concatenate([known]), stride)
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
