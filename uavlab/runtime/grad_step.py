"""One gradient step: sum the gradients of the pieces of a batch, clip each network by its own norm, apply Adam."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.runtime.loss_scaler import Scaler
from uavlab.runtime.oom_retry import Microbatcher, Rows, join_pieces, reserve, split_rows
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.toggles import Toggles

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


__all__ = ["ADAM_EPS", "MOMENTS", "GradientStep", "Rows"]

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

        Args:
            owners: The tensors of each owner.
            lr: Adam's learning rate.
            clip: Largest gradient norm, None for no clipping.
            stacked: The first axis of parameters counts networks.
            toggles: Implementation and number of Adams and, without ``microbatcher``, the pieces of a batch.
            scaler: The loss scale that all gradient steps of an iteration share.
            microbatcher: Splits the batches, and records its retries.
            scope: Times the stages ``forward``, ``backward`` and ``optimizer``.
            ranks: Those whose gradients are averaged before they are clipped, so that all take the same step.
            undo: Whether ``undo`` will be called.
        """
        self.scope, self.ranks = scope, ranks
        self.owners, self.clip, self.stacked = [list(owner) for owner in owners], clip, stacked
        self.scaler, self.microbatcher = scaler, microbatcher or Microbatcher(toggles.micro_batches)
        groups = [self.parameters] if toggles.optimizers == "one" else self.owners
        self.device = self.parameters[0].device
        # with step counts on the CPU, a capture would fail and a skipped step would be a host sync
        capturable = self.device.type == "cuda" and (toggles.graph != "off" or scaler is not None)
        foreach, fused = toggles.adam == "foreach" or None, toggles.adam == "fused" or None  # None: torch's own default
        build = partial(torch.optim.Adam, lr=lr, eps=ADAM_EPS, foreach=foreach, fused=fused, capturable=capturable)
        self.adams, self.lr = [build(group) for group in groups], lr
        counter_device = self.device if capturable or fused else torch.device("cpu")
        for _, adam, parameter in self._named():  # now, not in the first step, where memory may be refused midway
            steps = torch.zeros((), dtype=torch.float32, device=counter_device)
            moments = (steps, torch.zeros_like(parameter), torch.zeros_like(parameter))
            adam.state[parameter] = dict(zip(MOMENTS, moments, strict=True))
        sizes = [sum(parameter.nbytes for parameter in group) for group in groups]
        undo = undo or scaler is not None
        self.behind = torch.zeros(len(self.parameters[0]), device=self.device) if undo and stacked else None
        self._scratch = SCRATCH[toggles.adam] * max(sizes) + (3 * sum(sizes) if undo else 0)
        self._memory = {"parameters": sum(sizes), "gradients": sum(sizes), "moments": 2 * sum(sizes)}

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, owner by owner."""
        return [parameter for owner in self.owners for parameter in owner]

    @property
    def parameter(self) -> Tensor:
        """The only parameter."""
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
            return metrics, self._apply(self.ranks.means(gradients))

    def set_rates(self, share: Float[Tensor, " R"]) -> None:
        """Set the share of the learning rate at which each run's networks learn from now on."""
        count = len(self.parameters[0]) if self.stacked else len(self.owners)
        own = share.to(self.parameters[0]).repeat_interleave(count // len(share))
        self.own_rate = own if self.own_rate is None else self.own_rate.copy_(own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and Adam's moments, numbered if there are several, and ``behind`` if it is counted."""
        state = {} if self.behind is None else {"behind": self.behind}
        for prefix, adam, parameter in self._named():
            state[f"{prefix}parameter"] = parameter.detach()
            state |= {f"{prefix}{key}": adam.state[parameter][key] for key in MOMENTS}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state.get(name, torch.zeros(())) if name == "behind" else state[name])

    def copy_state(self) -> dict[str, Tensor]:
        """Return a copy of ``state_dict``, to which ``undo`` may return."""
        return {name: tensor.clone() for name, tensor in self.state_dict().items()}

    def undo(self, held: Bool[Tensor, " G"], before: dict[str, Tensor]) -> None:
        """Return networks to the state ``before`` their last step, as if they had not taken it (no host sync)."""
        state, numbers = self.state_dict(), [n for n, owner in enumerate(self.owners) for _ in owner]
        for number, (prefix, _, parameter) in zip(numbers, self._named(), strict=True):
            rows = held.view(-1, *[1] * (parameter.dim() - 1)) if self.stacked else held[number]
            for key in ("parameter", *(MOMENTS[1:] if self.stacked else MOMENTS)):
                tensor, old = state[prefix + key], before[prefix + key]
                tensor.copy_(torch.where(rows, old, tensor, out=old))
        if self.behind is None:
            return
        self.behind.add_(held)
        counters = [adam.state[parameter]["step"] for _, adam, parameter in self._named()]
        if counters[0].device == self.behind.device:  # or else it would be a host sync
            common = self.behind.min()  # steps that no network took, which Adam does not count then
            self.behind.sub_(common)
            for counter in counters:
                counter.sub_(common)

    def _named(self) -> Iterator[tuple[str, torch.optim.Adam, Tensor]]:
        several = len(self.parameters) > 1
        adams = self.adams * len(self.owners) if len(self.adams) == 1 else self.adams
        number = count()
        for adam, owner in zip(adams, self.owners, strict=True):
            for parameter in owner:
                yield (f"{next(number)}." if several else "", adam, parameter)

    def _gradients(self, loss_fn: Callable, inputs: Sequence[Any], pieces: int) -> tuple[list[Tensor], dict[str, Any]]:
        """Sum the gradients of all pieces, each weighted by its share of the rows."""
        total: list[Tensor] = []
        results = []
        for share, values in split_rows(inputs, pieces):
            gradients, metrics = self._piece(loss_fn, values, share)
            total = [a.add_(b) for a, b in zip(total, gradients, strict=True)] if total else gradients
            results.append((share, metrics))
        return total, join_pieces(results)

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
        for old, (_, adam, parameter) in zip(before, self._named(), strict=True):
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
    """A gradient step on one matrix of independent rows that can be part of a compiled update.

    In a compiled update, gradient, clipping and Adam are pure tensor functions whose results equal those of
    ``GradientStep`` up to rounding. In other updates ``GradientStep`` is used.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        (adam,) = self.adams
        self.step, self.exp_avg, self.exp_avg_sq = adam.state[self.parameter].values()
        # computed outside the compiled function, where compilers would recompute it for every parameter
        self.factors = self._factors()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        super().load_state_dict(state)
        self.factors.copy_(self._factors())

    def undo(self, held: Bool[Tensor, " G"], before: dict[str, Tensor]) -> None:
        """Return networks to the state ``before`` their last step."""
        super().undo(held, before)
        self.factors.copy_(self._factors())

    def __call__(
        self, loss_fn: Callable[..., tuple[Tensor, dict[str, Any]]], *inputs: Any
    ) -> tuple[dict[str, Any], Float[Tensor, " G"]]:
        """Take a step that lowers ``loss_fn(parameter, ...)``; return metrics and norms before clipping."""
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
            return loss, {name: value.value if isinstance(value, Rows) else value for name, value in metrics.items()}

        values = [value.value if isinstance(value, Rows) else value for value in inputs]
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
