"""A gradient step that a compiler sees through: gradient, clipping and Adam as plain tensor functions.

With it a learner's whole update is one compiled function. Its numbers are those of ``GradientStep`` up to rounding, and
its state is that of one, which also does the work wherever the update is not compiled.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.runtime.grad_step import ADAM_EPS, GradientStep, Rows

BETA1, BETA2 = 0.9, 0.999


class TracedStep:
    """The gradient step ``plain`` on one matrix of independent rows, in a form that can be compiled."""

    def __init__(self, plain: GradientStep) -> None:
        """Share parameter and moments with ``plain``."""
        self.plain, self.parameter = plain, plain.parameter
        (adam,) = plain.adams
        self.lr, self.clip = adam.param_groups[0]["lr"], plain.clip
        self.step, self.exp_avg, self.exp_avg_sq = adam.state[self.parameter].values()
        self.state_dict = plain.state_dict
        # Given, not worked out in the loop over all parameters, where compilers work it out again and again.
        self.factors = self._factors()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.plain.load_state_dict(state)
        self.factors.copy_(self._factors())

    @property
    def parameters(self) -> list[Tensor]:
        """The only parameter, as a list."""
        return [self.parameter]

    @property
    def adams(self) -> list[torch.optim.Adam]:
        """The optimizer that holds the moments, as a list."""
        return self.plain.adams

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Descend ``loss_fn(parameter, ...)``; return metrics and norms before clipping."""
        if torch.compiler.is_compiling():
            return self.traced(loss_fn, *inputs)
        made = self.plain(loss_fn, *inputs)
        self.factors.copy_(self._factors())
        return made

    @torch.no_grad()
    def traced(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Do so without autograd's tape: the gradient is taken with respect to the first input, the parameter.

        Source:
            Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.
        """

        def bare(*given: Any) -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = loss_fn(*given)
            return loss, {name: value.value if isinstance(value, Rows) else value for name, value in metrics.items()}

        given = [value.value if isinstance(value, Rows) else value for value in inputs]
        gradient, (_, metrics) = torch.func.grad_and_value(bare, has_aux=True)(*given)
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
        """Give the next step's size and what its second moments' roots are multiplied by: the corrections of Adam."""
        step = self.step.double() + 1  # 1 - 0.999 has lost four digits in float32
        factors = torch.stack((self.lr / (1 - BETA1**step), (1 - BETA2**step).rsqrt()))
        return factors.to(self.parameter.device)  # where Adam's steps may be counted on the CPU all the same
