"""A temporal convolutional network that predicts hidden quantities and the tracking error ahead from a flight log.

Its losses: squared errors, and residuals of the equations of flight in windows. Rotations about the vertical leave both
unchanged, so they augment the data.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss

from uavlab.core.errors import ConfigError
from uavlab.core.portable import Layers, Portable, Signal, Signals
from uavlab.core.registry import Resume, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Symptoms, higher, times
from uavlab.core.types import Batch, Scale, Update, tree_map
from uavlab.learners.learner import Learner
from uavlab.nets.sequences import StackedTCN
from uavlab.ops.geometry import constant
from uavlab.runtime.grad_step import Rows
from uavlab.runtime.runtime import Runtime
from uavlab.telemetry.flights import AXES, FEATURES, HIDDEN, MOTORS, PHYSICS_ROWS, TURNS, Windows
from uavlab.telemetry.simulation import ACCELEROMETER, CURRENT, GYROSCOPE, RATE, VOLTAGE, Quadrotor

TARGETS = (*HIDDEN, "error")  # error: tracking error over all rows ahead
UNITS = dict(zip(TARGETS, ("m/s", "m/s", "kg", "kg/s", "s", "V", "m"), strict=True))
FEATURE_UNITS = {
    **{"tracking_error": "m", "velocity": "m/s", "commanded_velocity": "m/s", "force": "m/s^2", "thrust": "m/s^2"},
    **{"rate": "rad/s", "lean": "1", "motor": "share", "voltage": "V", "current": "A", "spin": "rad/s^2"},
    "command": "1",
}
"""Units of ``FEATURES`` by how their names begin; the first that fits counts."""


@dataclass(frozen=True)
class ForecasterConfig:
    """Hyper-parameters.

    Attributes:
        width: Channels of each convolution.
        hidden: Width of the layer after the convolutions.
        lr: Adam's learning rate.
        clip: Largest gradient norm.
        average: Decay of the exponential moving average of parameters, per update.
        weights: Weights of the targets' errors in the loss: all equal, or learned.
        physics: Weight of the physics residual loss.
        turned: Data augmentation: rotates each window about the vertical by a random angle.
    """

    width: Annotated[int, Ge(1), Le(4096)] = 64
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 1.0
    average: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.998
    weights: Literal["fixed", "learned"] = "fixed"
    physics: Annotated[float, Ge(0), Le(1000), Resume.YES] = 0.0
    turned: Literal["off", "on"] = "on"


def network(config: ForecasterConfig, shape: tuple[int, int]) -> StackedTCN:
    """Return the network, without parameters."""
    return StackedTCN(len(FEATURES), shape[0], config.width, config.hidden, len(HIDDEN) + 3 * shape[1])


def _layers(config: ForecasterConfig, shape: tuple[int, int]) -> Layers:
    """Return the layout of ``Forecaster.parameters``."""
    net = network(config, shape)
    sizes = {"inputs": net.inputs, "targets": net.outputs}
    scales = {name: {"center": (count,), "spread": (count,)} for name, count in sizes.items()}
    return {**net.by_layer, "log_variance": {"targets": (len(TARGETS),)}, **scales}


def _portable_inputs(shape: tuple[int, int]) -> Signals:
    """Return the input of an exported forecaster: a window of a log in physical units."""
    units = tuple(next(unit for start, unit in FEATURE_UNITS.items() if name.startswith(start)) for name in FEATURES)
    window = Signal(
        axes={"row": shape[0], "feature": len(FEATURES)},
        about=f"rows of a window at {RATE} per second, oldest first; uavlab.telemetry.flights computes them",
        unit=units,
        names=FEATURES,
        normalisation="inside the file, by networks.0.inputs.center and networks.0.inputs.spread",
    )
    return {"window": window}


def _portable_outputs(shape: tuple[int, int]) -> Signals:
    """Return the outputs of an exported forecaster: predictions and their standard deviations."""
    names = (*HIDDEN, *(f"error_{axis}_{row}" for row in range(1, shape[1] + 1) for axis in AXES))
    units = tuple(UNITS[name if name in HIDDEN else "error"] for name in names)
    about = "hidden quantities at the last row of the window, then the tracking error in each row ahead"
    signal = Signal({"target": len(names)}, about, units, names=names)
    return {"mean": signal, "standard_deviation": replace(signal, about=f"standard deviation of {about}")}


def predict_with_deviation(forecast: "Forecast", window: Float[Tensor, "N T F"]) -> tuple[Tensor, Tensor]:
    """Return predictions and their standard deviations for windows, both in physical units."""
    mean, deviation = forecast(window[None])[0], forecast.deviation[0]
    ahead = deviation[-1:].expand(mean.shape[1] - len(HIDDEN))  # one for all rows and axes
    return mean, torch.cat([deviation[:-1], ahead]).repeat(mean.shape[0], 1)


class Forecaster(Learner):
    """Learner over R runs, with parameters and log variances in one matrix, and their moving average in another.

    The policy is the average over updates, which needs no schedule of learning rates.

    Source:
        Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging", here with decaying weights.
    """

    settings = ForecasterConfig
    collector = "windows"
    inapplicable: ClassVar[Mapping[str, str]] = {}
    portable = Portable(_portable_inputs, _portable_outputs, predict_with_deviation, _layers)
    symptoms = Symptoms(
        loss="mse/error",
        remedies={
            "loss_grows": (times("lr", 0.3, least=1e-6),),
            "scores_still": (higher("lr", 1e-4, 1e-3), times("lr", 3, most=1e-2)),
        },
    )

    def __init__(
        self, config: ForecasterConfig, shape: tuple[int, int], inputs: Scale, targets: Scale, rng: Streams, rt: Runtime
    ) -> None:
        """Draw first parameters; windows were normalised by ``inputs``, and ``targets`` scale ``flatten_targets``."""
        self.config, self.shape, self.runs = config, shape, len(rng.seeds)
        self.inputs, self.targets = (tree_map(lambda leaf: leaf.to(rng.dtype), scale) for scale in (inputs, targets))
        self.net = network(config, shape)
        theta = self.net.initial(rng.uniform("network", self.net.count))
        log_variance = torch.zeros(self.runs, len(TARGETS), dtype=theta.dtype, device=theta.device)
        self.network = rt.grad(torch.cat([theta, log_variance], 1), config.lr, config.clip)
        self.average = self.network.parameter.detach().clone()
        self._loss = rt.kernel(self.loss, "forecast_loss", part=True)
        self._descend = rt.update(self._one_step, "forecaster")

    @classmethod
    def build(cls, config: Settings, inputs: Any, rng: Streams, rt: Runtime) -> "Forecaster":
        """Build the forecaster; ``inputs`` are the flights."""
        outputs = target_scale(inputs.hidden, config.env.horizon)
        return cls(config.learner, config.env.spec, inputs.inputs, outputs, rng, rt)

    @classmethod
    def load_policy(cls, hyper: Any, trained: Any, spec: Any, parameters: Float[Tensor, "R 1 P"]) -> Any:
        return predictor(network(hyper, trained), parameters)

    @classmethod
    def unsupported(cls, spec: Any) -> str | None:
        return None if isinstance(spec, tuple) else "it learns from windows of logs; this one flies"

    @classmethod
    def require_same(cls, hyper: Any, trained: Any, spec: Any) -> None:
        if trained != spec:
            raise ConfigError(
                f"eval_window, eval_horizon: {spec} differ from window, horizon {trained}; a network predicts from "
                "windows as large as those it was trained on."
            )

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        return {"parameters": cls.size(config.learner, config.env.spec)}

    def policy(self, spec: Any = None, explore: bool = False) -> "Forecast":
        """Return the averaged network as a ``Forecast``."""
        return predictor(self.net, self.parameters())

    def parameters(self) -> Float[Tensor, "R 1 P"]:
        """Copy the averaged network with its log variances and the scales of its inputs and outputs."""
        scales = torch.cat([self.inputs.center, self.inputs.spread, self.targets.center, self.targets.spread])
        return torch.cat([self.average, scales.expand(self.runs, -1)], 1)[:, None]

    def update_noise(self, rng: Streams, rows: int) -> Float[Tensor, "R rows"]:
        """Draw the share of a full turn by which each window is rotated."""
        return rng.uniform("turn", rows)

    def update(self, batch: Batch, noise: Float[Tensor, "R rows"]) -> Update:
        return Update(self._descend(batch.data, noise))

    def loss(self, theta: Float[Tensor, "R P"], rows: Windows) -> tuple[Tensor, dict[str, Any]]:
        """Sum over runs and targets of 0.5 (exp(-s) e + s), plus the weighted physics residual loss.

        e is the mean squared error of a standardised target, s its log variance. With fixed weights, exp(-s) e has no
        gradient by e, and 0.5 e is added.

        Source:
            Kendall, Gal and Cipolla 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", eq. 7.
        """
        network, log_variance = theta.split([self.net.count, len(TARGETS)], 1)
        output = self.net(network, rows.inputs)
        square = (output - (flatten_targets(rows) - self.targets.center) / self.targets.spread).square()
        hidden, ahead = square[..., : len(HIDDEN)], square[..., len(HIDDEN) :].mean(-1, keepdim=True)
        errors = torch.cat([hidden, ahead], -1).mean(1)  # R targets
        fixed = self.config.weights == "fixed"
        likelihood = 0.5 * (torch.exp(-log_variance) * (errors.detach() if fixed else errors) + log_variance)
        mean = likelihood.sum(-1) + (0.5 * errors.sum(-1) if fixed else 0.0)
        metrics = {f"mse/{name}": value for name, value in zip(TARGETS, errors.detach().unbind(-1), strict=True)}
        if self.config.physics:
            physics = self.physics_residual_loss(rows, output)
            mean = mean + self.config.physics * physics
            metrics["physics"] = physics.detach()
        return mean.sum(), {**metrics, "loss": mean.detach()}

    def physics_residual_loss(self, rows: Windows, output: Float[Tensor, "R N out"]) -> Float[Tensor, " R"]:
        """Sum the mean Huber losses of the residuals, whose unit is the standard deviation of the sensors' noise.

        The Huber loss limits the effect of steps in the truth.
        """
        count = len(HIDDEN)
        hidden = output[..., :count] * self.targets.spread[:count] + self.targets.center[:count]
        with torch.autocast(rows.inputs.device.type, enabled=False):  # only networks tolerate fewer digits
            parts = residuals(rows.inputs * self.inputs.spread + self.inputs.center, hidden).values()
        losses = [huber_loss(part, torch.zeros_like(part), reduction="none", delta=3.0) for part in parts]
        return torch.stack([loss.flatten(1).mean(1) for loss in losses]).sum(0)

    def _one_step(self, rows: Windows, turn: Tensor) -> dict[str, Float[Tensor, " R"]]:
        rows = tree_map(lambda leaf: leaf.to(self.average.dtype), rows)
        if self.config.turned == "on":
            rows = rotate_windows(rows, turn, self.inputs)
        metrics, norm = self.network(self._loss, self.network.parameter, Rows(rows, 1))
        self.average.lerp_(self.network.parameter.detach(), 1 - self.config.average)
        return {**metrics, "norm": norm}


def flatten_targets(rows: Windows) -> Float[Tensor, "*lead out"]:
    """Return ``HIDDEN``, then the tracking error row by row, as one vector per window."""
    return torch.cat([rows.truth, rows.tracking_error.flatten(-2)], -1)


def target_scale(hidden: Scale, horizon: int) -> Scale:
    """Return the scale of ``flatten_targets``; errors ahead have center 0 and one spread."""
    count = len(HIDDEN)
    center = torch.cat([hidden.center[:count], torch.zeros_like(hidden.center[count:]).repeat(horizon)])
    spread = hidden.spread[count:].square().mean().sqrt().expand(3 * horizon)  # one for all axes
    return Scale(center, torch.cat([hidden.spread[:count], spread]))


@dataclass(frozen=True)
class Forecast:
    """A function from windows to ``flatten_targets``, both in physical units, for R runs."""

    function: Callable[[Tensor], Tensor]  # from normalised windows (R N T F) to targets in physical units (R N out)
    inputs: Scale  # of the windows
    log_variance: Float[Tensor, "R targets"]  # logarithm of the expected squared error, in units of ``spread``
    spread: Float[Tensor, "R targets"]  # standard deviation of each target in training

    @property
    def runs(self) -> int:
        """Number of runs (R)."""
        return len(self.log_variance)

    @property
    def deviation(self) -> Float[Tensor, "R targets"]:
        """Predicted standard deviation of each target's errors, in physical units."""
        return (0.5 * self.log_variance).exp() * self.spread

    @torch.no_grad()
    def __call__(self, windows: Float[Tensor, "R N T F"], noise: Tensor | None = None) -> Float[Tensor, "R N out"]:
        """Predict targets."""
        center, spread = (part[:, None, None] for part in (self.inputs.center, self.inputs.spread))
        return self.function((windows - center) / spread)


def predictor(net: StackedTCN, parameters: Float[Tensor, "R 1 P"]) -> Forecast:
    sizes = [net.count, len(TARGETS), net.inputs, net.inputs, net.outputs, net.outputs]
    theta, log_variance, center, spread, out_center, out_spread = parameters[:, 0].split(sizes, 1)

    def function(windows: Tensor) -> Tensor:
        return net(theta, windows) * out_spread[:, None] + out_center[:, None]

    return Forecast(function, Scale(center, spread), log_variance, out_spread[:, : len(TARGETS)])  # one for all ahead


ROWS = 20  # rows at the end of a window in which residuals are computed
MEMORY = PHYSICS_ROWS - ROWS  # rows of commands from which a motor's speed is computed
LEAST_LAG, LEAST_MASS = 0.005, 0.3  # s, kg: lower limits, because a network may predict impossible values
NORTH = [n for n, name in enumerate(FEATURES) if name.endswith("_north")]
EAST = [n for n, name in enumerate(FEATURES) if name.endswith("_east")]


def _matrix(entries: dict[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
    """Return a matrix of features with these entries, as nested tuples."""
    numbers = range(len(FEATURES))
    return tuple(tuple(entries.get((row, column), 0.0) for column in numbers) for row in numbers)


LEVEL = {*NORTH, *EAST}
FIXED = _matrix({(n, n): 1.0 for n in range(len(FEATURES)) if n not in LEVEL})
COSINE = _matrix({(n, n): 1.0 for n in LEVEL})
SINE = _matrix({pair: sign for n, e in zip(NORTH, EAST, strict=True) for pair, sign in (((n, e), 1.0), ((e, n), -1.0))})
"""A rotation of features about the vertical is FIXED + cos COSINE + sin SINE."""


def residuals(inputs: Float[Tensor, "*lead T F"], hidden: Float[Tensor, "*lead K"]) -> dict[str, Tensor]:
    """Compute the residuals of the equations of ``telemetry.simulation`` in the last rows of windows.

    ``force`` is that of Newton's law for the measured specific force, ``spin`` that of Euler's equation for the turn
    rates, ``charge`` that of Ohm's law: the battery's voltage without load is constant over so few rows. All are in
    standard deviations of the sensors' noise. Inputs and ``hidden``, which holds for the last ``ROWS`` rows, are in
    physical units.
    """
    vehicle = Quadrotor()
    wind_north, wind_east, payload, drag, lag, sag = hidden.unbind(-1)  # HIDDEN
    last = inputs[..., -ROWS:, :]
    voltage, current = _columns(last, ["voltage"])[..., 0], _columns(last, ["current"])[..., 0]
    lift = vehicle.lift(motor_speeds(inputs, lag, vehicle.nominal))
    mass = (vehicle.mass + payload).clamp_min(LEAST_MASS)[..., None, None]
    down, velocity, measured = (
        _columns(last, [f"{name}_{axis}" for axis in AXES]) for name in ("lean", "velocity", "force")
    )
    air = velocity - torch.stack([wind_north, wind_east, torch.zeros_like(drag)], -1)[..., None, :]
    across = air - (air * down).sum(-1, keepdim=True) * down  # in the plane of the rotors
    force = -(lift.sum(-1, keepdim=True) * down + drag[..., None, None] * across) / mass
    rate = _columns(last, [f"rate_{axis}" for axis in TURNS])
    inertia = constant(tuple(vehicle.inertia), rate.device, rate.dtype)
    torque = vehicle.torque(lift) - torch.linalg.cross(rate, inertia * rate)
    change = (rate[..., 1:, :] - rate[..., :-1, :]) * RATE
    rest = voltage + (sag / current[..., -1].clamp_min(1.0))[..., None] * current
    return {
        "force": (measured - force) / ACCELEROMETER,
        "spin": (change - (torque / inertia)[..., :-1, :]) / (GYROSCOPE * RATE * 2**0.5),
        "charge": (rest - rest.mean(-1, keepdim=True)) / (VOLTAGE**2 + (0.03 * CURRENT) ** 2) ** 0.5,
    }


def motor_speeds(
    inputs: Float[Tensor, "*lead T F"], lag: Float[Tensor, "*lead"], nominal: float
) -> Float[Tensor, "*lead M 4"]:
    """Estimate the motors' speeds in the last ``ROWS`` rows: commands x voltage, low-pass filtered with the lag (s)."""
    recent = inputs[..., -(ROWS + MEMORY - 1) :, :]
    aim = _columns(recent, MOTORS) * _columns(recent, ["voltage"]) / nominal
    decay = torch.exp(-1 / (RATE * lag.clamp_min(LEAST_LAG)))[..., None]
    weight = (1 - decay) * decay ** torch.arange(MEMORY - 1, -1, -1, device=lag.device)
    weight = weight / weight.sum(-1, keepdim=True)
    return torch.einsum("...rmk,...k->...rm", aim.unfold(-2, MEMORY, 1), weight)


def _columns(inputs: Tensor, names: Sequence[str]) -> Tensor:
    first = FEATURES.index(names[0])  # they are adjacent
    return inputs[..., first : first + len(names)]


def rotate_windows(rows: Windows, share: Float[Tensor, "*lead"], scale: Scale) -> Windows:
    """Rotate windows, whose inputs are normalised by ``scale``, about the vertical by shares of a full turn."""
    angle = 2 * math.pi * share
    cos, sin = angle.cos()[..., None], angle.sin()[..., None]
    matrix = feature_rotation(cos, sin)
    inner = matrix * scale.spread[:, None] / scale.spread  # of normalised features
    shift = (scale.center @ matrix - scale.center) / scale.spread
    wind, rest = rows.truth.split([2, len(HIDDEN) - 2], -1)
    error = rows.tracking_error
    return Windows(
        inputs=rows.inputs @ inner + shift[..., None, :],
        truth=torch.cat([_rotate(wind, cos[..., 0], sin[..., 0]), rest], -1),
        tracking_error=torch.cat([_rotate(error[..., :2], cos, sin), error[..., 2:]], -1),
    )


def feature_rotation(cos: Float[Tensor, "*lead 1"], sin: Float[Tensor, "*lead 1"]) -> Float[Tensor, "*lead F F"]:
    """Return the matrices that rotate features when multiplied from the right."""
    fixed, cosine, sine = (constant(matrix, cos.device, cos.dtype) for matrix in (FIXED, COSINE, SINE))
    return fixed + cos[..., None] * cosine + sin[..., None] * sine


def _rotate(pair: Float[Tensor, "*lead 2"], cos: Tensor, sin: Tensor) -> Float[Tensor, "*lead 2"]:
    north, east = pair.unbind(-1)
    return torch.stack([cos * north - sin * east, sin * north + cos * east], -1)
