"""The seams at which optimizations act on functions from outside; with nothing switched on each is the identity."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from uavlab.core.protocols import CheckedTensors
from uavlab.runtime import wrappers
from uavlab.runtime.compiled_step import TracedStep
from uavlab.runtime.cuda_graph import Captured, DeferredCheck
from uavlab.runtime.finite_check import require_finite
from uavlab.runtime.grad_step import GradientStep
from uavlab.runtime.loss_scaler import Scaler, scaled
from uavlab.runtime.oom_retry import Ladder, Rows, retrying
from uavlab.runtime.process_flags import switched
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles, resolve

F = TypeVar("F", bound=Callable)
STAGE = {"act": "acting", "environment": "environment", "targets": "target"}
"""The stages that kernels are, by their names; losses are part of a gradient step's ``forward``."""


@dataclass(frozen=True)
class Runtime:
    """Where and how functions run.

    Attributes:
        device: Where every tensor of the run lives.
        asked: The toggles as they were set; those that cannot be used fall back to the plain reference.
        fell_back: Why, by the name of the toggle; for the run's record.
        monitor: Times the stages of the loop, if there is one.
        retries: What was tried again in smaller pieces because memory was refused; for the run's record.
        ladders: How finely each function's batches are cut, in the order in which functions were wrapped.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    asked: Toggles = field(default_factory=Toggles)
    fell_back: dict[str, str] = field(default_factory=dict)
    monitor: Monitor | None = None
    retries: list[dict[str, Any]] = field(default_factory=list)
    ladders: list[Ladder] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Tell which toggles cannot be used here."""
        for name, reason in resolve(self.asked, self.device)[1].items():
            self.fall_back(name, reason)

    @property
    def toggles(self) -> Toggles:
        """The toggles that can be used on this device."""
        return resolve(self.asked, self.device)[0]

    def fall_back(self, name: str, reason: str) -> None:
        """Record, and say once, that a toggle is not in effect."""
        if name not in self.fell_back:
            self.fell_back[name] = reason
            wrappers.tell(name, getattr(self.asked, name), reason)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Apply what holds for the whole process, and restore it on leaving."""
        with switched(self.toggles, self.device):
            yield

    def kernel(self, fn: F, name: str, part: bool = False) -> F:
        """Wrap a pure function of tensors.

        Args:
            fn: Tensors (or dataclasses of them) to tensors.
            name: How reports call it.
            part: It is called in updates alone, which are compiled as a whole.
        """
        toggles, made = self.toggles, fn
        if toggles.recompute == "on" and name.endswith("loss"):
            made = wrappers.recomputed(made)  # type: ignore[assignment]
        low = wrappers.DTYPES[toggles.precision] != torch.float32
        if low and name != "environment":  # only networks bear fewer digits
            made = wrappers.in_precision(made, self.device, toggles.precision)  # type: ignore[assignment]
        if toggles.compile != "off" and not part:
            made = self._compiled(made, name)
        return self.timed(made, STAGE[name]) if name in STAGE else made

    def timed(self, fn: F, name: str) -> F:
        """Count what a function takes as stage ``name``; nothing else is done to it."""
        if self.monitor is None:
            return fn
        monitor = self.monitor

        def watched(*args: Any) -> Any:
            with monitor.scope(name):
                return fn(*args)

        return watched  # type: ignore[return-value]

    def grad(
        self, parameters: Tensor | Sequence[Sequence[Tensor]], lr: float, clip: float | None, stacked: bool = False
    ) -> GradientStep | TracedStep:
        """Build the gradient step of one kind of network.

        Args:
            parameters: A matrix whose rows are independent networks, which is copied; or each owner's own tensors.
            lr: Adam's learning rate.
            clip: Largest gradient norm of a row, or of an owner; None for no clipping.
            stacked: The owners' tensors lead with an axis of independent networks.
        """
        scope = nullcontext if self.monitor is None else self.monitor.scope
        if isinstance(parameters, Tensor):
            copy = parameters.detach().clone().requires_grad_()
            plain = GradientStep([[copy]], lr, clip, True, self.toggles, self.scaler, self._ladder(), scope)
            return plain if self.toggles.compile == "off" else TracedStep(plain)
        return GradientStep(parameters, lr, clip, stacked, self.toggles, self.scaler, self._ladder(), scope)

    def in_pieces(self, fn: Callable[..., Any], what: str, axis: int) -> Callable[..., Any]:
        """Let a pure function take its batch in ``micro_batches`` pieces, and in more where memory is refused.

        Compiled code allocates as a whole, and takes the batch whole.

        Args:
            fn: Called with ``Rows`` for what is to be cut; gives tensors, or a tree of them.
            what: How messages call it.
            axis: Which axis of what it gives counts the rows.
        """
        in_turn = retrying(lambda *given: Rows(fn(*given), axis), what, self._ladder())

        def call(*given: Any) -> Any:
            if torch.compiler.is_compiling():
                return fn(*(each.value if isinstance(each, Rows) else each for each in given))
            return in_turn(*given)

        return call

    def draw(self, take: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """Let rows be taken out of replay by their index, a part after the other where memory is refused."""
        ladder = self._ladder(1, "gather")
        in_turn = retrying(lambda index: Rows(take(index), 1), "draw", ladder)
        return lambda index: in_turn(Rows(index, 1))

    def update(self, fn: F, name: str) -> F:
        """Wrap a learner's whole mutation of its state."""
        made = self._compiled(fn, name) if self.toggles.compile != "off" else fn
        if self.scaler is not None:
            made = scaled(made, self.scaler)  # type: ignore[assignment]
        if self.toggles.graph == "update":
            made = Captured(made, partial(self.fall_back, "graph"))  # type: ignore[assignment]
        return self.timed(made, "update")

    def cycle(self, fn: F, generators: Callable[[], Iterable[torch.Generator]]) -> F:
        """Wrap one whole cycle of the loop: step, act, store, draw, update, feedback; it draws from ``generators``."""
        if self.toggles.graph == "cycle":
            return Captured(fn, partial(self.fall_back, "graph"), generators)  # type: ignore[return-value]
        return fn

    @cached_property
    def scaler(self) -> Scaler | None:
        """The loss scale of all gradient steps, where numbers are small enough to need one."""
        return Scaler(self.toggles.scaler, self.device) if self.toggles.precision == "fp16" else None

    @cached_property
    def deferred(self) -> DeferredCheck | None:
        """What keeps findings on the device where nothing may wait for them."""
        return None if self.toggles.graph == "off" else DeferredCheck(self.device)

    def next_update(self) -> None:
        """Tell a check that is read later where an update begins."""
        if self.deferred is not None:
            self.deferred.next_update()

    def check(self, numbers: CheckedTensors) -> None:
        """Refuse numbers that nothing may be built on: at once (host sync), or with a graph when ``read`` is called.

        Raises:
            DivergedError: One of them is not finite.
        """
        if self.deferred is None:
            require_finite(numbers)
        else:
            self.deferred.record(numbers)

    def read(self, number: int) -> None:
        """Refuse what was found since the last time, up to update ``number`` (host sync, if anything was left to find).

        Raises:
            DivergedError: A number was not finite.
        """
        if self.deferred is not None:
            self.deferred.read(number)
        if self.scaler is not None:
            self.scaler.check()

    def _ladder(self, pieces: int | None = None, phase: str = "forward") -> Ladder:
        self.ladders.append(Ladder(pieces or self.toggles.micro_batches, self.retries, phase))
        return self.ladders[-1]

    def _compiled(self, fn: F, name: str) -> F:
        return wrappers.compiled(fn, name, self.toggles.compile, partial(self.fall_back, "compile"))
