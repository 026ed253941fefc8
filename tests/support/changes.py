"""Comparison of learners in lower precision by what their updates changed, and optimizers that it must catch.

Parameters themselves are dominated by their initial values: an optimizer that never steps would be close to any other.
"""

import torch
from torch import Tensor

from uavlab.runtime.grad_step import GradientStep

Tables = dict[str, Tensor]

CHANGE, GRADIENT, BLOCK = 0.5, 0.5, 16  # of what plain moved, and of each block of its gradient; numbers of a block


def change_errors(tables: Tables, plain: Tables, first: Tables) -> dict[str, float]:
    """Return the difference of the changes of each table, relative to the change of the plain one."""
    moved = {name: table - first[name] for name, table in plain.items() if name.endswith("parameter")}
    return {
        name: float((tables[name] - plain[name]).norm() / change.norm())
        for name, change in moved.items()
        if change.any()
    }


def gradient_errors(tables: Tables, plain: Tables) -> dict[str, float]:
    """Return the largest relative difference of any block of each first moment, which is a share of the gradient."""
    worst = {}
    for name, table in plain.items():
        if name.endswith("exp_avg") and table.any():
            pad = [0, -table.numel() % BLOCK]
            a, b = (torch.nn.functional.pad(each.flatten(), pad).view(-1, BLOCK) for each in (tables[name], table))
            size = b.norm(dim=1)
            worst[name] = float(((a - b).norm(dim=1) / size)[size > 0].max())
    return worst


def no_step(self: GradientStep, gradients: list[Tensor]) -> Tensor:
    return torch.ones(sum(len(owner[0]) if self.stacked else 1 for owner in self.owners))


def wrong_sign(self: GradientStep, gradients: list[Tensor]) -> Tensor:
    return APPLY(self, [-gradient for gradient in gradients])


def one_layer_left_out(self: GradientStep, gradients: list[Tensor]) -> Tensor:
    gradients[0][..., :BLOCK] = 0
    return APPLY(self, gradients)


APPLY = GradientStep._apply
BROKEN = (no_step, wrong_sign, one_layer_left_out)
