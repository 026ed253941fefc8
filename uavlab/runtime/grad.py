"""One gradient step on a matrix whose rows are independent networks: clip each row by its own norm, then Adam."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

ADAM_EPS = 1e-5
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps for a parameter


class GradientStep:
    """Adam over one parameter matrix; rows never influence one another."""

    def __init__(self, parameter: Float[Tensor, "G P"], lr: float, clip: float | None) -> None:
        """Own ``parameter``; ``clip`` is the largest gradient norm of a row, None for no clipping."""
        self.parameter = parameter.detach().clone().requires_grad_()
        self.clip = clip
        self.adam = torch.optim.Adam([self.parameter], lr=lr, eps=ADAM_EPS, fused=True)

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Tensor]]], *inputs: Any
    ) -> tuple[dict[str, Tensor], Float[Tensor, " G"]]:
        """Descend ``loss_fn(parameter, *inputs)``; return its metrics and each row's gradient norm before clipping."""
        loss, metrics = loss_fn(self.parameter, *inputs)
        (gradient,) = torch.autograd.grad(loss, self.parameter)
        norm = torch.linalg.vector_norm(gradient, dim=1)
        if self.clip is not None:
            gradient.mul_((self.clip / (norm + 1e-6)).clamp(max=1)[:, None])
        self.parameter.grad = gradient
        self.adam.step()
        return metrics, norm

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and Adam's moments."""
        state = self.adam.state[self.parameter]
        moments = {k: state[k] for k in MOMENTS} if state else {}
        return {"parameter": self.parameter.detach(), **moments}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        with torch.no_grad():
            self.parameter.copy_(state["parameter"])
        self.adam.state.pop(self.parameter, None)
        if "step" in state:
            moments = {k: v.to(self.parameter.device).clone() for k, v in state.items() if k != "parameter"}
            self.adam.state[self.parameter] = moments
