"""Dynamic loss scaling for float16: losses are multiplied by a scale so that small gradients do not underflow.

A network whose gradient overflows skips one step, and the scale is halved; after enough iterations without an overflow
it is doubled. All gradient steps of an iteration share one scale, which changes once per iteration.

``torch.amp.GradScaler`` follows the same rule, but has neither floor nor ceiling, waits for the device before each step
of an optimizer that is not fused, and skips the whole optimizer. ``Scaler`` skips single rows of a stacked matrix,
without a host sync.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import DivergedError

T = TypeVar("T")
PRESETS = {"conservative": (2.0**10, 2.0, 0.5, 2000), "aggressive": (2.0**16, 2.0, 0.5, 1000)}
"""Initial scale, growth, backoff (exact powers of two), and iterations without overflow until it grows."""
FLOOR, CEILING = 2.0**0, 2.0**24
MAX_OVERFLOWS = 200  # iterations in a row with an overflow


class Scaler:
    """The loss scale of a learner; its tensors change in place, as CUDA graphs require."""

    def __init__(self, preset: str, device: torch.device) -> None:
        first, self.growth, self.backoff, self.interval = PRESETS[preset]
        self.scale = torch.tensor(first, dtype=torch.float32, device=device)
        self.clean, self.overflows, self.skipped = torch.zeros(3, dtype=torch.int64, device=device).unbind()
        self.overflow = torch.zeros((), dtype=torch.bool, device=device)  # in this iteration

    def skip(self, norms: Float[Tensor, " G"]) -> Bool[Tensor, " G"]:
        """Mark and count the networks whose gradient norm is not finite, which must skip their step."""
        skipped = ~norms.isfinite()
        self.overflow.logical_or_(skipped.any())
        self.skipped.add_(skipped.sum())
        return skipped

    def update(self) -> None:
        """End an iteration and change the scale once."""
        self.overflows.add_(1).mul_(self.overflow)
        self.clean.add_(1).mul_(~self.overflow)
        grow = self.clean == self.interval
        factor = torch.where(self.overflow, self.backoff, torch.where(grow, self.growth, 1.0))
        self.scale.mul_(factor).clamp_(FLOOR, CEILING)
        self.clean.mul_(~grow)
        self.overflow.zero_()

    def check(self) -> None:
        """Check that some scale prevents overflows (host sync)."""
        if (count := int(self.overflows)) >= MAX_OVERFLOWS:
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
        return {name: getattr(self, name) for name in ("scale", "clean", "overflows", "skipped")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])

    def wrap(self, fn: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any) -> T:
            result = fn(*args)
            self.update()
            return result

        return call
