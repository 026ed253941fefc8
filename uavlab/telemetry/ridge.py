"""The plainest thing that can be learned from windows: a linear map, by least squares with a penalty."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.telemetry import dataset, metrics
from uavlab.telemetry.dataset import HIDDEN, Scale
from uavlab.telemetry.forecaster import outputs
from uavlab.telemetry.window_source import Sets

TOGETHER = 1000  # windows at a time
MOST = 40_000  # windows that it learns from
PENALTIES = (1e1, 1e2, 1e3, 1e4, 1e5)


@dataclass(frozen=True)
class Ridge:
    """Tells of windows as a ``Forecast`` does."""

    theta: Float[Tensor, "TF+1 out"]  # of normalised windows, the constant last
    scale: Scale
    doubt: Float[Tensor, "1 tasks"]
    spread: Float[Tensor, "1 tasks"]
    runs: int = 1

    def __call__(self, windows: Float[Tensor, "1 N T F"]) -> Float[Tensor, "1 N out"]:
        """Tell."""
        flat = ((windows - self.scale.center) / self.scale.spread).flatten(2)
        return flat @ self.theta[:-1] + self.theta[-1]


def fitted(sets: Sets, shape: tuple[int, int], stride: int) -> Ridge:
    """Fit to windows of the training flights, with the penalty that is best on those of validation.

    Source:
        Hoerl and Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", eq. 2.1.
    """
    found, _ = dataset.starts(sets.training.bounds.cpu(), sum(shape), stride)
    found = found[:: -(-len(found) // MOST)].to(sets.inputs.center.device)
    size = shape[0] * len(sets.inputs.center)
    told = len(HIDDEN) + 3 * shape[1]
    square, product, squares = torch.zeros(size + 1, size + 1), torch.zeros(size + 1, told), torch.zeros(told)
    for some in found.split(TOGETHER):
        rows = sets.training.gathered(some, *shape)
        flat = torch.nn.functional.pad(rows.inputs.flatten(1), (0, 1), value=1.0)
        square, product = square + flat.T @ flat, product + flat.T @ outputs(rows)
        squares = squares + outputs(rows).square().sum(0)
    spread = torch.cat(
        [sets.hidden.spread[: len(HIDDEN)], sets.hidden.spread[len(HIDDEN) :].square().mean().sqrt()[None]]
    )

    def solved(penalty: float) -> Ridge:
        diagonal = torch.full((size + 1,), penalty)
        diagonal[-1] = 0.0  # the constant is free
        theta = torch.linalg.solve((square + diagonal.diag()).double(), product.double()).float()
        left = (squares - 2 * (theta * product).sum(0) + (theta * (square @ theta)).sum(0)).clamp_min(0) / len(found)
        left = torch.cat([left[: len(HIDDEN)], left[len(HIDDEN) :].mean()[None]])
        return Ridge(theta, sets.inputs, (left / spread.square()).clamp_min(1e-9).log()[None], spread[None])

    def score(ridge: Ridge) -> float:
        return float(metrics.figures(ridge, sets.validation, shape, 5 * stride, 10**6)["mean_r2"].mean())

    return max((solved(penalty) for penalty in PENALTIES), key=score)
