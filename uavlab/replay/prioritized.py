"""Prioritized replay on the training device: rows are drawn in proportion to their TD errors, without a host sync.

Row i is drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha, one row from each of N equal parts of the mass, and
weighs w_i = (size P(i))^-beta / max_j w_j, the maximum being the batch's. A new row gets the largest priority so far.

Source:
    Schaul et al. 2016, "Prioritized Experience Replay": chances, eq. 1; new rows, algorithm 1; weights and how beta
    rises, section 3.4; equal parts of the mass, appendix B.2.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.types import Transition
from uavlab.ops import sum_tree
from uavlab.replay import ring as rings
from uavlab.replay.ring import Ring, describe_leaf


@dataclass(frozen=True)
class PriorityConfig:
    """How much priorities matter, and how much of their bias the importance weights correct.

    Attributes:
        priority_alpha: Exponent of priorities; 0 draws uniformly.
        priority_alpha_end: Exponent after ``priority_draws`` batches; None for no change.
        priority_beta: Exponent of importance weights at first; 1 corrects all of the bias.
        priority_draws: Batches over which the exponent of importance weights rises linearly to 1.
    """

    priority_alpha: Annotated[float, Ge(0), Le(1)] = 0.6
    priority_alpha_end: Annotated[float, Ge(0), Le(1)] | None = None
    priority_beta: Annotated[float, Ge(0), Le(1)] = 0.4
    priority_draws: Annotated[int, Ge(1), Le(10**9)] = 100_000


@dataclass(frozen=True)
class Prioritized:
    """A ring whose rows have priorities; all tensors are updated in place.

    Attributes:
        config: Exponents.
        ring: The rows.
        tree: Their priorities to the power of alpha, as masses.
        largest: Largest mass given so far, at least that of priority 1.
        draws: Batches drawn so far.
        refused: Priorities that could not be used.
    """

    config: PriorityConfig
    ring: Ring
    tree: sum_tree.Tree
    largest: Int[Tensor, " R"]
    draws: Int[Tensor, ""]
    refused: Int[Tensor, " R"]


def allocate(example: Transition, capacity: int, config: PriorityConfig) -> Prioritized:
    """Reserve ``capacity`` rows per run, shaped like ``example`` (leading axes R N), and a tree over them.

    Raises:
        ConfigError: The capacity is more than a tree can serve.
    """
    runs, device = example.reward.shape[0], example.reward.device
    zeros = torch.zeros(runs, dtype=torch.int64, device=device)
    return Prioritized(
        config=config,
        tree=sum_tree.empty(runs, capacity, device),
        ring=rings.allocate(example, capacity),
        largest=zeros + sum_tree.UNIT,
        draws=zeros[0].clone(),
        refused=zeros.clone(),
    )


def add(replay: Prioritized, rows: Transition) -> None:
    """Write W rows per run as ``ring.add`` does, each with the largest priority so far.

    Raises:
        ConfigError: The rows' shapes, types or device are not the ring's; nothing is changed.
    """
    ring = replay.ring
    rings.add(ring, rows)
    runs, count = len(replay.largest), min(rows.reward.shape[1], ring.capacity)
    back = torch.arange(-count, 0, device=replay.largest.device)
    slot = (ring.cursor + back).remainder(ring.capacity).expand(runs, count)
    sum_tree.update(replay.tree, slot, replay.largest[:, None].expand(runs, count))


def choose(replay: Prioritized, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Float[Tensor, "R N"]]:
    """Choose rows by priority from int64 noise; return slots and importance weights, the largest of a batch being 1.

    The slots are 0 if the ring is empty, which the caller must prevent.
    """
    index, mass = sum_tree.sample(replay.tree, noise)
    weight = importance_weights(mass, anneal(replay, replay.config.priority_beta, 1.0))
    replay.draws.add_(1)
    return index, weight


def importance_weights(mass: Int[Tensor, "R N"], beta: Tensor | float) -> Float[Tensor, "R N"]:
    """Return w_i / max_j w_j = (min_j mass_j / mass_i)^beta, as P(i) = mass_i / total."""
    return (mass.amin(1, keepdim=True) / mass).pow(beta)


def anneal(replay: Prioritized, first: float, last: float | None) -> Tensor | float:
    """Interpolate an exponent linearly from ``first`` to ``last`` by the batches drawn so far."""
    if last is None or first == last:
        return first
    slope = (last - first) / replay.config.priority_draws
    return (replay.draws * slope + first).clamp(min(first, last), max(first, last))


def joint_priority(error: Float[Tensor, "R N A"], by: Literal["mean", "max"]) -> Float[Tensor, "R N"]:
    """Reduce the TD errors of all agents to one priority per row: the mean or the largest magnitude."""
    size = error.abs()
    return size.mean(-1) if by == "mean" else size.amax(-1)


def set_priorities(replay: Prioritized, index: Int[Tensor, "R N"], priority: Float[Tensor, "R N"]) -> None:
    """Set the priorities of rows; of several for one row, the last one stays.

    A priority that is not finite or below 0, or is meant for a slot without a row, changes nothing and is counted in
    ``refused``, without a host sync. Priorities to the power of alpha lie in [2^-20, 2^16]: 0 is drawn now and then.

    Raises:
        ConfigError: Shapes, types or devices are wrong; nothing is changed.
    """
    require_fit(replay, index, priority)
    bad = unusable(replay.ring, index, priority)
    alpha = anneal(replay, replay.config.priority_alpha, replay.config.priority_alpha_end)
    mass = sum_tree.update(replay.tree, index, sum_tree.fixed_point(priority.pow(alpha)), bad)
    torch.maximum(replay.largest, mass.amax(1), out=replay.largest)
    replay.refused.add_(bad.sum(1))


def unusable(ring: Ring, index: Int[Tensor, "R N"], priority: Float[Tensor, "R N"]) -> Bool[Tensor, "R N"]:
    """Mark priorities that are not finite, below 0 or meant for a slot without a row."""
    wild = priority.clamp(0, torch.finfo(priority.dtype).max) != priority  # true for nan
    return wild | (index < 0) | (index >= ring.size)


def require_fit(replay: Prioritized, index: Tensor, priority: Tensor) -> None:
    """Check the shapes, types and devices of R x N slots and priorities; reads metadata alone.

    Raises:
        ConfigError: Shapes, types or devices are wrong, or there are none.
    """
    runs, device = replay.largest.shape[0], replay.largest.device
    fits = index.shape == priority.shape and index.dim() == 2 and index.shape[0] == runs and index.numel() > 0
    types = index.dtype == torch.int64 and priority.dtype in (torch.float32, torch.float64)
    if not (fits and types and index.device == priority.device == device):
        index_, priority_ = (f"{describe_leaf(leaf)} on {leaf.device}" for leaf in (index, priority))
        raise ConfigError(
            f"Prioritized replay: index is {index_}, priority {priority_}; expected int64 and float32 or float64, both "
            f"{runs}xN with N at least 1, on {device}. Give each row that was drawn one priority."
        )


def state(replay: Prioritized) -> dict[str, Tensor]:
    """Copy what the next draws depend on beside the rows: masses by slot (R n) and counters (host sync)."""
    mass = sum_tree.masses(replay.tree)[:, : int(replay.ring.size)]
    return {name: value.clone() for name, value in {"mass": mass, **_counters(replay)}.items()}


def load(replay: Prioritized, saved: Mapping[str, Tensor]) -> None:
    """Continue where ``state`` was taken, before or after the ring is given the rows (host sync).

    Raises:
        FileError: The state is not that of such a replay, which is untouched.
    """
    expected = {"mass": sum_tree.masses(replay.tree), **_counters(replay)}
    wrong = [name for name, here in expected.items() if name not in saved or not _like(saved[name], here)]
    if wrong or not _in_range(saved["mass"]):
        problems = [
            f"{name} is {describe_leaf(saved[name])}" if name in saved else f"no {name}" for name in wrong or ["mass"]
        ]
        raise FileError(
            f"Prioritized replay: the saved state does not fit: {', '.join(problems)}. Expected int64: mass in "
            f"[1, 2^36], {len(replay.largest)}xN with N at most {replay.ring.capacity}, and one counter each; resume "
            "with the settings that it was saved with, or with --fresh-replay."
        )
    sum_tree.fill(replay.tree, saved["mass"].to(replay.largest.device))
    for name, counter in _counters(replay).items():
        counter.copy_(saved[name])


def clear(replay: Prioritized) -> None:
    """Clear the priority of every row, where replay is started anew."""
    sum_tree.fill(replay.tree, sum_tree.masses(replay.tree)[:, :0])


def _counters(replay: Prioritized) -> dict[str, Tensor]:
    return {"largest": replay.largest, "draws": replay.draws, "refused": replay.refused}


def _like(saved: Tensor, here: Tensor) -> bool:
    fits = saved.shape[:1] == here.shape[:1] and saved.shape[1:] <= here.shape[1:]
    return saved.dtype == here.dtype and saved.dim() == here.dim() and fits


def _in_range(mass: Tensor) -> bool:
    return bool(((mass >= 1) & (mass <= sum_tree.MAX_MASS)).all())
