"""A temporal convolutional network that tells hidden quantities of a flight, and where it will go, from its log."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.core.protocols import CheckedTensors
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Update, tree_map
from uavlab.nets.tcn import StackedTCN
from uavlab.runtime.grad_step import MOMENTS
from uavlab.runtime.oom_retry import Rows
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry.augment import turned
from uavlab.telemetry.dataset import FEATURES, HIDDEN, Scale, Windows
from uavlab.telemetry.physics_loss import residuals

TASKS = (*HIDDEN, "error")  # the last: how far from its reference, over all rows ahead


@dataclass(frozen=True)
class ForecasterConfig:
    """Hyper-parameters.

    Attributes:
        width: Channels of each convolution.
        hidden: Width of the layer after them.
        lr: Adam's learning rate.
        clip: Largest gradient norm.
        average: Share of itself that the averaged network keeps in an update.
        weights: Of the targets' errors in the loss: all the same, or learned with it.
        physics: Weight of the equations of flight in the loss.
        turned: Every window is turned about the vertical by an angle of its own.
    """

    width: Annotated[int, Ge(1), Le(4096)] = 64
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    lr: Annotated[float, Gt(0), Le(1)] = 1e-3
    clip: Annotated[float, Gt(0)] = 1.0
    average: Annotated[float, Ge(0), Le(1)] = 0.998
    weights: Literal["fixed", "learned"] = "fixed"
    physics: Annotated[float, Ge(0), Le(1000)] = 0.0
    turned: Literal["off", "on"] = "on"


class Forecaster:
    """Learner over R runs whose state is two matrices with a row for each run, and an Adam.

    What flies is an average over updates, which needs no schedule and no end to be known for the network to settle.

    Source:
        Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging", here with weights that fade.
    """

    def __init__(
        self, config: ForecasterConfig, shape: tuple[int, int], inputs: Scale, targets: Scale, rng: Streams, rt: Runtime
    ) -> None:
        """Draw first parameters from each run's own stream.

        Args:
            config: Hyper-parameters.
            shape: Rows of a window, and rows ahead.
            inputs: How windows were normalised.
            targets: Of ``outputs``, where they lie and how much they vary.
            rng: Random streams.
            rt: How it runs.
        """
        self.config, self.shape, self.runs = config, shape, len(rng.seeds)
        self.inputs, self.targets = (tree_map(lambda leaf: leaf.to(rng.dtype), each) for each in (inputs, targets))
        self.net = network(config, shape)
        theta = self.net.initial(rng.uniform("network", self.net.count))
        doubt = torch.zeros(self.runs, len(TASKS), dtype=theta.dtype, device=theta.device)  # log of the error's square
        self.step = rt.grad(torch.cat([theta, doubt], 1), config.lr, config.clip)
        self.average = self.step.parameter.detach().clone()
        self._loss = rt.kernel(self.loss, "forecast_loss", part=True)
        self._descend = rt.update(self._one_step, "forecaster")

    def policy(self, spec: Any = None, explore: bool = False) -> "Forecast":
        """Give the averaged network: windows in their own units to ``outputs`` in theirs."""
        return predictor(self.net, self.parameters())

    def parameters(self) -> Float[Tensor, "R 1 P"]:
        """Copy the averaged network, and with it how its inputs and outputs are to be scaled."""
        scales = torch.cat([self.inputs.center, self.inputs.spread, self.targets.center, self.targets.spread])
        return torch.cat([self.average, scales.expand(self.runs, -1)], 1)[:, None]

    def update_noise(self, rng: Streams, rows: int) -> Float[Tensor, "R rows"]:
        """Draw how far each window is turned."""
        return rng.uniform("turn", rows)

    def update(self, batch: Batch, noise: Float[Tensor, "R rows"]) -> Update:
        """Take one gradient step."""
        return Update(self._descend(batch.data, noise))

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        """Name all parameters and moments, or all that ``update`` returned."""
        if update is not None:
            return {name: (value, "R") for name, value in update.metrics.items()}
        state = self.step.state_dict()
        return {
            **{f"network.{key}": (state[key], "R") for key in ("parameter", *MOMENTS[1:])},
            "average": (self.average, "R"),
        }

    def loss(self, theta: Float[Tensor, "R P"], rows: Windows) -> tuple[Tensor, dict[str, Any]]:
        """Sum over runs of the mean squared errors of standardised targets, and of what equations of flight miss.

        Source:
            Kendall, Gal and Cipolla 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", eq. 7, for learned
            weights; fixed ones are all 1, and the doubt follows the errors alone.
        """
        network, doubt = theta.split([self.net.count, len(TASKS)], 1)
        said = self.net(network, rows.inputs)
        off = (said - (outputs(rows) - self.targets.center) / self.targets.spread).square()
        hidden = off[..., : len(HIDDEN)]
        errors = torch.cat([hidden, off[..., len(HIDDEN) :].mean(-1, keepdim=True)], -1).mean(1)  # R tasks
        sure = 0.5 * (torch.exp(-doubt) * (errors.detach() if self.config.weights == "fixed" else errors) + doubt)
        mean = sure.sum(-1) + (0.5 * errors.sum(-1) if self.config.weights == "fixed" else 0.0)
        told = {f"mse/{name}": value for name, value in zip(TASKS, errors.detach().unbind(-1), strict=True)}
        if self.config.physics:
            missed = self.missed(rows, said)
            mean = mean + self.config.physics * missed
            told["physics"] = missed.detach()
        return mean.sum(), {**told, "loss": mean.detach()}

    def missed(self, rows: Windows, said: Float[Tensor, "R N out"]) -> Float[Tensor, " R"]:
        """Average how far the equations of flight are from holding, in standard deviations of the noise, squared.

        What is far off counts by its distance alone: a step in the truth must not outweigh all else.
        """
        count = len(HIDDEN)
        hidden = said[..., :count] * self.targets.spread[:count] + self.targets.center[:count]
        with torch.autocast(rows.inputs.device.type, enabled=False):  # only networks bear fewer digits
            found = residuals(rows.inputs * self.inputs.spread + self.inputs.center, hidden)
        parts = [
            torch.nn.functional.huber_loss(r, torch.zeros_like(r), reduction="none", delta=3.0) for r in found.values()
        ]
        return torch.stack([part.flatten(1).mean(1) for part in parts]).sum(0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, Adam's moments and the average."""
        return {**{f"network.{key}": value for key, value in self.step.state_dict().items()}, "average": self.average}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.step.load_state_dict({k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")})
        self.average.copy_(state["average"])

    def _one_step(self, rows: Windows, turn: Tensor) -> dict[str, Float[Tensor, " R"]]:
        rows = tree_map(lambda leaf: leaf.to(self.average.dtype), rows)
        if self.config.turned == "on":
            rows = turned(rows, turn, self.inputs)
        told, norm = self.step(self._loss, self.step.parameter, Rows(rows, 1))
        self.average.lerp_(self.step.parameter.detach(), 1 - self.config.average)
        return {**told, "norm": norm}


def outputs(rows: Windows) -> Float[Tensor, "*lead out"]:
    """Lay out what is to be told: ``HIDDEN``, then row by row how far from the reference."""
    return torch.cat([rows.truth, rows.astray.flatten(-2)], -1)


def network(config: ForecasterConfig, shape: tuple[int, int]) -> StackedTCN:
    """Describe the network."""
    return StackedTCN(len(FEATURES), shape[0], config.width, config.hidden, len(HIDDEN) + 3 * shape[1])


def size(config: ForecasterConfig, shape: tuple[int, int]) -> int:
    """Count the numbers that are kept of a run."""
    net = network(config, shape)
    return net.count + len(TASKS) + 2 * (net.inputs + net.outputs)


@dataclass(frozen=True)
class Forecast:
    """A function from windows to outputs, both in their own units.

    Attributes:
        net: The network.
        theta: Its parameters.
        doubt: Logarithm of the squared error that is to be expected, by task, in units of ``spread``.
        scales: Of inputs and outputs, centers and spreads.
    """

    net: StackedTCN
    theta: Float[Tensor, "R P"]
    doubt: Float[Tensor, "R tasks"]
    scales: tuple[Tensor, ...]

    @property
    def runs(self) -> int:
        """How many networks tell at once."""
        return len(self.theta)

    @property
    def spread(self) -> Float[Tensor, "R tasks"]:
        """How much the truth varies."""
        return self.scales[3][:, : len(TASKS)]  # errors ahead all have the same

    @torch.no_grad()
    def __call__(self, windows: Float[Tensor, "R N T F"], noise: None = None) -> Float[Tensor, "R N out"]:
        """Tell."""
        center, spread, out_center, out_spread = (each[:, None] for each in self.scales)
        return self.net(self.theta, (windows - center[:, :, None]) / spread[:, :, None]) * out_spread + out_center


def predictor(net: StackedTCN, parameters: Float[Tensor, "R 1 P"]) -> Forecast:
    """Unpack what ``Forecaster.parameters`` packed."""
    sizes = [net.count, len(TASKS), net.inputs, net.inputs, net.outputs, net.outputs]
    theta, doubt, *scales = parameters[:, 0].split(sizes, 1)
    return Forecast(net, theta, doubt, tuple(scales))
