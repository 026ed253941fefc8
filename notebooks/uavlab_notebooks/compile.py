"""Cost and gain of compiling: the critics of a team under plain torch and torch.compile, and when it pays off."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uavlab.benchmarks.timing import median, ratio, time_in_turn
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.nets.mlp import StackedMLP
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.stage_timer import synchronize

REPEATS = 10  # calls per timing, because one is shorter than a time slice of the scheduler
LAUNCH = "aten::"  # prefix of the operators of torch in a profile

Loss = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Callable[[Loss], Loss]] = {
    "plain torch": lambda loss: loss,
    "torch.compile": partial(torch.compile, dynamic=False),
}


def compare_ways(preset: str, *layers: Mapping[str, Any], rounds: int = 20) -> list[dict[str, Any]]:
    """Time a forward and a backward pass through all critics of a team, in each of ``WAYS``.

    Args:
        preset: The run with the team, the batch and the width of the networks.
        layers: Settings over it.
        rounds: Interleaved repetitions.

    Returns:
        Rows with ``setting``, ``ms``, ``over_first``, ``low``, ``high``, ``first_call_s``, ``launches`` (operators that
        torch starts one by one) and ``difference`` (of the gradients from those of the first way, relative).

    Raises:
        ConfigError: Settings that are not valid.
    """
    config = configure(preset, *layers)
    rt = build.runtime(config.run, config.toggles)
    calls, first = {}, {}
    with rt.scope():
        loss, theta, x = build_critics(config, rt.device)
        for name, way in WAYS.items():
            start = time.perf_counter()
            calls[name] = partial(_gradient, way(loss), theta, x)
            calls[name]()
            synchronize(rt.device)
            first[name] = time.perf_counter() - start
        seconds = time_in_turn({name: partial(_repeat, call) for name, call in calls.items()}, rounds, rt.device)
        reference = next(iter(calls))
        over = {name: ratio(seconds[reference], each) for name, each in seconds.items()}
        return [
            {
                "setting": name,
                "ms": round(1e3 * median(seconds[name]) / REPEATS, 4),
                "over_first": over[name]["median"],
                "low": over[name]["low"],
                "high": over[name]["high"],
                "first_call_s": round(first[name], 3),
                "launches": count_launches(call, rt.device),
                "difference": _difference(calls[reference](), call()),
            }
            for name, call in calls.items()
        ]


def build_critics(config: Config, device: torch.device) -> tuple[Loss, Tensor, Tensor]:
    """Build the critics of a team, two for each agent: a loss, their parameters, and rows to evaluate."""
    spec = config.env.spec
    net = StackedMLP(spec.agents * (spec.obs + spec.action), config.learner.hidden, 1)
    rng = torch.Generator().manual_seed(config.run.seed)
    theta = torch.randn(2 * spec.agents, net.count, generator=rng) / math.sqrt(config.learner.hidden)
    x = torch.randn(2 * spec.agents, config.source.batch, net.inputs, generator=rng)

    def loss(theta: Tensor, x: Tensor) -> Tensor:
        return net(theta, x).square().mean()

    return loss, theta.to(device).requires_grad_(), x.to(device)


def count_launches(call: Callable[[], Any], device: torch.device) -> float:
    """Count the operators that torch starts one by one in a call; those inside compiled code are not visible."""
    rows = profile(call, device, top=10_000)
    return round(sum(row["calls"] for row in rows if row["operator"].startswith(LAUNCH)), 1)


def elapsed(rows: Sequence[Mapping[str, Any]], most: int, points: int = 25) -> list[dict[str, Any]]:
    """Return the seconds of each way for the first call and up to ``most`` more: ``setting, calls, seconds``."""
    every = max(1, most // points)
    return [
        {"setting": row["setting"], "calls": calls, "seconds": row["first_call_s"] + calls * row["ms"] / 1e3}
        for row in rows
        for calls in range(0, most + 1, every)
    ]


def _gradient(loss: Loss, theta: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss(theta, x), theta)[0]


def _repeat(call: Callable[[], Any]) -> None:
    for _ in range(REPEATS):
        call()


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())
