"""Loss scaling for float16, below whose smallest numbers gradients fall: losses grow by a factor for their sake.

A gradient that overflows costs its network one step, and the factor is halved; after enough clean iterations it is
doubled. It is one factor for all gradient steps of an iteration, and moves once per iteration.

``torch.amp.GradScaler`` follows the same rule, but has neither floor nor ceiling, waits for the device before each step
of an optimizer that is not fused, and skips the whole optimizer. Here each network stands alone: one row of a stacked
matrix is skipped without the others, and nothing waits.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import DivergedError

T = TypeVar("T")
PRESETS = {"conservative": (2.0**10, 2.0, 0.5, 2000), "aggressive": (2.0**16, 2.0, 0.5, 1000)}
"""First scale, growth, backoff, and clean iterations until it grows; powers of two, so scaling rounds nothing."""
FLOOR, CEILING = 2.0**0, 2.0**24
PATIENCE = 200  # iterations in a row, each with an overflow, after which smaller scales will not help either


class Scaler:
    """The loss scale of a learner; its tensors are changed in place, so that a CUDA graph may hold them."""

    def __init__(self, preset: str, device: torch.device) -> None:
        """Start at the preset's first scale."""
        first, self.growth, self.backoff, self.interval = PRESETS[preset]
        self.scale = torch.tensor(first, dtype=torch.float32, device=device)
        self.clean, self.overflows, self.skipped = torch.zeros(3, dtype=torch.int64, device=device).unbind()
        self.found = torch.zeros((), dtype=torch.bool, device=device)  # an overflow, in this iteration

    def skip(self, norms: Float[Tensor, " G"]) -> Bool[Tensor, " G"]:
        """Tell which networks must not step, by the norms of their gradients."""
        skipped = ~norms.isfinite()
        self.found.logical_or_(skipped.any())
        self.skipped.add_(skipped.sum())
        return skipped

    def update(self) -> None:
        """End an iteration: one change of the scale, whatever its gradient steps met."""
        self.overflows.add_(1).mul_(self.found)
        self.clean.add_(1).mul_(~self.found)
        grown = self.clean == self.interval
        factor = torch.where(self.found, self.backoff, torch.where(grown, self.growth, 1.0))
        self.scale.mul_(factor).clamp_(FLOOR, CEILING)
        self.clean.mul_(~grown)
        self.found.zero_()

    def check(self) -> None:
        """Refuse to go on where no scale helps (host sync).

        Raises:
            DivergedError: Every one of the last 200 iterations had an overflow.
        """
        if (count := int(self.overflows)) >= PATIENCE:
            raise DivergedError(
                {
                    "tensor": "the loss scale",
                    "value": f"{self.scale.item():g} after {count} overflows in a row",
                    "expected": "gradients that float16 can hold at some scale",
                    "kind": "learner",
                },
                "Scale rewards down, or use precision=bf16 or fp32.",
            )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the scale and the counts behind it."""
        return {name: getattr(self, name) for name in ("scale", "clean", "overflows", "skipped")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def scaled(fn: Callable[..., T], scaler: Scaler) -> Callable[..., T]:
    """Let each call of ``fn``, an iteration, move the scale once, whatever its gradient steps met."""

    def call(*args: Any) -> T:
        result = fn(*args)
        scaler.update()
        return result

    return call
