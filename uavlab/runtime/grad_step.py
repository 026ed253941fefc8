"""One gradient step: sum the gradients of the pieces of a batch, clip each network by its own norm, apply Adam.

When memory is refused, the batch is split into more pieces and tried again. The result equals that of a batch split
this way from the start. The failed attempt must not have changed any state, as with pure functions, and with gradients
until an optimizer applies them.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError, ResourceError, RetryWarning
from uavlab.core.types import tree_map
from uavlab.runtime.cuda_graph import tree_tensors
from uavlab.runtime.loss_scaler import Scaler
from uavlab.runtime.oom_retry import free_cache, refusal_reason
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.toggles import Toggles
from uavlab.storage.machine import memory

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """An argument or a result of a function in which axis ``axis`` counts the rows of the batch.

    It is split with the batch where memory demands it; other arguments and results are not.

    Attributes:
        value: A tensor, a tree of tensors, or None.
        axis: The axis, the same in every tensor of a tree.
    """

    value: Any
    axis: int


def values_of(parts: Sequence[Any]) -> list[Any]:
    return [part.value if isinstance(part, Rows) else part for part in parts]


def split_rows(inputs: Sequence[Any], pieces: int) -> list[tuple[float, list[Any]]]:
    """Return each piece's share of the rows, and the inputs with their parts; there is at most one piece per row."""
    rows = count_rows(inputs) if pieces > 1 else 1
    if rows == 1:
        return [(1.0, values_of(inputs))]
    pieces = min(pieces, rows)
    ends = pairwise(rows * k // pieces for k in range(pieces + 1))
    return [((end - start) / rows, [_narrow(part, start, end) for part in inputs]) for start, end in ends]


def _narrow(part: Any, start: int, end: int) -> Any:
    if not isinstance(part, Rows):
        return part
    return tree_map(lambda leaf: leaf.narrow(part.axis, start, end - start), part.value)


def count_rows(inputs: Sequence[Any]) -> int:
    """Count the rows of the batch; 1 if no input is marked as ``Rows``, so that nothing is split."""
    counts = {leaf.shape[part.axis] for part in inputs if isinstance(part, Rows) for leaf in tree_tensors(part)}
    if len(counts) > 1:
        raise ConfigError(f"Rows: inputs have {sorted(counts)} rows; expected one number. Mark the axis of each right.")
    return counts.pop() if counts else 1


def join_metrics(results: Sequence[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Join the metrics of pieces, each with its share of the rows: concatenate ``Rows``, average the others."""
    (share, first), *others = results
    joined = {}
    for name, value in first.items():
        if isinstance(value, Rows):
            joined[name] = join_rows([value.value, *(metrics[name].value for _, metrics in others)], value.axis)
        else:
            joined[name] = sum((part * metrics[name] for part, metrics in others), share * value) if others else value
    return joined


def join_rows(parts: Sequence[Any], axis: int) -> Any:
    """Return trees of tensors whose axis ``axis`` counts rows as one tree."""
    return tree_map(lambda *leaf: torch.cat(leaf, axis), *parts) if len(parts) > 1 else parts[0]


@dataclass
class Microbatcher:
    """Splits the batches of one function into pieces: more each time memory is refused, never fewer again."""

    pieces: int = 1
    retries: list[dict[str, Any]] = field(default_factory=list)  # records of all microbatchers of a run
    phase: str = "forward"  # under way, for messages and records

    def call(self, fn: Callable, what: str, axis: int, *inputs: Any) -> Any:
        """Call a pure function with its batch split, but in compiled code; ``axis`` of its result counts rows."""
        if torch.compiler.is_compiling():
            return fn(*values_of(inputs))

        def attempt(pieces: int) -> Any:
            return join_rows([fn(*values) for _, values in split_rows(inputs, pieces)], axis)

        return self.run(what, attempt, inputs)

    def run(
        self,
        what: str,
        attempt: Callable[[int], T],
        inputs: Sequence[Any],
        other_bytes: Mapping[str, int] | None = None,
        split: bool = True,
    ) -> T:
        """Call ``attempt(pieces)``, again with twice as many pieces each time memory is refused, down to single rows.

        It changes nothing unless it returns. Without ``split``, more pieces need no less memory, and it is tried once
        more with the same number. Messages name ``what`` it is, its inputs and other memory in use.
        """
        first = True
        while True:
            try:
                return attempt(self.pieces)
            except (MemoryError, RuntimeError) as error:
                reason = refusal_reason(error)
            # the tensors of the failed attempt are only free after the except block
            rows = count_rows(inputs)
            exhausted = self.pieces >= rows if split else not first
            if exhausted:
                raise self._exhausted(what, reason, inputs, other_bytes or {})
            self._retry(what, reason, min(2 * self.pieces, rows) if split else self.pieces)
            first = False

    def _retry(self, what: str, reason: str, pieces: int) -> None:
        how = f"{pieces} pieces instead of {self.pieces} from now on" if pieces > self.pieces else "once more"
        warnings.warn(f"{what}: memory was refused in {self.phase}; {how} ({reason})", RetryWarning, stacklevel=4)
        self.retries.append({"what": what, "phase": self.phase, "from": self.pieces, "to": pieces})
        self.pieces = pieces
        free_cache()

    def _exhausted(
        self, what: str, reason: str, inputs: Sequence[Any], other_bytes: Mapping[str, int]
    ) -> ResourceError:
        tensors = list(tree_tensors([part for part in inputs if isinstance(part, Tensor | Rows)]))
        device = tensors[0].device if tensors else torch.device("cpu")
        sizes = {"inputs": sum(tensor.nbytes for tensor in tensors), **other_bytes, **memory(device)}
        width = max(map(len, sizes))
        table = "\n".join(f"  {name:<{width}} {size:>18,} bytes" for name, size in sizes.items())
        return ResourceError(
            f"{what}: memory was refused in {self.phase} with batches in {self.pieces} pieces ({reason}); expected "
            f"room for one row at a time. Held on {device}:\n{table}\n"
            "Lower hidden, runs or capacity, or free some memory."
        )


# Adam as in Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1, a step count per row.
ADAM_EPS, BETA1, BETA2 = 1e-5, 0.9, 0.999
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # state of Adam for a parameter


def adam_factors(lr: float, step: Tensor) -> Float[Tensor, "2 ..."]:
    """Return Adam's factors in step t: lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
    step = step.double()  # in float32, 1 - 0.999 would lose four digits
    return torch.stack((lr / (1 - BETA1**step), (1 - BETA2**step).rsqrt()))


def adam_step(mean: Tensor, square: Tensor, size: Tensor, shrink: Tensor) -> Tensor:
    """Return by how much parameters fall in a step, from Adam's moments and ``adam_factors``."""
    return size * mean / (square.sqrt() * shrink + ADAM_EPS)


SCRATCH = {"single": 2, "foreach": 2, "fused": 0}  # temporary copies of its parameters in a step of Adam, at most


class GradientStep:
    """Adam over the parameters of several owners (groups of tensors), each clipped by its own norm.

    No state changes before the last gradient is computed, so a batch that is too large can be split and tried again.
    The first axis of ``stacked`` parameters counts independent networks, which are clipped one by one. If ``rate`` is
    set, it is the share of the learning rate that holds now, and so is ``own_rate`` for each network; tensors, so that
    captured and compiled steps follow them.

    Adam's bias corrections follow the steps that each network took. Owners have a count for each tensor; stacked
    networks share one, and ``behind`` is how many of these steps each of them did not take. It is None where no network
    can be held back.
    """

    rate: Float[Tensor, ""] | None = None
    own_rate: Float[Tensor, " G"] | None = None

    def __init__(
        self,
        owners: Sequence[Sequence[Tensor]],
        lr: float,
        clip: float | None,
        stacked: bool,
        toggles: Toggles,
        scaler: Scaler | None = None,
        microbatcher: Microbatcher | None = None,
        scope: Callable[[str], AbstractContextManager] = nullcontext,
        ranks: Ranks = ALONE,
        undo: bool = False,
    ) -> None:
        """Create the optimizers; steps change the given tensors in place.

        All gradient steps of an update share ``scaler``; ``scope`` times the stages ``forward``, ``backward`` and
        ``optimizer``; gradients are averaged over ``ranks`` before they are clipped, so that all take the same step;
        with ``undo``, that method will be called.
        """
        self.scope, self.ranks = scope, ranks
        self.owners, self.clip, self.stacked = [list(owner) for owner in owners], clip, stacked
        self.parameters = [parameter for owner in self.owners for parameter in owner]
        self.scaler, self.microbatcher = scaler, microbatcher or Microbatcher(toggles.micro_batches)
        groups = [self.parameters] if toggles.optimizers == "one" else self.owners
        self.device = self.parameters[0].device
        # with step counts on the CPU, a capture would fail and a skipped step would be a host sync
        capturable = self.device.type == "cuda" and (toggles.graph != "off" or scaler is not None)
        foreach, fused = toggles.adam == "foreach" or None, toggles.adam == "fused" or None  # None: torch's own default
        build = partial(torch.optim.Adam, lr=lr, eps=ADAM_EPS, foreach=foreach, fused=fused, capturable=capturable)
        self.adams, self.lr = [build(group) for group in groups], lr
        counter_device = self.device if capturable or fused else torch.device("cpu")
        several = len(self.parameters) > 1
        self._named: list[tuple[str, torch.optim.Adam, Tensor]] = []  # prefix of names, Adam, parameter
        for owner, adam in zip(self.owners, self.adams * (len(self.owners) // len(self.adams)), strict=True):
            for parameter in owner:
                self._named.append((f"{len(self._named)}." if several else "", adam, parameter))
        for _, adam, parameter in self._named:  # now, not in the first step, where memory may be refused midway
            steps = torch.zeros((), dtype=torch.float32, device=counter_device)
            moments = (steps, torch.zeros_like(parameter), torch.zeros_like(parameter))
            adam.state[parameter] = dict(zip(MOMENTS, moments, strict=True))
        sizes = [sum(parameter.nbytes for parameter in group) for group in groups]
        undo = undo or scaler is not None
        self.behind = torch.zeros(len(self.parameters[0]), device=self.device) if undo and stacked else None
        self._scratch = SCRATCH[toggles.adam] * max(sizes) + (3 * sum(sizes) if undo else 0)
        self._memory = {"parameters": sum(sizes), "gradients": sum(sizes), "moments": 2 * sum(sizes)}

    @property
    def parameter(self) -> Tensor:
        (parameter,) = self.parameters
        return parameter

    @property
    def count(self) -> int:
        """Steps so far, of the network that took most of them (host sync)."""
        fewest = 0 if self.behind is None else int(self.behind.min())
        return max(int(state["step"].item()) for adam in self.adams for state in adam.state.values()) - fewest

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Take a step that lowers ``loss_fn(*inputs)``, along the gradient for the parameters of this object alone.

        Other parameters among the inputs stay as they are, so they need no ``detach``.

        Args:
            loss_fn: Returns the loss and metrics by name. The loss is the sum over networks of means over rows, so that
                each network has a gradient of its own. Metrics keep axis R, as in ``loss.detach()`` before the sum.
            inputs: Its arguments, the parameter first (compilation needs it there). ``Rows`` marks those that may be
                split; ``loss_fn`` receives their values.

        Returns:
            The metrics of ``loss_fn``: of pieces of a batch, means, and ``Rows`` joined, which are returned as values;
            and the gradient norm of each network before clipping, 0 if it overflowed and the network was skipped.
        """
        what = getattr(loss_fn, "__name__", "loss")
        for parameter in self.parameters:
            parameter.grad = None
        batcher = self.microbatcher
        gradients, metrics = batcher.run(what, partial(self._gradients, loss_fn, inputs), inputs, self._memory)
        batcher.phase = "optimizer"
        with self.scope("optimizer"):
            batcher.run(what, lambda _: reserve(self._scratch, self.device), inputs, self._memory, split=False)
            return metrics, self._apply(gradients if self.ranks.size == 1 else self.ranks.means(gradients))

    def set_rates(self, share: Float[Tensor, " R"]) -> None:
        """Set the share of the learning rate at which each run's networks learn from now on."""
        count = len(self.parameters[0]) if self.stacked else len(self.owners)
        own = share.to(self.parameters[0]).repeat_interleave(count // len(share))
        self.own_rate = own if self.own_rate is None else self.own_rate.copy_(own)

    def tensors(self, kind: str) -> list[Tensor]:
        """Return all tensors of a kind: ``parameter``, or a name of ``MOMENTS``."""
        if kind == "parameter":
            return [parameter.detach() for parameter in self.parameters]
        return [adam.state[parameter][kind] for _, adam, parameter in self._named]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and Adam's moments, numbered if there are several, and ``behind`` if it is counted."""
        state = {} if self.behind is None else {"behind": self.behind}
        for prefix, adam, parameter in self._named:
            state[f"{prefix}parameter"] = parameter.detach()
            state |= {f"{prefix}{key}": adam.state[parameter][key] for key in MOMENTS}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state.get(name, torch.zeros(())) if name == "behind" else state[name])

    def copy_state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.state_dict().items()}

    def undo(self, held: Bool[Tensor, " G"], before: dict[str, Tensor]) -> None:
        """Return networks to the state ``before`` their last step, as if they had not taken it (no host sync)."""
        state, numbers = self.state_dict(), [n for n, owner in enumerate(self.owners) for _ in owner]
        for number, (prefix, _, parameter) in zip(numbers, self._named, strict=True):
            rows = held.view(-1, *[1] * (parameter.dim() - 1)) if self.stacked else held[number]
            for key in ("parameter", *(MOMENTS[1:] if self.stacked else MOMENTS)):
                tensor, old = state[prefix + key], before[prefix + key]
                tensor.copy_(torch.where(rows, old, tensor, out=old))
        if self.behind is None:
            return
        self.behind.add_(held)
        counters = [adam.state[parameter]["step"] for _, adam, parameter in self._named]
        if counters[0].device == self.behind.device:  # or else it would be a host sync
            common = self.behind.min()  # steps that no network took, which Adam does not count then
            self.behind.sub_(common)
            for counter in counters:
                counter.sub_(common)

    def _gradients(self, loss_fn: Callable, inputs: Sequence[Any], pieces: int) -> tuple[list[Tensor], dict[str, Any]]:
        """Sum the gradients of all pieces, each weighted by its share of the rows."""
        total: list[Tensor] = []
        results = []
        for share, values in split_rows(inputs, pieces):
            gradients, metrics = self._piece(loss_fn, values, share)
            total = [a.add_(b) for a, b in zip(total, gradients, strict=True)] if total else gradients
            results.append((share, metrics))
        return total, join_metrics(results)

    def _piece(self, loss_fn: Callable, values: list[Any], share: float) -> tuple[list[Tensor], dict[str, Any]]:
        self.microbatcher.phase = "forward"
        with self.scope("forward"):
            loss, metrics = loss_fn(*values)
            if share < 1:
                loss = loss * share
            if self.scaler is not None:
                loss = loss * self.scaler.scale
        self.microbatcher.phase = "backward"
        with self.scope("backward"):
            return unshare(torch.autograd.grad(loss, self.parameters)), metrics

    def _apply(self, gradients: list[Tensor]) -> Float[Tensor, " G"]:
        """Clip the gradients and step, except where a gradient overflowed."""
        if self.scaler is not None:
            shrink = self.scaler.scale.reciprocal()
            for gradient in gradients:
                gradient.mul_(shrink)
        remaining, norms = iter(gradients), []
        for owner in self.owners:
            group = [next(remaining) for _ in owner]
            norms.append(self._clip(group))
            for parameter, gradient in zip(owner, group, strict=True):
                parameter.grad = gradient
        norm = torch.cat(norms)
        if self.scaler is not None:
            skipped = self.scaler.skip(norm)
            before = self.copy_state()
        self._step()
        if self.scaler is None:
            return norm
        self.undo(skipped, before)
        return norm.masked_fill(skipped, 0)

    @torch.no_grad()
    def _step(self) -> None:
        """Step by Adam; with a rate, which not every Adam of torch accepts as a tensor, by a share of its step."""
        slowed = self.rate is not None or self.own_rate is not None
        before = [parameter.clone() for parameter in self.parameters] if slowed or self.behind is not None else []
        for adam in self.adams:
            adam.step()
        if self.behind is not None:
            self._correct(self.behind, before)
        if slowed:
            remaining = iter(before)
            for number, owner in enumerate(self.owners):
                for parameter in owner:
                    parameter.copy_(next(remaining).lerp(parameter, self._share(parameter, number)))

    def _correct(self, behind: Float[Tensor, " G"], before: Sequence[Tensor]) -> None:
        """Step networks that took fewer steps than Adam counts by their own counts."""
        for old, (_, adam, parameter) in zip(before, self._named, strict=True):
            step, *moments = (adam.state[parameter][key] for key in MOMENTS)
            rows = behind.view(-1, *[1] * (parameter.dim() - 1))
            step = adam_step(*moments, *adam_factors(self.lr, step - rows).to(parameter.dtype))
            parameter.copy_(torch.where(rows > 0, old - step, parameter))

    def _share(self, parameter: Tensor, owner: int = 0) -> Tensor:
        """Return the share of the learning rate for a parameter: a number, or one for each of its networks."""
        if self.own_rate is None:
            return self.rate  # type: ignore[return-value]
        own = self.own_rate.view(-1, *[1] * (parameter.dim() - 1)) if self.stacked else self.own_rate[owner]
        return own if self.rate is None else own * self.rate

    def _clip(self, gradients: list[Tensor]) -> Float[Tensor, " G"]:
        """Clip the gradients of one owner, or of each of its stacked networks; return the norms before clipping."""
        if self.stacked:
            norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
            norm = torch.linalg.vector_norm(norms, dim=0) if len(gradients) > 1 else norms[0]
        else:
            norm = torch.nn.utils.get_total_norm(gradients)[None]
        if self.clip is not None:
            factor = (self.clip / (norm + 1e-6)).clamp(max=1)
            for gradient in gradients:
                gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))
        return norm


class CompiledStep(GradientStep):
    """A gradient step on one matrix of independent rows; in a compiled update it is pure, and equal up to rounding."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        (adam,) = self.adams
        self.step, self.exp_avg, self.exp_avg_sq = adam.state[self.parameter].values()
        # computed outside the compiled function, where compilers would recompute it for every parameter
        self.factors = self._factors()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.factors.copy_(self._factors())

    def undo(self, held: Bool[Tensor, " G"], before: dict[str, Tensor]) -> None:
        super().undo(held, before)
        self.factors.copy_(self._factors())

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        if torch.compiler.is_compiling():
            return self.functional_step(loss_fn, *inputs)
        result = super().__call__(loss_fn, *inputs)
        self.factors.copy_(self._factors())
        return result

    @torch.no_grad()
    def functional_step(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Take the step by ``torch.func``; the first input is the parameter."""

        def loss_without_rows(*values: Any) -> tuple[Tensor, dict[str, Tensor]]:
            loss, metrics = loss_fn(*values)
            return loss, join_metrics([(1.0, metrics)])

        values = values_of(inputs)
        gradient, (_, metrics) = torch.func.grad_and_value(loss_without_rows, has_aux=True)(*values)
        (gradient,) = self.ranks.means([gradient])
        norm = torch.linalg.vector_norm(gradient, dim=1)
        if self.clip is not None:
            gradient = gradient * (self.clip / (norm + 1e-6)).clamp(max=1)[:, None]
        size, shrink = self.factors.to(gradient.dtype).unbind()
        if self.rate is not None or self.own_rate is not None:
            size = size * self._share(self.parameter)
        self.step.add_(1)
        self.exp_avg.lerp_(gradient, 1 - BETA1)
        self.exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        self.parameter.sub_(adam_step(self.exp_avg, self.exp_avg_sq, size, shrink))
        self.factors.copy_(self._factors())
        return metrics, norm

    def _factors(self) -> Float[Tensor, "2 _"]:
        """Return Adam's factors in the next step, those of each network where one may be held back."""
        step = self.step + 1 if self.behind is None else self.step + 1 - self.behind[:, None]
        return adam_factors(self.lr, step).to(self.parameter.device)  # Adam may count its steps on the CPU


def reserve(count: int, device: torch.device) -> None:
    """Allocate ``count`` bytes and free them, so that insufficient memory is reported here and not midway."""
    if count:
        torch.empty(count, dtype=torch.uint8, device=device)


def unshare(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Clone gradients that share memory: that of a sum is an expanded scalar, both of a + b are one tensor.

    Gradients of columns of a matrix are not contiguous; torch's fused Adam would read other numbers.
    """
    seen: set[int] = set()
    result = []
    for gradient in gradients:
        shared = gradient.data_ptr() in seen or 0 in gradient.stride()
        result.append(gradient.clone() if shared else gradient.contiguous())
        seen.add(gradient.data_ptr())
    return result
