"""Rows of several steps: rewards of the next steps of a world, and the observation after the last of them.

Every step adds one row of each world to the ring, so the row k steps later is k times the number of worlds further.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import Transition, tree_map
from uavlab.replay.ring import Ring


@dataclass(frozen=True)
class Returns:
    """Returns of at most ``steps`` steps with the discount ``gamma`` per step, from a ring that ``worlds`` fill."""

    steps: int
    gamma: float
    worlds: int


def take_returns(
    returns: Returns, ring: Ring, take: Callable[[Int[Tensor, "R N"]], Transition], index: Int[Tensor, "R N"]
) -> tuple[Transition, Float[Tensor, "R N"]]:
    """Return rows whose rewards are sums over steps, and the discount of the value after the last one.

    Rewards of an agent are added until its end. A row takes fewer steps where its world ends, or where later rows are
    not stored yet; its discount is gamma to the power of the steps that it took (host sync if the ring is on the host).

    Args:
        returns: Number of steps, discount and worlds.
        ring: The ring of the rows, as it was when ``index`` was drawn.
        take: Copies the rows of slots.
        index: Slots of the first rows.
    """
    rows = take(index)
    over, gamma = rows.truncated | rows.terminated.all(-1), returns.gamma
    discount = torch.full_like(rows.reward[..., 0], gamma)
    for step in range(1, returns.steps):
        slot, stored = later_slots(ring, index, step * returns.worlds)
        after = take(slot)
        goes_on = ~over & stored.to(over.device)
        lives = goes_on[..., None] & ~rows.terminated
        rows = replace(
            rows,
            reward=rows.reward + gamma**step * after.reward.masked_fill(~lives, 0.0),
            next_obs=tree_map(lambda new, old, go=goes_on: where_row(go, new, old), after.next_obs, rows.next_obs),
            terminated=rows.terminated | (lives & after.terminated),
            truncated=rows.truncated | (goes_on & after.truncated),
        )
        discount = torch.where(goes_on, gamma ** (step + 1), discount)
        over = ~goes_on | after.truncated | after.terminated.all(-1)
    return rows, discount


def later_slots(ring: Ring, index: Int[Tensor, "R N"], rows: int) -> tuple[Int[Tensor, "R N"], Bool[Tensor, "R N"]]:
    """Return the slots of rows that were added ``rows`` later, and whether they hold them."""
    place = index.to(ring.cursor.device) - (ring.cursor - ring.size)  # after the oldest row
    return (index + rows).remainder(ring.capacity), place.remainder(ring.capacity) + rows < ring.size


def where_row(mask: Bool[Tensor, "R N"], chosen: Tensor, other: Tensor) -> Tensor:
    """Return ``chosen`` in rows where ``mask`` is true, ``other`` elsewhere."""
    return torch.where(mask.view(*mask.shape, *[1] * (chosen.dim() - 2)), chosen, other)
