"""Scores of what a network tells of flights that it has not seen, flight by flight, with intervals over flights."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Metric
from uavlab.evaluate import interval
from uavlab.telemetry import dataset
from uavlab.telemetry.dataset import HIDDEN, Series
from uavlab.telemetry.disk_dataset import Spool
from uavlab.telemetry.forecaster import TASKS, outputs

TOGETHER = 512  # windows at a time
WITHIN = 1.645  # standard deviations that hold 90 % of normally distributed errors
LEAST = 1e-4  # of the variance in training: where flights vary less, scores are as if they varied by as much
KINDS = ("r2", "rmse", "inside", "variance")
UNITS = dict(zip(TASKS, ("m/s", "m/s", "kg", "kg/s", "s", "V", "m"), strict=True))
METRICS = (
    Metric("mean_r2", "mean"),
    *(Metric(f"{kind}/{name}", "mean", UNITS[name] if kind == "rmse" else "") for kind in KINDS for name in TASKS),
)
"""``r2``: 1 minus the mean squared error over the variance of the truth. ``inside``: share of errors that the network's
own standard deviation says to be among the smallest 90 %. ``variance``: of what is told, over that of the truth; near 0
the network has collapsed to a constant."""


class Tells(Protocol):
    """What tells of windows (R N T F), in their own units, ``outputs`` in theirs.

    ``doubt`` is the logarithm of the squared error that is to be expected of each task, in units of ``spread``.
    """

    @property
    def runs(self) -> int:
        """How many tell at once."""
        ...

    @property
    def theta(self) -> Tensor:
        """Parameters, where they are."""
        ...

    @property
    def doubt(self) -> Float[Tensor, "R tasks"]:
        """How much is to be expected to be off."""
        ...

    @property
    def spread(self) -> Float[Tensor, "R tasks"]:
        """How much the truth varies."""
        ...

    def __call__(self, windows: Float[Tensor, "R N T F"]) -> Float[Tensor, "R N out"]:
        """Tell."""
        ...


@torch.no_grad()
def told(
    forecast: Tells, flights: Series | Spool, shape: tuple[int, int], stride: int, count: int
) -> Iterator[tuple[Tensor, Float[Tensor, "R N out"], Float[Tensor, "N out"]]]:
    """Tell of windows ``stride`` rows apart in the first ``count`` flights.

    Yields:
        Which flight each of some windows is of, what is told of them, and the truth.
    """
    bounds = flights.bounds.cpu()[: count + 1]
    start, flight = dataset.starts(bounds, sum(shape), stride)
    for some, whose in zip(start.split(TOGETHER), flight.split(TOGETHER), strict=True):
        rows = flights.gathered(some.to(forecast.theta.device), *shape)
        yield (
            whose,
            forecast(rows.inputs.to(forecast.theta.device).expand(forecast.runs, *rows.inputs.shape)),
            outputs(rows),
        )


def figures(
    forecast: Tells, flights: Series | Spool, shape: tuple[int, int], stride: int, count: int
) -> dict[str, Float[Tensor, "R E"]]:
    """Score what is told of each flight, such that means over flights are the scores of all windows.

    Returns:
        One number per run and flight for each of ``METRICS``; ``rmse`` is squared until ``summary``.
    """
    parts = list(told(forecast, flights, shape, stride, count))
    flight, said, truth = (
        torch.cat([p[0] for p in parts]),
        torch.cat([p[1] for p in parts], 1),
        torch.cat([p[2] for p in parts]),
    )
    said, truth = (by_task(each.double().cpu()) for each in (said, truth[None]))
    center = truth.mean(1, keepdim=True)
    spread = forecast.spread.double().cpu()
    variance = (truth - center).square().mean((1, 3)).clamp_min(LEAST * spread[:1].square())  # 1 tasks
    sigma = (0.5 * forecast.doubt).exp().double().cpu() * spread
    off = (said - truth).square()
    inside = (off <= (WITHIN * sigma[:, None, :, None]).square()).double()

    def averaged(values: Tensor) -> Tensor:
        """Sum over a flight's windows, in units in which a mean over flights is one over windows: R E tasks."""
        each = values.mean(-1)
        total = each.new_zeros(len(each), int(flight.max()) + 1, each.shape[-1]).index_add_(1, flight, each)
        return total * (total.shape[1] / len(flight))

    mse, moved = averaged(off), averaged((said - center).square())
    kinds = {
        "r2": 1 - mse / variance[:, None],
        "rmse": mse,
        "inside": averaged(inside),
        "variance": moved / variance[:, None],
    }
    found = {f"{kind}/{name}": values[..., n] for kind, values in kinds.items() for n, name in enumerate(TASKS)}
    return {"mean_r2": kinds["r2"].mean(-1), **found}


def by_task(values: Float[Tensor, "R N out"]) -> Float[Tensor, "R N tasks 3"]:
    """Lay what is told out by task: ``error`` is the last row ahead, along three axes; others are one number."""
    hidden = values[..., : len(HIDDEN), None].expand(*values.shape[:2], len(HIDDEN), 3)
    return torch.cat([hidden, values[..., None, -3:]], 2)


def summary(found: dict[str, Float[Tensor, "R E"]]) -> dict[str, Any]:
    """Give mean, low and high of each score, by kind and target; of several runs also ``each`` run's mean."""
    result: dict[str, Any] = {}
    for name, values in found.items():
        power = 0.5 if name.startswith("rmse/") else 1.0
        ends = vars(interval(values))
        row: dict[str, Any] = {end: max(x, 0.0) ** power if power < 1 else x for end, x in ends.items()}
        if name.startswith("inside/"):
            row["high"] = min(row["high"], 1.0)  # flights of different lengths count as often as they have windows
        if len(values) > 1:
            row["each"] = values.mean(1).pow(power).tolist()
        kind, _, target = name.partition("/")
        if target:
            result.setdefault(kind, {})[target] = row
        else:
            result[kind] = row
    return result
