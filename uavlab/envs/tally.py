"""Episodes of worlds: which agents take part in them, and their figures, summed without a host sync."""

from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.protocols import Env
from uavlab.core.types import tensors
from uavlab.ops.geometry import constant

S = TypeVar("S")
COMMON = ("return", "flight_time", "timeout")  # figures of every environment, as evaluations have them


def may_lack_agents(env: Env[S]) -> bool:
    """Return whether some agents may take no part in a world (``takes_part`` of the environment)."""
    return env.spec.deaths and hasattr(env, "takes_part")


def live_at_start(env: Env[S], state: S, worlds: int, device: torch.device) -> Bool[Tensor, "B A"]:
    """Return which agents go on in new worlds: all, or those that take part."""
    if may_lack_agents(env):
        return env.takes_part(state)  # type: ignore[attr-defined]
    return torch.ones(worlds, env.spec.agents, dtype=torch.bool, device=device)


def mean_reward(env: Env[S], state: S, reward: Float[Tensor, "B A"]) -> Float[Tensor, " B"]:
    """Return the mean reward of the agents that take part in each world."""
    if not may_lack_agents(env):
        return reward.mean(-1)
    present = env.takes_part(state)  # type: ignore[attr-defined]
    return (reward * present).sum(-1) / present.sum(-1).clamp_min(1)


@tensors
class Tally:
    """Figures of worlds: the metrics of their environment, then ``COMMON`` (M in all)."""

    running: Float[Tensor, "B M"]  # of the episode in progress, up to its last step
    total: Float[Tensor, "B M"]  # sums over the episodes that ended since they were last read
    count: Float[Tensor, " B"]  # number of these episodes


def start_tally(env: Env, noise: Float[Tensor, "B K"]) -> Tally:
    running = noise.new_zeros(len(noise), len(env.metrics) + len(COMMON))
    return Tally(running=running, total=torch.zeros_like(running), count=torch.zeros_like(running[:, 0]))


def add_step(
    env: Env, tally: Tally, step: tuple[Any, Tensor, Any], reward: Float[Tensor, "B A"], ends: Bool[Tensor, "2 B"]
) -> Tally:
    """Return the tally after a step; ``ends`` marks worlds whose tasks have all ended, and those out of time."""
    figures, mean = env.measure(*step), mean_reward(env, step[0], reward)
    common = [mean, torch.ones_like(mean), ends[1].to(mean.dtype)]
    now = torch.stack([*(figures[metric.name] for metric in env.metrics), *common], -1)
    over = [*(metric.over for metric in env.metrics), "sum", "sum", "last"]
    sums, means = (tuple(kind in kinds for kind in over) for kinds in (("sum", "mean"), ("mean",)))
    added, averaged = (constant(marks, now.device, torch.bool) for marks in (sums, means))
    now = torch.where(added, tally.running + now, now)
    whole = torch.where(averaged, now / now[:, -2:-1], now)  # the last but one counts steps
    done = (ends[0] | ends[1])[:, None]
    return Tally(
        running=torch.where(done, 0.0, now),
        total=tally.total + torch.where(done, whole, 0.0),
        count=tally.count + done[:, 0],
    )


def read_tally(env: Env, tally: Tally, runs: int) -> dict[str, Float[Tensor, " R"]]:
    """Return the mean of each figure over the episodes since the last reading, by run (host sync), or nothing yet."""
    count = tally.count.view(runs, -1).sum(1)
    if not (count > 0).all():  # host sync
        return {}
    mean = tally.total.unflatten(0, (runs, -1)).sum(1) / count[:, None]
    tally.total.zero_()
    tally.count.zero_()
    names = [*(metric.name for metric in env.metrics), *COMMON]
    return {f"episode/{name}": mean[:, at] for at, name in enumerate(names)}
