"""Figures of the episodes that end while worlds are stepped, summed without a host sync."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.protocols import Env
from uavlab.core.types import tensors
from uavlab.envs.presence import mean_reward
from uavlab.ops.geometry import constant

COMMON = ("return", "flight_time", "timeout")  # figures of every environment, as evaluations have them


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
    """Return the tally after a step: a state, an action, and the state after them, before any replacement.

    ``ends`` marks worlds whose episodes end because all tasks have ended, and because of the time limit.
    """
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
    """Return the mean of each figure over the episodes that ended since the last reading, by run (host sync).

    While a run has none, the result is empty, and sums go on.
    """
    count = tally.count.view(runs, -1).sum(1)
    if not (count > 0).all():  # host sync
        return {}
    mean = tally.total.unflatten(0, (runs, -1)).sum(1) / count[:, None]
    tally.total.zero_()
    tally.count.zero_()
    names = [*(metric.name for metric in env.metrics), *COMMON]
    return {f"episode/{name}": mean[:, at] for at, name in enumerate(names)}
