"""Effects of lower precision on the tensors of an update, and of the loss scale on gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uavlab.core.types import Transition, tree_map
from uavlab.experiment import build
from uavlab.experiment.config import Config
from uavlab.learners.masac.masac import MASAC, UpdateNoise
from uavlab.runtime import wrappers
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

DTYPES = {name: wrappers.DTYPES[name] for name in ("fp32", "bf16", "fp16")}
ESTIMATES = ("critic gradient", "actor gradient")  # tensors that depend on the batch drawn


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


def _exact_tensors(probe: Probe, data: Transition) -> dict[str, Tensor]:
    rt = Runtime(probe.rt.device)
    return update_tensors(probe.exact, rt, tree_map(_to_double, data), tree_map(_to_double, probe.noise))


def _to_double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf
