"""What compiling costs before it gives: the critics under plain torch, TorchScript and torch.compile; when it pays."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uavlab.bench.timing import interleaved, median, ratio
from uavlab.experiment import build
from uavlab.experiment.config import Config, configure
from uavlab.nets.mlp import StackedMLP
from uavlab.profiling.torch_profile import profile
from uavlab.runtime.stage_timer import synchronize

SETTLING = 3  # calls until TorchScript has looked at what it is given and made its choices
REPEATS = 10  # calls that are timed at once: one takes less than a scheduler's turn
LAUNCH = "aten::"  # how the profiler calls what torch starts by itself

TRACED = "torch.jit.trace`"  # of which a warning speaks

Loss = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Callable[[Loss, Tensor, Tensor], Loss]] = {
    "plain torch": lambda loss, *given: loss,
    "TorchScript": lambda loss, *given: torch.jit.trace(loss, given),
    "torch.compile": lambda loss, *given: torch.compile(loss, dynamic=False),
}


def variants(
    preset: str, *layers: Mapping[str, Any], rounds: int = 20, ways: Sequence[str] = tuple(WAYS)
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Time a forward and a backward pass through all critics of a team, run in several ways.

    Args:
        preset: Gives the team, the batch and the width of the networks.
        layers: Settings over it.
        rounds: Interleaved repetitions.
        ways: Some of ``WAYS``, the first one to compare with.

    Returns:
        Rows with ``setting``, ``ms``, ``over_first``, ``low``, ``high``, ``first_call_s`` (until it has settled),
        ``launches`` (operators that torch starts one by one) and ``difference`` (of the gradients from those of the
        first way, relative); and by setting what torch says of it: that it is deprecated, or why it is left out.

    Raises:
        ConfigError: Settings that are not valid.
    """
    config = configure(preset, *layers)
    rt = build.runtime(config.run, config.toggles)
    calls: dict[str, Callable[[], Tensor]] = {}
    first, said = {}, {}
    with rt.scope(), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", DeprecationWarning)
        given = critics(config, rt.device)
        for name in ways:
            try:
                calls[name], first[name] = _settled(WAYS[name], *given, device=rt.device)
            except (AttributeError, RuntimeError) as error:
                said[name] = f"left out: {str(error).splitlines()[0]}"
        seconds = interleaved({name: partial(_repeated, call) for name, call in calls.items()}, rounds, rt.device)
        rows = [
            {
                "setting": name,
                "ms": round(1e3 * median(seconds[name]) / REPEATS, 4),
                **_over(ratio(seconds[ways[0]], seconds[name])),
                "first_call_s": round(first[name], 3),
                "launches": launches(call, rt.device),
                "difference": _difference(calls[ways[0]](), call()),
            }
            for name, call in calls.items()
        ]
    for each in heard:
        if TRACED in str(each.message):
            said["TorchScript"] = str(each.message)
        elif not issubclass(each.category, DeprecationWarning):  # torch's own, of what it imports
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return rows, said


def critics(config: Config, device: torch.device) -> tuple[Loss, Tensor, Tensor]:
    """Build the critics of a team, two for each agent: a loss, their parameters, and rows to evaluate."""
    spec = config.env.spec
    net = StackedMLP(spec.agents * (spec.obs + spec.action), config.learner.hidden, 1)
    dice = torch.Generator().manual_seed(config.run.seed)
    theta = torch.randn(2 * spec.agents, net.count, generator=dice) / math.sqrt(config.learner.hidden)
    x = torch.randn(2 * spec.agents, config.source.batch, net.inputs, generator=dice)

    def loss(theta: Tensor, x: Tensor) -> Tensor:
        return net(theta, x).square().mean()

    return loss, theta.to(device).requires_grad_(), x.to(device)


def launches(call: Callable[[], Any], device: torch.device) -> float:
    """Count what torch starts one by one in a call; what compiled code does inside of itself is not seen."""
    rows = profile(call, device, top=10_000).rows
    return round(sum(row["calls"] for row in rows if row["operator"].startswith(LAUNCH)), 1)


def elapsed(rows: Sequence[Mapping[str, Any]], most: int, points: int = 25) -> list[dict[str, Any]]:
    """Lay out the seconds that each way has taken after so many calls, warm-up first: ``setting, calls, seconds``."""
    every = max(1, most // points)
    return [
        {"setting": row["setting"], "calls": calls, "seconds": row["first_call_s"] + calls * row["ms"] / 1e3}
        for row in rows
        for calls in range(0, most + 1, every)
    ]


def _settled(
    way: Callable[..., Loss], loss: Loss, theta: Tensor, x: Tensor, device: torch.device
) -> tuple[Callable[[], Tensor], float]:
    """Make a way of computing the gradient and call it until it has settled; give it and the seconds that took."""
    began = time.perf_counter()
    made = way(loss, theta, x)

    def gradient() -> Tensor:
        return torch.autograd.grad(made(theta, x), theta)[0]

    for _ in range(SETTLING):
        gradient()
    synchronize(device)
    return gradient, time.perf_counter() - began


def _repeated(call: Callable[[], Any]) -> None:
    for _ in range(REPEATS):
        call()


def _over(found: Mapping[str, float]) -> dict[str, float]:
    return {"over_first": found["median"], "low": found["low"], "high": found["high"]}


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())
