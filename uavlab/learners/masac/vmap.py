"""MASAC by ``torch.func``: one network as a function of its tensors, and ``vmap`` over the stacked tensors of all."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.learners.masac.base import Evaluate, Step, Unpack
from uavlab.learners.masac.batched import StackedMASAC
from uavlab.learners.masac.loop import evaluate
from uavlab.learners.masac.networks import Theta
from uavlab.nets.mlp import StackedMLP
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.runtime import Runtime


class MASACVmap(StackedMASAC):
    """Networks stacked layer by layer."""

    def _evaluator(self, net: StackedMLP) -> Evaluate:
        return torch.func.vmap(evaluate)

    def _hold(self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None) -> tuple[Step, Theta]:
        # both critics of a pair share an entry of the leading axis, and thus a gradient norm
        lead = (rows.shape[0] * rows.shape[1], *rows.shape[2:-1])
        layers = [layer.detach().reshape(*lead, *layer.shape[1:]).clone() for layer in unpack(rows.flatten(0, -2))]
        step = rt.grad([[layer.requires_grad_() for layer in layers]], lr, clip, stacked=True)
        return step, layers

    def _theta(self, step: GradientStep) -> list[Tensor]:
        return step.parameters

    def _heads(self, theta: Theta) -> list[Tensor]:
        return [layer.flatten(0, 1) for layer in theta]

    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        return torch.cat([layer.flatten(-2) for layer in tensors], -1).view(self.runs, count, -1)
