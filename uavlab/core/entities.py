"""Things of which worlds have different numbers, in slots of a fixed number."""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor

Count = Annotated[int, Ge(0), Le(256)]
"""A number of things in a world."""


@dataclass(frozen=True)
class Entities:
    """Two kinds of things that a vector observation lists, and moves that are pairs of them, such as UAV and target.

    An observation holds the features of all rows, then those of all columns, then how many nearest rows and columns
    count as neighbours. The first feature of a thing is 1 if it counts, or 0; the next two are its place. Move
    (row x M + column) x S + s is the s-th of the pair (row, column).

    Attributes:
        rows: Things that act (N).
        columns: Things on which they act (M).
        features: Features of each thing (F).
        moves: Moves of each pair (S).
    """

    rows: int
    columns: int
    features: int
    moves: int

    @property
    def width(self) -> int:
        """Features of an observation."""
        return (self.rows + self.columns) * self.features + 2

    def split(
        self, x: Float[Tensor, "*lead O"]
    ) -> tuple[Float[Tensor, "*lead N F"], Float[Tensor, "*lead M F"], Float[Tensor, "*lead 2"]]:
        """Return the features of rows and of columns, and the numbers of neighbours."""
        row, column, near = x.split([self.rows * self.features, self.columns * self.features, 2], -1)
        return row.unflatten(-1, (self.rows, -1)), column.unflatten(-1, (self.columns, -1)), near

    def masks(self, x: Float[Tensor, "*lead O"]) -> tuple[Bool[Tensor, "*lead N"], Bool[Tensor, "*lead M"]]:
        """Return which rows and which columns count, such as UAVs that are alive and targets that are visible."""
        row, column, _ = self.split(x)
        return row[..., 0] > 0, column[..., 0] > 0


def first_slots(unit: Float[Tensor, " B"], limits: tuple[int, int], slots: int) -> Bool[Tensor, "B slots"]:
    """Mark the first slots of each world, as many as ``unit`` draws, uniformly within the limits.

    >>> first_slots(torch.tensor([0.0, 0.5, 0.99]), (1, 3), 4).sum(1).tolist()
    [1, 2, 3]
    """
    fewest, most = limits
    count = fewest + (unit * (most - fewest + 1)).long()
    return torch.arange(slots, device=unit.device) < count[:, None]
