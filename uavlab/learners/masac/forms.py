"""The state of networks in another form: rows of one matrix, layers stacked over networks, or tensors of each network.

All forms hold the same numbers, so a run may go on in another one.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

KINDS = ("parameter", "exp_avg", "exp_avg_sq")  # of tensors that have a number for each parameter
STACKED = 3  # axes of a stacked layer at least; one of a single network has at most two


def to_rows(tensors: Sequence[Tensor], count: int) -> Float[Tensor, "count P"]:
    """Return the tensors of ``count`` networks, or pairs of them, as a row for each."""
    if len(tensors) > 1 and tensors[0].dim() >= STACKED:
        return torch.cat([layer.flatten(-2) for layer in tensors], -1).reshape(count, -1)
    return torch.cat([tensor.flatten() for tensor in tensors]).reshape(count, -1)


def from_rows(rows: Float[Tensor, "count P"], like: Sequence[Tensor]) -> list[Tensor]:
    """Return rows in the form of the tensors ``like``."""
    sizes = [tensor.numel() for tensor in like]
    places = torch.arange(sum(sizes), device=rows.device).split(sizes)
    order = to_rows([place.view(tensor.shape) for place, tensor in zip(places, like, strict=True)], len(rows))
    flat = rows.new_empty(sum(sizes))
    flat[order.flatten()] = rows.flatten()
    return [part.view(tensor.shape) for part, tensor in zip(flat.split(sizes), like, strict=True)]


def convert(state: Mapping[str, Tensor], like: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the state of a gradient step in the form of another one of as many networks.

    Each network keeps its own count of steps, which differ where a loss scale skipped some; a form that counts them
    together, without ``behind``, takes the largest one.

    Raises:
        RuntimeError: The networks are of other sizes.
    """
    if _axes(state) == _axes(like):
        return dict(state)
    names, steps = named(like, "step"), steps_of(state, count)
    several = len(names) > 1 and like[named(like, KINDS[0])[0]].dim() < STACKED  # a list of tensors for each network
    own = steps.repeat_interleave(len(names) // count) if several else steps.max().expand(len(names))
    result = {name: step.clone() for name, step in zip(names, own, strict=True)}
    result |= {"behind": steps.max() - steps} if "behind" in like else {}
    for kind in KINDS:
        names = named(like, kind)
        rows = to_rows([state[name] for name in named(state, kind)], count)
        result |= dict(zip(names, from_rows(rows, [like[name] for name in names]), strict=True))
    return result


def steps_of(state: Mapping[str, Tensor], count: int) -> Float[Tensor, " count"]:
    """Return the steps that each of ``count`` networks, or pairs of them, took."""
    steps = torch.stack([state[name].reshape(()) for name in named(state, "step")])
    if len(steps) > 1 and state[named(state, KINDS[0])[0]].dim() < STACKED:
        return steps.view(count, -1)[:, 0]
    return steps[0] - state.get("behind", steps.new_zeros(count))


def _axes(state: Mapping[str, Tensor]) -> list[int]:
    """Return how many axes each parameter has: forms differ by this list."""
    return [state[name].dim() for name in named(state, KINDS[0])]


def named(state: Mapping[str, Tensor], kind: str) -> list[str]:
    """Return the names of one kind of tensors, in the order of their numbers."""
    return sorted((name for name in state if name.split(".")[-1] == kind), key=number_of)


def number_of(name: str) -> int:
    """Return the number before a name, 0 where there is none."""
    first = name.partition(".")[0]
    return int(first) if first.isdigit() else 0
