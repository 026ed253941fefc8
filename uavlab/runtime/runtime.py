"""The six seams at which optimizations act on functions from outside; here each of them does the plain thing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from uavlab.core.protocols import Numbers
from uavlab.runtime.grad import GradientStep
from uavlab.runtime.guard import require_finite

F = TypeVar("F", bound=Callable)


@dataclass(frozen=True)
class Runtime:
    """Where and how functions run; with nothing switched on it is the plain reference.

    Attributes:
        device: Where every tensor of the run lives.
        threads: CPU threads per operation; more than one loses on small networks unless the cores are idle.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Apply what holds for the whole process, and restore it on leaving."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def kernel(self, fn: F, name: str) -> F:
        """Wrap a pure function of tensors; ``name`` is how reports call it."""
        return fn

    def grad(self, parameter: Tensor, lr: float, clip: float | None) -> GradientStep:
        """Build the gradient step of one optimizer."""
        return GradientStep(parameter, lr, clip)

    def update(self, fn: F, name: str) -> F:
        """Wrap a learner's whole mutation of its state."""
        return fn

    def cycle(self, fn: F) -> F:
        """Wrap one whole cycle of the loop: step, act, store, draw, update, feedback."""
        return fn

    def check(self, numbers: Numbers) -> None:
        """Refuse numbers that nothing may be built on; here the device is asked at once (host sync).

        Raises:
            DivergedError: One of them is not finite.
        """
        require_finite(numbers)
