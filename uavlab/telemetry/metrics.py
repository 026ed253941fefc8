"""Scores of a forecast on flights, flight by flight, with bootstrap intervals over flights."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Metric
from uavlab.evaluate import interval
from uavlab.telemetry import dataset
from uavlab.telemetry.dataset import HIDDEN
from uavlab.telemetry.forecaster import TARGETS, Forecast, flatten_targets
from uavlab.telemetry.window_source import Flights

CHUNK = 512  # windows at a time
Z_90 = 1.645  # standard deviations that hold 90 % of normally distributed errors
VARIANCE_FLOOR = 1e-4  # share of the variance in training, for flights in which a target varies less
R2, RMSE, COVERAGE_90, VARIANCE_RATIO = KINDS = ("r2", "rmse", "inside", "variance")  # keys of records
UNITS = dict(zip(TARGETS, ("m/s", "m/s", "kg", "kg/s", "s", "V", "m"), strict=True))
METRICS = (
    Metric("mean_r2", "mean"),
    *(Metric(f"{kind}/{name}", "mean", UNITS[name] if kind == RMSE else "") for kind in KINDS for name in TARGETS),
)
"""``r2``: 1 minus the mean squared error over the variance of the truth. ``inside``: coverage, the share of errors
within the central 90 % interval of the network's own standard deviation. ``variance``: variance of the predictions over
that of the truth; near 0 the network has collapsed to a constant."""


@torch.no_grad()
def predict_windows(
    forecast: Forecast, flights: Flights, shape: tuple[int, int], stride: int, count: int
) -> Iterator[tuple[Tensor, Float[Tensor, "R N out"], Float[Tensor, "N out"]]]:
    """Predict windows ``stride`` rows apart in the first ``count`` flights.

    Yields:
        For a chunk of windows, the flight of each, predictions and true targets.
    """
    device = forecast.log_variance.device
    start, flight = dataset.window_starts(flights.bounds.cpu()[: count + 1], sum(shape), stride)
    for first, own in zip(start.split(CHUNK), flight.split(CHUNK), strict=True):
        rows = flights.gather(first.to(device), *shape)
        inputs = rows.inputs.to(device)
        yield own, forecast(inputs.expand(forecast.runs, *inputs.shape)), flatten_targets(rows)


def figures(
    forecast: Forecast, flights: Flights, shape: tuple[int, int], stride: int, count: int
) -> dict[str, Float[Tensor, "R E"]]:
    """Score each flight, such that means over flights are the scores of all windows.

    Returns:
        One number per run and flight for each of ``METRICS``; ``rmse`` is squared until ``summary``.
    """
    parts = zip(*predict_windows(forecast, flights, shape, stride, count), strict=True)
    flight, values, truth = (torch.cat(part, axis) for part, axis in zip(parts, (0, 1, 0), strict=True))
    values, truth = (by_target(each.double().cpu()) for each in (values, truth[None]))
    center = truth.mean(1, keepdim=True)
    spread = forecast.spread.double().cpu()
    variance = (truth - center).square().mean((1, 3)).clamp_min(VARIANCE_FLOOR * spread[:1].square())  # 1 targets
    sd = (0.5 * forecast.log_variance).exp().double().cpu() * spread
    square = (values - truth).square()
    covered = (square <= (Z_90 * sd[:, None, :, None]).square()).double()

    def average(numbers: Tensor) -> Tensor:
        """Sum over a flight's windows, in units in which a mean over flights is one over windows: R E targets."""
        each = numbers.mean(-1)
        total = each.new_zeros(len(each), int(flight.max()) + 1, each.shape[-1]).index_add_(1, flight, each)
        return total * (total.shape[1] / len(flight))

    mse = average(square)
    kinds = {
        R2: 1 - mse / variance[:, None],
        RMSE: mse,
        COVERAGE_90: average(covered),
        VARIANCE_RATIO: average((values - center).square()) / variance[:, None],
    }
    scores = {f"{kind}/{name}": each[..., n] for kind, each in kinds.items() for n, name in enumerate(TARGETS)}
    return {"mean_r2": kinds[R2].mean(-1), **scores}


def by_target(values: Float[Tensor, "R N out"]) -> Float[Tensor, "R N targets 3"]:
    """Split outputs by target: ``error`` is the last row ahead along three axes, the others are one number thrice."""
    hidden = values[..., : len(HIDDEN), None].expand(*values.shape[:2], len(HIDDEN), 3)
    return torch.cat([hidden, values[..., None, -3:]], 2)


def summary(scores: dict[str, Float[Tensor, "R E"]]) -> dict[str, Any]:
    """Return mean, low and high of each score, by kind and target; of several runs also ``each`` run's mean."""
    result: dict[str, Any] = {}
    for name, values in scores.items():
        kind, _, target = name.partition("/")
        power = 0.5 if kind == RMSE else 1.0
        ends = vars(interval(values))
        row: dict[str, Any] = {end: max(x, 0.0) ** power if power < 1 else x for end, x in ends.items()}
        if kind == COVERAGE_90:
            row["high"] = min(row["high"], 1.0)  # flights of different lengths count as often as they have windows
        if len(values) > 1:
            row["each"] = values.mean(1).pow(power).tolist()
        if target:
            result.setdefault(kind, {})[target] = row
        else:
            result[kind] = row
    return result
