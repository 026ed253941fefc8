"""The seams where optimizations wrap functions from outside; with no toggle set, each seam is the identity."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from uavlab.core.errors import FallbackWarning, NoteWarning
from uavlab.core.protocols import CheckedTensors
from uavlab.runtime import wrappers
from uavlab.runtime.cuda_graph import GraphedFunction
from uavlab.runtime.finite_check import DeferredCheck, require_finite
from uavlab.runtime.grad_step import CompiledStep, GradientStep, Microbatcher, Rows
from uavlab.runtime.loss_scaler import Scaler
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import TOGGLES, Toggles, changes, notes_on, resolve, with_toggles

F = TypeVar("F", bound=Callable)
STAGE = {"act": "acting", "environment": "environment", "targets": "target"}
"""Stage of each kernel that is timed alone; losses belong to the stage ``forward`` of a gradient step."""


@dataclass(frozen=True)
class Runtime:
    """Where and how functions run.

    Attributes:
        device: Device of every tensor of the run.
        requested: The toggles as set.
        fell_back: Reasons of fallbacks by name of the toggle, for the record of the run.
        notes: What toggles in effect do other than their names say, by name, for the record of the run.
        monitor: Timer of the stages of the loop, or None.
        retries: Work repeated in smaller pieces because memory was refused, for the record of the run.
        ranks: This process among those that train the run.
        on_compile: Functions that are called with the name of a function before it is compiled.
        microbatchers: One for each function whose batches are split, in the order in which functions were wrapped.
        toggles: The toggles in effect; those that cannot be used on this device have their defaults.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    requested: Toggles = field(default_factory=Toggles)
    fell_back: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    monitor: Monitor | None = None
    retries: list[dict[str, Any]] = field(default_factory=list)
    ranks: Ranks = ALONE
    on_compile: list[Callable[[str], Any]] = field(default_factory=list)
    microbatchers: list[Microbatcher] = field(default_factory=list)
    toggles: Toggles = field(init=False)

    def __post_init__(self) -> None:
        """Resolve the toggles, and report those that cannot be used on this device."""
        toggles, reasons = resolve(self.requested, self.device)
        if self.ranks.size > 1:
            unusable = not_with_ranks(toggles)
            toggles = with_toggles(toggles, {name: TOGGLES[name].default for name in unusable})
            reasons |= unusable
        object.__setattr__(self, "toggles", toggles)
        for name, reason in reasons.items():
            self.fall_back(name, reason)
        for name, text in notes_on(toggles, self.device).items():
            if name not in self.notes:
                self.notes[name] = text
                warnings.warn(f"{name}={getattr(toggles, name)}: {text}.", NoteWarning, stacklevel=2)

    def fall_back(self, name: str, reason: str) -> None:
        """Record once that a toggle is not in effect, and warn."""
        if name not in self.fell_back:
            self.fell_back[name] = reason
            line = f"{name}={getattr(self.requested, name)} fell back: {reason}"
            warnings.warn(line, FallbackWarning, stacklevel=2)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Apply process-wide settings, and restore the old ones at the end."""
        with process_flags(self.toggles, self.device):
            yield

    def kernel(self, fn: F, name: str, part: bool = False) -> F:
        """Wrap a pure function of tensors.

        Args:
            fn: A function from tensors (or dataclasses of them) to tensors.
            name: Its name in reports; also selects which toggles apply.
            part: It is called only by updates, which are compiled as a whole.
        """
        toggles, kernel = self.toggles, fn
        if toggles.recompute == "on" and name.endswith("loss"):
            kernel = wrappers.recompute_activations(kernel)  # type: ignore[assignment]
        low = wrappers.DTYPES[toggles.precision] != torch.float32
        if low and name != "environment":  # only networks tolerate lower precision
            kernel = wrappers.autocast(kernel, self.device, toggles.precision)  # type: ignore[assignment]
        for toggle, value in ((TOGGLES[each], value) for each, value in changes(toggles).items()):
            kernel = toggle.wrap(kernel, value, name) if toggle.wrap else kernel  # type: ignore[assignment]
        if toggles.compile != "off" and not part:
            kernel = self._compile(kernel, name)
        return self.time_stage(kernel, STAGE[name]) if name in STAGE else kernel

    def time_stage(self, fn: F, name: str) -> F:
        """Count the time of a function as stage ``name``, except where it is a part of compiled code."""
        if self.monitor is None:
            return fn
        scope = self.monitor.scope

        def call(*args: Any) -> Any:
            if torch.compiler.is_compiling():
                return fn(*args)
            with scope(name):
                return fn(*args)

        return call  # type: ignore[return-value]

    def grad(
        self,
        parameters: Tensor | Sequence[Sequence[Tensor]],
        lr: float,
        clip: float | None,
        stacked: bool = False,
        undo: bool = False,
    ) -> GradientStep:
        """Build the gradient step of one kind of network.

        Args:
            parameters: A matrix whose rows are independent networks (it is copied), or the tensors of each owner.
            lr: Adam's learning rate.
            clip: Largest gradient norm of a row, or of an owner; None for no clipping.
            stacked: The first axis of the owners' tensors counts independent networks.
            undo: Whether steps of single networks will be undone.
        """
        scope = nullcontext if self.monitor is None else self.monitor.scope
        kind: type[GradientStep] = GradientStep
        if isinstance(parameters, Tensor):
            parameters, stacked = [[parameters.detach().clone().requires_grad_()]], True
            kind = GradientStep if self.toggles.compile == "off" else CompiledStep
        shared = self.toggles, self.scaler, self._microbatcher(), scope, self.ranks
        return kind(parameters, lr, clip, stacked, *shared, undo)

    def split_batch(self, fn: Callable[..., Any], what: str, axis: int) -> Callable[..., Any]:
        """Split the batch of a pure function into ``micro_batches`` pieces, and into more if memory is refused.

        Compiled code does not split the batch.

        Args:
            fn: Called with ``Rows`` for the arguments to split; returns tensors, or a tree of them.
            what: Its name in messages.
            axis: The axis of its results that counts rows.
        """
        return partial(self._microbatcher().call, fn, what, axis)

    def split_draw(self, take: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """Split the gathering of replay rows into several index ranges if memory is refused."""
        batcher = self._microbatcher(1, "gather")
        return lambda index: batcher.call(take, "draw", 1, Rows(index, 1))

    def update(self, fn: F, name: str) -> F:
        """Wrap the whole update of a learner."""
        update = self._compile(fn, name) if self.toggles.compile != "off" else fn
        if self.scaler is not None:
            update = self.scaler.wrap(update)  # type: ignore[assignment]
        if self.toggles.graph == "update":
            update = GraphedFunction(update, partial(self.fall_back, "graph"))  # type: ignore[assignment]
        return self.time_stage(update, "update")

    def cycle(self, fn: F, generators: Callable[[], Iterable[torch.Generator]], host_work: str = "") -> F:
        """Wrap one whole cycle of the loop: step, act, store, draw, update, feedback.

        It draws from ``generators``; with ``host_work``, which a graph cannot hold, it is not captured.
        """
        if self.toggles.graph == "cycle" and host_work:
            self.fall_back("graph", host_work)
        elif self.toggles.graph == "cycle":
            return GraphedFunction(fn, partial(self.fall_back, "graph"), generators)  # type: ignore[return-value]
        return fn

    @cached_property
    def scaler(self) -> Scaler | None:
        """The loss scale of all gradient steps; only float16 needs one."""
        return Scaler(self.toggles.scaler, self.device) if self.toggles.precision == "fp16" else None

    @cached_property
    def deferred(self) -> DeferredCheck | None:
        """The check without a host sync, which graphs need, and each GPU profits from."""
        return None if self.toggles.graph == "off" and self.device.type == "cpu" else DeferredCheck(self.device)

    def next_update(self) -> None:
        """Mark the start of an update for the deferred check."""
        if self.deferred is not None:
            self.deferred.next_update()

    def check(self, numbers: CheckedTensors) -> None:
        """Check that numbers are finite: on a CPU at once, on a GPU or with a graph when ``read`` is called.

        Raises:
            DivergedError: A number is not finite.
        """
        if self.deferred is None:
            require_finite(numbers)
        else:
            self.deferred.record(numbers)

    def read(self, number: int) -> None:
        """Read the deferred check and the scaler, if any, up to update ``number`` (host sync).

        Raises:
            DivergedError: A number was not finite.
        """
        if self.deferred is not None:
            self.deferred.read(number)
        if self.scaler is not None:
            self.scaler.check()

    def _microbatcher(self, pieces: int | None = None, phase: str = "forward") -> Microbatcher:
        self.microbatchers.append(Microbatcher(pieces or self.toggles.micro_batches, self.retries, phase))
        return self.microbatchers[-1]

    def _compile(self, fn: F, name: str) -> F:
        def announce(name: str) -> None:
            for listener in self.on_compile:
                listener(name)

        fall_back = partial(self.fall_back, "compile")
        return self.ranks.watch(wrappers.compile_function(fn, name, self.toggles.compile, fall_back, announce))


def not_with_ranks(toggles: Toggles) -> dict[str, str]:
    reasons = {}
    if toggles.graph != "off":
        reasons["graph"] = "a graph cannot combine the gradients of several ranks"
    if toggles.prefetch == "on" and toggles.priorities != "off":
        reasons["prefetch"] = "a thread that draws batches cannot compare their weights with those of other ranks"
    return reasons


@contextmanager
def process_flags(toggles: Toggles, device: torch.device) -> Iterator[None]:
    """Apply the process-wide settings of ``toggles``, and restore the old ones at the end."""
    with ExitStack() as undo:

        def change(read: Callable[[], object], write: Callable, value: object) -> None:
            before = read()
            if before != value:
                write(value)
                undo.callback(write, before)

        change(torch.get_num_threads, torch.set_num_threads, toggles.threads)
        if toggles.deterministic == "on":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it, and reads it once
            change(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
        if device.type == "cuda":
            undo.enter_context(fp32_products("tf32" if toggles.precision == "tf32" else "ieee"))
        if toggles.memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(toggles.memory_fraction, device.index)  # torch 2.11: no device
            undo.callback(torch.cuda.set_per_process_memory_fraction, 1.0, device.index)
        yield


@contextmanager
def fp32_products(precision: str) -> Iterator[None]:
    """Multiply and convolve float32 on a GPU in ``tf32`` or ``ieee`` precision, and restore the settings at the end.

    torch convolves in tf32 by default. Its older settings change the newer ones with them; where only the newer ones
    change, torch refuses to read the older ones, as its compiler does.
    """
    backends: Any = torch.backends
    cudnn = backends.cudnn
    settings = backends.cuda.matmul, cudnn.conv, cudnn.rnn, backends.mkldnn.matmul
    before = [setting.fp32_precision for setting in settings]

    def change(matmul: str, convolution: str) -> None:
        torch.set_float32_matmul_precision("high" if matmul == "tf32" else "highest")
        cudnn.allow_tf32 = convolution == "tf32"

    change(precision, precision)
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = precision  # ``allow_tf32`` may inherit
    try:
        yield
    finally:
        change(*before[:2])
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
