"""The linear baseline: ridge regression from windows to targets."""

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Scale
from uavlab.telemetry import dataset, metrics
from uavlab.telemetry.dataset import HIDDEN
from uavlab.telemetry.forecaster import Forecast, flatten_targets, target_scale
from uavlab.telemetry.window_source import DataSplit

CHUNK = 1000  # windows at a time
MOST = 40_000  # windows of the training flights
PENALTIES = (1e1, 1e2, 1e3, 1e4, 1e5)


def fit_ridge(sets: DataSplit, shape: tuple[int, int], stride: int) -> Forecast:
    """Fit to windows of the training flights, with the penalty that scores best on those of validation.

    Source:
        Hoerl and Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", eq. 2.1.
    """
    starts, _ = dataset.window_starts(sets.training.bounds.cpu(), sum(shape), stride)
    starts = starts[:: -(-len(starts) // MOST)].to(sets.inputs.center.device)
    size, out, count = shape[0] * len(sets.inputs.center), len(HIDDEN) + 3 * shape[1], len(HIDDEN)
    square, product, squares = torch.zeros(size + 1, size + 1), torch.zeros(size + 1, out), torch.zeros(out)
    for chunk in starts.split(CHUNK):
        rows = sets.training.gather(chunk, *shape)
        flat, targets = torch.nn.functional.pad(rows.inputs.flatten(1), (0, 1), value=1.0), flatten_targets(rows)
        square, product = square + flat.T @ flat, product + flat.T @ targets
        squares = squares + targets.square().sum(0)
    spread = target_scale(sets.hidden, shape[1]).spread[: count + 1]
    inputs = Scale(sets.inputs.center[None], sets.inputs.spread[None])

    def solve(penalty: float) -> Forecast:
        diagonal = torch.full((size + 1,), penalty)
        diagonal[-1] = 0.0  # the constant is free
        theta = torch.linalg.solve((square + diagonal.diag()).double(), product.double()).float()
        left = (squares - 2 * (theta * product).sum(0) + (theta * (square @ theta)).sum(0)).clamp_min(0) / len(starts)
        variance = torch.cat([left[:count], left[count:].mean()[None]]) / spread.square()

        def function(windows: Float[Tensor, "1 N T F"]) -> Float[Tensor, "1 N out"]:
            return windows.flatten(2) @ theta[:-1] + theta[-1]

        return Forecast(function, inputs, variance.clamp_min(1e-9).log()[None], spread[None])

    def score(forecast: Forecast) -> float:
        return float(metrics.figures(forecast, sets.validation, shape, 5 * stride, 10**6)["mean_r2"].mean())

    return max((solve(penalty) for penalty in PENALTIES), key=score)
