"""Finds the first number that is not finite, in one pass over each tensor and one wait for the device."""

import torch
from torch import Tensor

from uavlab.core.errors import AXIS_NAMES, DivergedError
from uavlab.core.protocols import CheckedTensors

LARGEST = 1e18  # whose square is still finite in float32: beyond it, squares and norms overflow one step later
FROM_ENVIRONMENT = {"obs", "next_obs", "reward", "worlds", "pool"}  # first parts of names; others: the learner
ADVICE = {
    "environment": "The environment made it: see `uavlab check PRESET`.",
    "learner": "Go on from the last good checkpoint with a lower rate: `uavlab resume RUN --set lr=...`.",
}


def require_finite(numbers: CheckedTensors) -> None:
    """Refuse tensors that hold anything but numbers of at most ``LARGEST`` in size (host sync).

    Raises:
        DivergedError: It names the first such tensor in the given order, and where in it the first such number stands.
    """
    norms = [torch.linalg.vector_norm(tensor) for tensor, _ in numbers.values()]
    if norms and norms[0].is_cuda:
        norms = [torch.stack(norms).amax()]  # on the CPU reading each is cheaper
    if not all(norm.item() <= LARGEST for norm in norms):  # nan compares as false
        for name, (tensor, axes) in numbers.items():  # all may pass: a norm is larger than each of its numbers
            refuse_first(name, tensor, axes)


def refuse_first(name: str, tensor: Tensor, axes: str) -> None:
    """Refuse one tensor.

    Raises:
        DivergedError: It holds a number that is not finite or too large.
    """
    bad = (~(tensor.abs() <= LARGEST)).nonzero()
    if not len(bad):
        return
    index = bad[0].tolist()
    kind = "environment" if name.partition(".")[0] in FROM_ENVIRONMENT else "learner"
    place = {AXIS_NAMES[axis]: i for axis, i in zip(axes.split(), index, strict=False) if axis in AXIS_NAMES}
    record = {
        "tensor": name,
        "value": f"{tensor[tuple(index)].item():g}",
        "expected": f"a finite number of at most {LARGEST:g} in size",
        "kind": kind,
        **place,
    }
    raise DivergedError(record, ADVICE[kind])
