"""Effects of lower precision on numbers, the tensors of an update, small steps and the scale of a loss."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from uavlab.core.types import Transition, tree_map
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.learners.masac.base import UpdateNoise
from uavlab.learners.masac.batched import MASAC
from uavlab.runtime import wrappers
from uavlab.runtime.loss_scaler import Scaler
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

DTYPES = {name: wrappers.DTYPES[name] for name in ("fp32", "bf16", "fp16")}
ESTIMATES = ("critic gradient", "actor gradient")  # tensors that depend on the batch drawn


def formats() -> list[dict[str, Any]]:
    """Return a row per precision: ``name, bytes, at_1, at_800`` (spacing there), ``largest, smallest`` (normal)."""
    return [
        {
            "name": name,
            "bytes": dtype.itemsize,
            "at_1": spacing(1.0, dtype),
            "at_800": spacing(800.0, dtype),
            "largest": torch.finfo(dtype).max,
            "smallest": torch.finfo(dtype).tiny,
        }
        for name, dtype in DTYPES.items()
    ]


def spacing(value: float, dtype: torch.dtype) -> float:
    """Return the distance from a positive number to the next larger one of its type."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(value))


def follow_target(dtype: torch.dtype, tau: float, steps: int, start: float = 1.0, goal: float = 1.1) -> list[float]:
    """Move a target parameter towards ``goal`` by the share ``tau`` per step in one type; return its path."""
    parameter, aim = (torch.tensor(value, dtype=dtype) for value in (start, goal))
    path = [parameter.item()]
    for _ in range(steps):
        parameter = parameter + tau * (aim - parameter)
        path.append(parameter.item())
    return path


def corrections(places: Sequence[float]) -> list[dict[str, Any]]:
    """Evaluate log(1 - tanh(u)^2), the correction of a squashed density, by two formulas and in two types.

    Returns:
        Rows ``u, formula, value``; the plain formula adds 1e-6, so that its logarithm is finite.
    """
    rows = []
    for u in places:
        exact = torch.tensor(u, dtype=torch.float64)
        values = {"exact": softplus_form(exact), "softplus form, fp32": softplus_form(exact.float())}
        for name in ("fp32", "bf16"):
            x = exact.to(DTYPES[name])
            values[f"plain form, {name}"] = torch.log(1 - torch.tanh(x).square() + 1e-6)
        rows += [{"u": u, "formula": name, "value": round(value.item(), 5)} for name, value in values.items()]
    return rows


def softplus_form(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)^2) without loss of digits."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


@dataclass(frozen=True)
class Probe:
    """A learner after some updates, its copy in float64, a batch for both, and another batch."""

    rt: Runtime
    learner: MASAC
    exact: MASAC
    data: Transition
    other: Transition
    noise: UpdateNoise


def train_probe(config: Config, updates: int = 30) -> Probe:
    """Train for some updates with the toggles of ``config``, and draw two more batches."""
    rt, rng, learner, source = build.assemble(config)
    with rt.scope():
        for _ in range(updates):
            learner.update(source.next(), learner.update_noise(rng, config.source.batch))
        data, other = source.next().data, source.next().data
        noise = learner.update_noise(rng, config.source.batch)
        exact, _ = config.task.build(config, build.streams(config.run, rt.device, torch.float64), rt)
    exact.load_state_dict(learner.state_dict())
    return Probe(rt, learner, exact, data, other, noise)


def errors(probe: Probe) -> list[dict[str, Any]]:
    """Compare the tensors of one update, in each precision, with float64.

    Returns:
        Rows ``tensor, with, error``: the norm of the difference over the norm; ``with`` is a precision, or for
        gradients, which a batch only estimates, ``another batch`` (in float64).
    """
    truth, tensors = _exact_tensors(probe, probe.data), {"another batch": _exact_tensors(probe, probe.other)}
    for name in DTYPES:
        rt = Runtime(probe.rt.device, with_toggles(Toggles(), {"precision": name}))
        tensors[name] = update_tensors(probe.learner, rt, probe.data, probe.noise)
    rows = []
    for name in (*DTYPES, "another batch"):
        for tensor in ESTIMATES if name not in DTYPES else truth:
            difference = torch.linalg.vector_norm(tensors[name][tensor].double() - truth[tensor])
            error = (difference / torch.linalg.vector_norm(truth[tensor])).item()
            rows.append({"tensor": tensor, "with": name, "error": float(f"{error:.3g}")})
    return rows


def scaled_gradients(probe: Probe, scales: Sequence[float]) -> list[dict[str, Any]]:
    """Compute the critics' gradient in float16 for scaled losses.

    Returns:
        Rows ``scale``, ``vanished`` (share of entries that are 0 and should not be) and ``overflowed`` (share that are
        not finite).
    """
    truth = _exact_tensors(probe, probe.data)["critic gradient"]
    half = Runtime(probe.rt.device, Toggles(precision="fp16"))
    rows = []
    for scale in scales:
        gradient = update_tensors(probe.learner, half, probe.data, probe.noise, scale)["critic gradient"]
        vanished = ((gradient == 0) & (truth != 0)).double().mean().item()
        rows.append({"scale": scale, "vanished": vanished, "overflowed": (~gradient.isfinite()).double().mean().item()})
    return rows


def update_tensors(
    learner: MASAC, rt: Runtime, data: Transition, noise: UpdateNoise, scale: float = 1.0
) -> dict[str, Tensor]:
    """Return the tensors of an update without applying it; gradients are those of losses times ``scale``."""
    actor, critic, log_alpha = (part.parameter for part in (learner.actor, learner.critic, learner.temperature))
    with torch.no_grad():
        target = rt.kernel(learner.targets, "targets")(actor, learner.target, log_alpha, data, noise.next_action)
    critic_loss, _ = rt.kernel(learner.critic_loss, "critic_loss")(critic, data, target, None)
    actor_loss, actors = rt.kernel(learner.actor_loss, "actor_loss")(actor, critic, log_alpha, data, noise.action)
    return {
        "targets": target,
        "critic loss": critic_loss.detach(),
        "critic gradient": torch.autograd.grad(scale * critic_loss, critic)[0],
        "log densities": actors["log_prob"],
        "actor loss": actor_loss.detach(),
        "actor gradient": torch.autograd.grad(scale * actor_loss, actor)[0],
    }


def follow_scale(
    preset: str, iterations: int, changes: int = 1, largest: float = 4.0, at: Collection[int] = ()
) -> dict[str, Any]:
    """Run the loss scaler of a preset on gradients of a given size.

    Args:
        preset: ``conservative`` or ``aggressive``.
        iterations: Iterations of the learner.
        changes: How often ``Scaler.update`` is called in an iteration; once is right.
        largest: Largest entry of the gradient in every iteration, unscaled.
        at: Iterations with an infinite gradient.

    Returns:
        ``scale`` after each iteration, and ``skipped``: steps lost to an overflow.
    """
    scaler, path = Scaler(preset, torch.device("cpu")), []
    for iteration in range(iterations):
        gradient = torch.tensor([math.inf if iteration in at else largest], dtype=torch.float32)
        scaler.skip((gradient * scaler.scale).half().float())
        for _ in range(changes):
            scaler.update()
        path.append(scaler.scale.item())
    return {"scale": path, "skipped": int(scaler.skipped)}


def _exact_tensors(probe: Probe, data: Transition) -> dict[str, Tensor]:
    rt = Runtime(probe.rt.device)
    return update_tensors(probe.exact, rt, tree_map(_to_double, data), tree_map(_to_double, probe.noise))


def _to_double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf
