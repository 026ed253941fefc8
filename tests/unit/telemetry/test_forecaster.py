"""The loss by hand, an update written out with torch's Adam, runs together and apart, and the trained policy."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import input_scale, random_dataset, stack_runs
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Scale, tree_map
from uavlab.runtime.grad_step import ADAM_EPS
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles
from uavlab.telemetry.flights import FEATURES, HIDDEN, Windows, window_starts
from uavlab.telemetry.forecaster import (
    TARGETS,
    Forecaster,
    ForecasterConfig,
    flatten_targets,
    network,
    predictor,
    residuals,
    rotate_windows,
    target_scale,
)

WINDOW, HORIZON, N = 52, 2, 5
SHAPE = (WINDOW, HORIZON)
OUT = len(HIDDEN) + 3 * HORIZON
CONFIG = ForecasterConfig(width=4, hidden=5, lr=1e-2, clip=0.5, average=0.9, weights="learned", physics=0.1)
FLIGHTS = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, random_dataset(100, 90))
INPUTS = tree_map(torch.Tensor.double, input_scale(FLIGHTS))
SCALE = Scale(torch.linspace(-1, 1, OUT).double(), torch.linspace(0.5, 2, OUT).double())
FLIGHTS.normalise(INPUTS)


def new_learner(seeds: tuple[int, ...] = (0,), config: ForecasterConfig = CONFIG, **toggles: Any) -> Forecaster:
    """Create a learner of double precision, so that comparisons can be sharp."""
    rng = Streams(seeds, dtype=torch.float64)
    return Forecaster(config, SHAPE, INPUTS, SCALE, rng, Runtime(requested=Toggles(**toggles)))


def batch_of(*seeds: int) -> Batch:
    """Draw windows for each run, from its seed alone."""
    start, _ = window_starts(FLIGHTS.bounds, WINDOW + HORIZON, 1)
    index = [torch.randint(len(start), (N,), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    rows = stack_runs(*(FLIGHTS.gather(start[each], *SHAPE) for each in index))
    return Batch(rows, torch.stack(index))


def noise_of(*seeds: int) -> Tensor:
    dice = [torch.Generator().manual_seed(100 + seed) for seed in seeds]
    return torch.stack([torch.rand(N, generator=each, dtype=torch.float64) for each in dice])


def update(learner: Forecaster, *seeds: int, times: int = 1) -> dict[str, Tensor]:
    for number in range(times):
        own = [seed + 10 * number for seed in seeds]
        metrics = learner.update(batch_of(*own), noise_of(*own)).metrics
    return metrics


TINY = ForecasterConfig(width=2, hidden=3)


def tiny(weights: str, bias: float = 0.0) -> tuple[Callable[[Tensor], tuple[Tensor, dict]], Tensor]:
    """A network that predicts ``bias`` always, and two windows: in the first, wind is 2 and 4, errors ahead are 2.

    Targets vary by 2, so these are 1, 2 and 1; means over both windows of squared errors are 0.5, 2 and 0.5.
    """
    config, count = replace(TINY, weights=weights), len(HIDDEN) + 3
    net = network(config, (4, 1))
    scale = Scale(torch.zeros(len(FEATURES)), torch.ones(len(FEATURES)))
    targets = Scale(torch.zeros(count), torch.full((count,), 2.0))
    learner = Forecaster(config, (4, 1), scale, targets, Streams([0]), Runtime())
    theta = torch.zeros(1, net.count + len(TARGETS))
    theta[:, net.count - count : net.count] = bias
    truth, error = torch.zeros(1, 2, len(HIDDEN)), torch.zeros(1, 2, 1, 3)
    truth[0, 0, :2], error[0, 0] = torch.tensor([2.0, 4.0]), 2.0
    rows = Windows(torch.randn(1, 2, 4, len(FEATURES), generator=torch.Generator().manual_seed(0)), truth, error)
    return lambda theta: learner.loss(theta, rows), theta


def test_the_loss_with_fixed_weights_by_hand() -> None:
    """Half the sum of errors is 1.5; the log variances add half of 0.5 + 2 / 4 + 0.5, and of log 4."""
    loss, theta = tiny("fixed")
    log_variance = theta[0, -len(TARGETS) :]
    log_variance[1] = math.log(4)
    theta.requires_grad_()
    total, metrics = loss(theta)
    assert total.item() == pytest.approx(1.5 + 0.75 + math.log(4) / 2)
    assert {name: value.tolist() for name, value in metrics.items()} == {
        **{"mse/wind_north": [0.5], "mse/wind_east": [2], "mse/payload": [0], "mse/drag": [0]},
        **{"mse/motor_lag": [0], "mse/battery_sag": [0], "mse/error": [0.5], "loss": [pytest.approx(total.item())]},
    }
    (gradient,) = torch.autograd.grad(total, theta)
    assert gradient[0, -len(TARGETS) :].tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.25])
    bias = gradient[0, -len(TARGETS) - 9 : -len(TARGETS)]  # an error ahead is one of three that are averaged
    assert bias.tolist() == pytest.approx([-0.5, -1, 0, 0, 0, 0, *[-1 / 6] * 3])


def test_the_loss_with_learned_weights_by_hand() -> None:
    """A log variance of log 4 divides the error of the second wind, and its gradient, by 4."""
    loss, theta = tiny("learned")
    theta[0, 1 - len(TARGETS)] = math.log(4)
    theta.requires_grad_()
    total, _ = loss(theta)
    assert total.item() == pytest.approx(0.75 + math.log(4) / 2)
    (gradient,) = torch.autograd.grad(total, theta)
    assert gradient[0, -len(TARGETS) :].tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.25])
    bias = gradient[0, -len(TARGETS) - 9 : -len(TARGETS)]
    assert bias.tolist() == pytest.approx([-0.5, -0.25, 0, 0, 0, 0, *[-1 / 6] * 3])


def test_errors_are_of_standardised_targets() -> None:
    """Predicting 1 is right for 2 of a spread of 2, and off by 1 for 0 and for 4."""
    loss, theta = tiny("fixed", bias=1.0)
    _, metrics = loss(theta)
    assert metrics["mse/wind_north"].tolist() == [0.5]
    assert metrics["mse/wind_east"].tolist() == [1]
    assert metrics["mse/payload"].tolist() == [1]
    assert metrics["mse/error"].tolist() == [0.5]


def slow_loss(learner: Forecaster, theta: Tensor, rows: Windows) -> Tensor:
    """Compute one run's loss window by window and target by target."""
    count, config = learner.net.count, learner.config
    errors: dict[str, list[Tensor]] = {name: [] for name in TARGETS}
    huber: dict[str, list[Tensor]] = {"force": [], "spin": [], "charge": []}
    for n in range(N):
        output = learner.net(theta[None, :count], rows.inputs[n][None, None])[0, 0]
        targets = [*rows.truth[n], *rows.tracking_error[n].flatten()]
        for k, (value, target) in enumerate(zip(output, targets, strict=True)):
            off = value - (target - SCALE.center[k]) / SCALE.spread[k]
            errors[TARGETS[min(k, len(HIDDEN))]].append(off**2)
        hidden = output[: len(HIDDEN)] * SCALE.spread[: len(HIDDEN)] + SCALE.center[: len(HIDDEN)]
        for name, part in residuals(rows.inputs[n] * INPUTS.spread + INPUTS.center, hidden).items():
            huber[name] += [r**2 / 2 if r.abs() < 3 else 3 * (r.abs() - 1.5) for r in part.flatten()]
    total = torch.zeros(())
    for k, values in enumerate(errors.values()):
        mean, log_variance = sum(values) / len(values), theta[count + k]
        if config.weights == "fixed":
            total, mean = total + mean / 2, mean.detach()
        total = total + (mean * torch.exp(-log_variance) + log_variance) / 2
    return total + config.physics * sum(sum(values) / len(values) for values in huber.values())


@pytest.mark.parametrize("weights", ["fixed", "learned"])
def test_updates_equal_those_written_out(weights: str) -> None:
    learner = new_learner(config=replace(CONFIG, weights=weights))
    theta = learner.network.parameter.detach()[0].clone().requires_grad_()
    average, adam = theta.detach().clone(), torch.optim.Adam([theta], CONFIG.lr, eps=ADAM_EPS)
    for number in range(2):
        batch, noise = batch_of(number), noise_of(number)
        rows = rotate_windows(batch.data, noise, INPUTS)
        loss = slow_loss(learner, theta, tree_map(lambda leaf: leaf[0], rows))
        (theta.grad,) = torch.autograd.grad(loss, theta)
        norm = theta.grad.norm().item()
        theta.grad *= min(1.0, CONFIG.clip / (norm + 1e-6))
        adam.step()
        average = 0.9 * average + 0.1 * theta.detach()
        metrics = learner.update(batch, noise).metrics
        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-9)
        assert metrics["norm"].item() == pytest.approx(norm, rel=1e-9)
        assert norm > CONFIG.clip
        torch.testing.assert_close(learner.network.parameter[0].detach(), theta.detach(), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(learner.average[0], average, rtol=1e-8, atol=1e-9)
    assert (theta - learner.average[0]).abs().max() > 1e-3


def test_runs_together_equal_runs_apart() -> None:
    together = new_learner((0, 1))
    metrics = update(together, 0, 1, times=3)
    for run in (0, 1):
        alone = new_learner((run,))
        own = update(alone, run, times=3)
        torch.testing.assert_close(together.parameters()[run], alone.parameters()[0], rtol=1e-9, atol=1e-10)
        for name, value in metrics.items():
            assert value.shape == (2,)
            assert value[run].item() == pytest.approx(own[name].item(), rel=1e-8)
    assert not torch.equal(together.average[0], together.average[1])


def test_without_physics_there_is_no_figure_of_it() -> None:
    rows, learner = batch_of(0).data, new_learner()
    theta = learner.network.parameter.detach()
    with_physics, metrics = learner.loss(theta, rows)
    without, plain = new_learner(config=replace(CONFIG, physics=0.0)).loss(theta, rows)
    assert metrics.keys() - plain.keys() == {"physics"}
    assert with_physics.item() - without.item() == pytest.approx(0.1 * metrics["physics"].item())
    assert metrics["physics"].item() > 0


def test_physics_keeps_its_digits_where_networks_have_fewer() -> None:
    rows = tree_map(torch.Tensor.float, batch_of(0).data)
    scales = [tree_map(torch.Tensor.float, scale) for scale in (INPUTS, SCALE)]
    learner = Forecaster(CONFIG, SHAPE, *scales, Streams([0]), Runtime())
    output = 0.1 * torch.randn(1, N, OUT, generator=torch.Generator().manual_seed(0))
    expected = learner.physics_residual_loss(rows, output)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(learner.physics_residual_loss(rows, output), expected)


def test_windows_are_rotated_by_their_own_angle() -> None:
    config = replace(CONFIG, physics=0.0)
    plain, still, other = (
        new_learner(config=replace(config, turned="off")),
        new_learner(config=config),
        new_learner(config=config),
    )
    batch = batch_of(0)
    losses = [
        learner.update(batch, noise).metrics["loss"].item()
        for learner, noise in ((plain, noise_of(0)), (still, torch.zeros(1, N).double()), (other, noise_of(0)))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert losses[2] != pytest.approx(losses[0], rel=1e-6)
    rng = Streams([3, 4])
    noise = other.update_noise(rng, 7)
    assert noise.shape == (2, 7)
    assert not torch.equal(noise[0], noise[1])


def test_a_batch_in_pieces_teaches_the_same() -> None:
    whole, pieces = new_learner(), new_learner(micro_batches=3)
    expected, metrics = update(whole, 0), update(pieces, 0)
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value.item(), rel=1e-9)
    torch.testing.assert_close(pieces.average, whole.average, rtol=1e-9, atol=1e-10)


def test_a_trained_policy_predicts_the_same() -> None:
    learner = new_learner((0, 1))
    update(learner, 0, 1)
    parameters = learner.parameters()
    assert parameters.shape == (2, 1, Forecaster.size(CONFIG, SHAPE))
    raw = batch_of(0, 1).data.inputs * INPUTS.spread + INPUTS.center
    forecast, again = learner.policy(), predictor(network(CONFIG, SHAPE), parameters)
    values = forecast(raw)
    assert values.shape == (2, N, OUT)
    assert torch.equal(again(raw), values)
    output = learner.net(learner.average[:, : learner.net.count], batch_of(0, 1).data.inputs)
    torch.testing.assert_close(values, output * SCALE.spread + SCALE.center, rtol=1e-9, atol=1e-9)
    assert forecast.runs == 2
    assert torch.equal(forecast.log_variance, learner.average[:, learner.net.count :])
    assert torch.equal(forecast.spread, SCALE.spread[: len(TARGETS)].expand(2, -1))
    update(learner, 0, 1)
    assert torch.equal(forecast(raw), values)  # a copy


def test_the_state_goes_on_bit_for_bit() -> None:
    learner, other = new_learner((0, 1)), new_learner((5, 6))
    update(learner, 0, 1, times=2)
    assert not torch.equal(other.average, learner.average)
    other.load_state_dict({name: value.clone() for name, value in learner.state_dict().items()})
    expected, metrics = update(learner, 2, 3, times=2), update(other, 2, 3, times=2)
    for name, value in expected.items():
        assert torch.equal(metrics[name], value)
    for name, value in learner.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert {"network.parameter", "network.step", "average"} <= set(learner.state_dict())


def test_numbers_are_named() -> None:
    learner = new_learner((0, 1))
    assert list(learner.tensors_to_check()) == ["network.parameter", "network.exp_avg", "network.exp_avg_sq", "average"]
    update = learner.update(batch_of(0, 1), noise_of(0, 1))
    assert list(learner.tensors_to_check(update)) == [*(f"mse/{name}" for name in TARGETS), "physics", "loss", "norm"]
    for value, axes in (*learner.tensors_to_check().values(), *learner.tensors_to_check(update).values()):
        assert axes == "R"
        assert len(value) == 2


def test_targets_are_laid_out_in_order() -> None:
    truth, error = torch.arange(6.0)[None], torch.arange(6.0, 12).view(1, 2, 3)
    assert flatten_targets(Windows(torch.zeros(1, 4, 2), truth, error)).tolist() == [list(range(12))]
    assert TARGETS[-1] == "error"
    assert TARGETS[:-1] == HIDDEN


def test_it_learns() -> None:
    config = replace(CONFIG, physics=0.0, turned="off", weights="fixed", average=0.5)
    learner, batch = new_learner(config=config), batch_of(0)
    errors = []
    for _ in range(150):
        metrics = learner.update(batch, noise_of(0)).metrics
        errors.append(sum(metrics[f"mse/{name}"].item() for name in TARGETS))
    assert errors[-1] < 0.2 * errors[0]


def test_parameters_are_counted() -> None:
    assert Forecaster.size(TINY, (4, 1)) == network(TINY, (4, 1)).count + len(TARGETS) + 2 * (len(FEATURES) + 9)


def test_errors_ahead_are_scaled_alike() -> None:
    hidden = Scale(torch.arange(9.0), torch.tensor([1.0, 2, 3, 4, 5, 6, 1, 2, 2]))
    scale = target_scale(hidden, 2)
    assert scale.center.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]  # errors lie around none
    assert scale.spread.tolist() == [1, 2, 3, 4, 5, 6] + [pytest.approx(3**0.5)] * 6  # root of (1 + 4 + 4) / 3
