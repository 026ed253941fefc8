"""What fewer digits do to training: to a tensor, to small steps, to the scale of a loss."""

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
from uavlab.learners.masac.batched import MASAC, UpdateNoise
from uavlab.runtime import wrappers
from uavlab.runtime.loss_scaler import Scaler
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

DTYPES = {name: wrappers.DTYPES[name] for name in ("fp32", "bf16", "fp16")}
ESTIMATES = ("critic gradient", "actor gradient")  # tensors that every batch gives anew


def formats() -> list[dict[str, Any]]:
    """Describe the kinds of numbers: ``name, bytes, at_1, at_800`` (spacing there), ``largest, smallest`` (normal)."""
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
    """Give the distance from a positive number to the next larger one of its kind."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(value))


def followed(dtype: torch.dtype, tau: float, steps: int, start: float = 1.0, goal: float = 1.1) -> list[float]:
    """Move a target parameter towards ``goal`` by the share ``tau`` at each step, in numbers of one kind."""
    parameter, aim = (torch.tensor(value, dtype=dtype) for value in (start, goal))
    path = [parameter.item()]
    for _ in range(steps):
        parameter = parameter + tau * (aim - parameter)
        path.append(parameter.item())
    return path


def corrections(places: Sequence[float]) -> list[dict[str, Any]]:
    """Evaluate log(1 - tanh(u)^2), the correction of a squashed density, by two formulas and in two kinds of numbers.

    Returns:
        Rows ``u, formula, value``; the plain formula adds 1e-6, as it must.
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
    """Evaluate it as ``ops.densities`` does."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


@dataclass(frozen=True)
class Moment:
    """A learner after some updates, its twin in float64, a batch for both, and another one."""

    rt: Runtime
    learner: MASAC
    exact: MASAC
    data: Transition
    other: Transition
    noise: UpdateNoise


def moment(config: Config, updates: int = 30) -> Moment:
    """Train for some updates by the toggles of ``config``, and draw two more batches."""
    rt, rng, learner, source = build.assembled(config)
    with rt.scope():
        for _ in range(updates):
            learner.update(source.next(), learner.update_noise(rng, config.source.batch))
        data, other = source.next().data, source.next().data
        noise = learner.update_noise(rng, config.source.batch)
        exact, _ = config.task.build(config, build.streams(config.run, rt.device, torch.float64), rt)
    exact.load_state_dict(learner.state_dict())
    return Moment(rt, learner, exact, data, other, noise)


def errors(at: Moment) -> list[dict[str, Any]]:
    """Compare the tensors of one update, in each precision, with float64.

    Returns:
        Rows ``tensor, with, error``: the norm of the difference over the norm; ``with`` is a precision, or ``another
        batch`` (in float64) for what a batch only estimates.
    """
    truth, found = _truth(at, at.data), {"another batch": _truth(at, at.other)}
    for name in DTYPES:
        low = Runtime(at.rt.device, with_toggles(Toggles(), {"precision": name}))
        found[name] = evaluated(at.learner, low, at.data, at.noise)
    rows = []
    for name in (*DTYPES, "another batch"):
        for tensor in ESTIMATES if name not in DTYPES else truth:
            off = torch.linalg.vector_norm(found[name][tensor].double() - truth[tensor])
            error = (off / torch.linalg.vector_norm(truth[tensor])).item()
            rows.append({"tensor": tensor, "with": name, "error": float(f"{error:.3g}")})
    return rows


def scaled(at: Moment, scales: Sequence[float]) -> list[dict[str, Any]]:
    """Take the critics' gradient in float16, of a loss that is scaled.

    Returns:
        Rows ``scale``, ``vanished`` (share of entries that are 0 and should not be) and ``overflowed`` (share that is
        not finite).
    """
    truth = _truth(at, at.data)["critic gradient"]
    half = Runtime(at.rt.device, Toggles(precision="fp16"))
    rows = []
    for scale in scales:
        found = evaluated(at.learner, half, at.data, at.noise, scale)["critic gradient"]
        vanished = ((found == 0) & (truth != 0)).double().mean().item()
        rows.append({"scale": scale, "vanished": vanished, "overflowed": (~found.isfinite()).double().mean().item()})
    return rows


def evaluated(
    learner: MASAC, rt: Runtime, data: Transition, noise: UpdateNoise, scale: float = 1.0
) -> dict[str, Tensor]:
    """Give the tensors of an update that changes nothing; gradients are those of losses times ``scale``."""
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


def scales(
    preset: str, iterations: int, changes: int = 1, largest: float = 4.0, at: Collection[int] = ()
) -> dict[str, Any]:
    """Follow the loss scale of a preset beside gradients of a given size.

    Args:
        preset: ``conservative`` or ``aggressive``.
        iterations: Of the learner.
        changes: How often ``Scaler.update`` is called in an iteration; once is right.
        largest: Largest entry of the gradient in every iteration, unscaled.
        at: Iterations with a gradient that no scale can hold.

    Returns:
        ``scale`` after each iteration, and ``skipped``: steps that were lost to an overflow.
    """
    scaler, path = Scaler(preset, torch.device("cpu")), []
    for iteration in range(iterations):
        gradient = torch.tensor([math.inf if iteration in at else largest], dtype=torch.float32)
        scaler.skip((gradient * scaler.scale).half().float())
        for _ in range(changes):
            scaler.update()
        path.append(scaler.scale.item())
    return {"scale": path, "skipped": int(scaler.skipped)}


def _truth(at: Moment, data: Transition) -> dict[str, Tensor]:
    return evaluated(at.exact, Runtime(at.rt.device), tree_map(_wide, data), tree_map(_wide, at.noise))


def _wide(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf
