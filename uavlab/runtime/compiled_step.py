"""A gradient step that can be compiled: gradient, clipping and Adam as plain tensor functions.

It makes a learner's whole update one compiled function. Its results equal those of ``GradientStep`` up to rounding. It
holds a ``GradientStep``, which has the state, and does the work where the update is not compiled.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.runtime.grad_step import ADAM_EPS, GradientStep, Rows

BETA1, BETA2 = 0.9, 0.999


class CompiledStep:
    """The gradient step ``plain`` on one matrix of independent rows, in a form that can be compiled."""

    def __init__(self, plain: GradientStep) -> None:
        """Share the parameter and the moments of ``plain``."""
        self.plain, self.parameter, self.parameters = plain, plain.parameter, plain.parameters
        self.adams = plain.adams
        (adam,) = plain.adams
        self.lr, self.clip = adam.param_groups[0]["lr"], plain.clip
        self.step, self.exp_avg, self.exp_avg_sq = adam.state[self.parameter].values()
        self.state_dict = plain.state_dict
        # an input of the compiled function: inside, compilers would recompute it for every parameter
        self.factors = self._factors()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.plain.load_state_dict(state)
        self.factors.copy_(self._factors())

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Take a step that lowers ``loss_fn(parameter, ...)``; return metrics and norms before clipping."""
        if torch.compiler.is_compiling():
            return self.functional_step(loss_fn, *inputs)
        result = self.plain(loss_fn, *inputs)
        self.factors.copy_(self._factors())
        return result

    @torch.no_grad()
    def functional_step(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Take the step without autograd's tape; the gradient is that of the first input, the parameter.

        Source:
            Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.
        """

        def loss_without_rows(*values: Any) -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = loss_fn(*values)
            return loss, {name: value.value if isinstance(value, Rows) else value for name, value in metrics.items()}

        values = [value.value if isinstance(value, Rows) else value for value in inputs]
        gradient, (_, metrics) = torch.func.grad_and_value(loss_without_rows, has_aux=True)(*values)
        norm = torch.linalg.vector_norm(gradient, dim=1)
        if self.clip is not None:
            gradient = gradient * (self.clip / (norm + 1e-6)).clamp(max=1)[:, None]
        size, shrink = self.factors.to(gradient.dtype).unbind()
        self.step.add_(1)
        self.exp_avg.lerp_(gradient, 1 - BETA1)
        self.exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        self.parameter.sub_(size * self.exp_avg / (self.exp_avg_sq.sqrt() * shrink + ADAM_EPS))
        self.factors.copy_(self._factors())
        return metrics, norm

    def _factors(self) -> Float[Tensor, "2"]:
        """Return Adam's bias corrections of the next step: its size, and the factor of the second moments' roots."""
        step = self.step.double() + 1  # in float32, 1 - 0.999 would lose four digits
        factors = torch.stack((self.lr / (1 - BETA1**step), (1 - BETA2**step).rsqrt()))
        return factors.to(self.parameter.device)  # Adam may count its steps on the CPU
