"""A sum tree on tensors, by default with 64 children per node, that samples slots in proportion to their mass.

Masses are int64 fixed point, so sums are exact in any order, every slot with mass can be sampled, and CPU and GPU agree
bit for bit. With a float32 prefix sum over ten million slots, about a tenth of them could never be sampled.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError

UNIT = 2**20  # mass of priority 1
MAX_MASS = 2**36  # largest mass of a slot
MAX_CAPACITY = 2**26  # slots; if all have the largest mass, their sum is 2^62, the range of the int64 noise

FAN = 64  # children of a node
MAX_TOP = 2**14  # nodes of the top level; their prefix sum costs as much as one level of blocks does for 256 rows


@dataclass(frozen=True)
class Tree:
    """Masses of the slots of R runs and their sums, updated in place.

    Levels are the top one (R, nodes), then one block of children per node of the level above (R x nodes, children), run
    after run; the last level holds the masses of the slots.
    """

    levels: tuple[Int[Tensor, "_ _"], ...]
    capacity: int  # slots per run

    @property
    def width(self) -> int:
        """Slots per run, including the padding of the last blocks, whose mass is always 0."""
        return self.levels[-1].numel() // self.levels[0].shape[0]


def empty(runs: int, capacity: int, device: torch.device, fan: int = FAN, top: int = MAX_TOP) -> Tree:
    """Create an empty sum tree; slot 0 of each run has mass 1 of ``UNIT``, so that sampling is always defined."""
    if not 1 <= capacity <= MAX_CAPACITY:
        raise ConfigError(
            f"Prioritized replay: capacity {capacity:,}, expected 1 to {MAX_CAPACITY:,}, because sums of priorities "
            "are 64-bit whole numbers; lower capacity or draw uniformly."
        )
    depth, nodes = 0, capacity
    while nodes > top:
        depth, nodes = depth + 1, -(-nodes // fan)
    shapes = [(runs, nodes), *((runs * nodes * fan**level, fan) for level in range(depth))]
    tree = Tree(tuple(torch.zeros(shape, dtype=torch.int64, device=device) for shape in shapes), capacity)
    fill(tree, tree.levels[0].new_zeros(runs, 0))
    return tree


def fill(tree: Tree, mass: Int[Tensor, "R n"]) -> None:
    """Set the masses of the first n slots and clear the others; with n = 0 the tree is empty again."""
    slots = tree.levels[-1].view(-1, tree.width)
    slots.zero_()
    slots[:, 0] = 1
    slots[:, : mass.shape[1]] = mass
    for above, below in reversed([*pairwise(tree.levels)]):
        above.copy_(below.sum(1).view_as(above))


def masses(tree: Tree) -> Int[Tensor, "R capacity"]:
    """Return the mass of every slot, a view into the tree."""
    return tree.levels[-1].view(-1, tree.width)[:, : tree.capacity]


def fixed_point(priority: Float[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
    """Turn priorities into masses in [1, 2^36], 2^20 per unit of priority; the result is undefined for NaN."""
    return (priority * UNIT).clamp_(1, MAX_MASS).long()


def stratified_points(total: Int[Tensor, "R 1"], noise: Int[Tensor, "R N"]) -> Int[Tensor, "R N"]:
    """Draw a point of [0, total) from each of N equal parts: floor((k total + noise mod total) / N) for part k.

    With ``noise`` in [0, 2^62), every point of all parts is equally likely up to a relative error of total / 2^62. As k
    total would overflow, total is split into its quotient and remainder by N.
    """
    count = noise.shape[1]
    part = torch.arange(count, device=noise.device)
    within = torch.addcmul(noise.remainder(total), part, total.remainder(count))
    return torch.addcmul(within // count, part, total // count)


def sample(tree: Tree, noise: Int[Tensor, "R N"]) -> tuple[Int[Tensor, "R N"], Int[Tensor, "R N"]]:
    """Return N slots of each run, one from each of N equal parts of its mass, and their masses."""
    ends = tree.levels[0].cumsum(1)
    return find_slots(tree, ends, stratified_points(ends[:, -1:], noise))


def find_slots(
    tree: Tree, ends: Int[Tensor, "R top"], point: Int[Tensor, "R N"]
) -> tuple[Int[Tensor, "R N"], Int[Tensor, "R N"]]:
    """Return the first slot whose cumulative mass exceeds each point of [0, total), and its mass, by top ``ends``."""
    child = torch.searchsorted(ends, point, right=True)
    flat = offset_by_run(child, ends.shape[1]).view(-1)
    for blocks in tree.levels[1:]:
        to_end = (ends.gather(1, child) - point).view(-1, 1)  # a node and its last child have the same end
        ends = blocks.index_select(0, flat).cumsum(1)
        point = ends[:, -1:] - to_end
        child = torch.searchsorted(ends, point, right=True)
        flat = torch.add(child.view(-1), flat, alpha=blocks.shape[1])
    mass = tree.levels[-1].view(-1).index_select(0, flat)
    runs = tree.levels[0].shape[0]
    return offset_by_run(flat.view(runs, -1), -tree.width), mass.view(runs, -1)


def update(
    tree: Tree, slot: Int[Tensor, "R N"], mass: Int[Tensor, "R N"], skip: Bool[Tensor, "R N"] | None = None
) -> Int[Tensor, "R N"]:
    """Set the masses of slots and return them; for a slot that occurs several times the last mass is used.

    Slots are in [0, capacity), masses in [1, 2^36]. Entries that ``skip`` marks change nothing; for them the mass of
    slot 0 is returned.

    Each mass carries its position in the batch in its upper bits, so the largest value written to a slot is the last
    one on every device, and exceeds the old mass, which has no such bits. Only that write adds its difference to the
    nodes above. The tree must not be sampled during an update.
    """
    stamp = 2 * MAX_MASS
    stamped = mass + torch.arange(stamp, (slot.shape[1] + 1) * stamp, stamp, device=slot.device)
    if skip is not None:
        slot, stamped = slot.masked_fill(skip, 0), stamped.masked_fill_(skip, 0)
    flat, stamped = offset_by_run(slot, tree.width).view(-1), stamped.view(-1)
    slots = tree.levels[-1].view(-1)
    before = slots.index_select(0, flat)
    slots.scatter_reduce_(0, flat, stamped, "amax")
    winner = slots.index_select(0, flat)
    after = winner & (stamp - 1)
    slots.index_copy_(0, flat, after)
    change = (after - before).mul_(winner == stamped)
    for blocks in reversed(tree.levels[:-1]):
        flat = flat // (slots.numel() // blocks.numel())
        slots = blocks.view(-1)
        slots.index_add_(0, flat, change)
    return after.view_as(slot)


def offset_by_run(slot: Int[Tensor, "R N"], width: int) -> Int[Tensor, "R N"]:
    """Turn slots of each run into slots of all runs, ``width`` per run; ``-width`` inverts this."""
    runs = slot.shape[0]
    return slot if runs == 1 else slot + torch.arange(0, runs * width, width, device=slot.device)[:, None]
