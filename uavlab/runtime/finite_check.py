"""Check that numbers are finite: at once (host sync), or on the device, where results are read later."""

import math
from threading import Lock

import torch
from torch import Tensor

from uavlab.core.errors import AXIS_NAMES, DivergedError
from uavlab.core.installation import program
from uavlab.core.protocols import CheckedTensors

LARGEST = 1e18  # its square is finite in float32; squares of numbers from 1.8e19 on, as in norms, are not
LIMITS = {"reward": 1e9}  # of tensors whose squares, as losses, must be at most ``LARGEST``, too
FROM_ENVIRONMENT = {"obs", "next_obs", "reward", "worlds", "pool"}  # first parts of names; others: the learner
ADVICE = {
    "environment": "The environment made it: see `{} check PRESET`.",
    "learner": "Go on from the last good checkpoint with a lower rate: `{} resume RUN --set lr=...`.",
}
SLOTS = 2**16  # tensors in a deferred check, counted once for each set that is checked together
NEVER = 2**62


def require_finite(numbers: CheckedTensors) -> None:
    """Check that all numbers are finite and at most ``LARGEST`` in magnitude, or as ``LIMITS`` says (host sync)."""
    if not numbers:
        return
    least = min(map(LIMITS.__getitem__, LIMITS.keys() & numbers.keys()), default=LARGEST)
    for norm in torch._foreach_norm([tensor for tensor, _ in numbers.values()]):
        if not norm.item() <= least:  # nan compares as false
            for name, (tensor, axes) in numbers.items():  # the numbers may pass though their norm did not
                _refuse_first(name, tensor, axes)
            return


def limit(name: str) -> float:
    return LIMITS.get(name, LARGEST)


def _refuse_first(name: str, tensor: Tensor, axes: str) -> None:
    bad = (~(tensor.abs() <= limit(name))).nonzero()
    if not len(bad):
        return
    index = bad[0].tolist()
    place = {AXIS_NAMES[axis]: i for axis, i in zip(axes.split(), index, strict=False) if axis in AXIS_NAMES}
    value, expected = f"{tensor[tuple(index)].item():g}", f"a finite number of at most {limit(name):g} in size"
    raise _diverged(name, value, expected, place)


def _diverged(name: str, value: str, expected: str, place: dict[str, int]) -> DivergedError:
    kind = "environment" if name.partition(".")[0] in FROM_ENVIRONMENT else "learner"
    record = {"tensor": name, "value": value, "expected": expected, "kind": kind, **place}
    return DivergedError(record, ADVICE[kind].format(program()))


class DeferredCheck:
    """``require_finite`` without a host sync: results stay on the device until they are read.

    For each tensor, the first update with a bad number is recorded, so that a later ``read`` reports the cause and not
    its effects. ``record`` and ``next_update`` may be part of a CUDA graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._table = torch.full((1 + SLOTS,), NEVER, dtype=torch.int64, device=device)
        self._now, self._first = self._table[0], self._table[1:]
        self._now.zero_()
        self._checks: dict[tuple[str, ...], tuple[int, int]] = {}  # by names: first slot, and order in an update
        self._count = self._used = 0
        self._lock = Lock()  # the thread of ``prefetch=overlap`` records as well

    def next_update(self) -> None:
        """Count an update; later records belong to it."""
        self._now.add_(1)
        self._count = 0

    def record(self, numbers: CheckedTensors) -> None:
        """Record which tensors hold a number that is not finite or larger than their limit in magnitude."""
        numbers = {name: each for name, each in numbers.items() if each[0].numel()}  # the norm refuses empty tensors
        if not numbers:
            return
        names = tuple(numbers)
        with self._lock:
            slot, _ = self._checks.get(names, (self._used, 0))
            self._used = max(self._used, slot + len(names))
            self._checks[names], self._count = (slot, self._count), self._count + 1
        # one operator for all tensors, which torch also uses to clip gradients
        norms = torch._foreach_norm([tensor for tensor, _ in numbers.values()], math.inf)
        scaled = [
            norm * (LARGEST / LIMITS[name]) if name in LIMITS else norm for name, norm in zip(names, norms, strict=True)
        ]
        largest = torch.stack(scaled)
        first = self._first[slot : slot + len(names)]
        torch.where(largest <= LARGEST, first, first.clamp(max=self._now), out=first)  # nan compares as false

    def read(self, number: int) -> None:
        """Check the records of all updates so far, the last of which was ``number`` (host sync)."""
        now, *first = self._table[: 1 + self._used].tolist()
        findings = [
            (first[slot + i], order, i, name)
            for names, (slot, order) in list(self._checks.items())
            for i, name in enumerate(names)
            if first[slot + i] < NEVER
        ]
        if findings:
            update, _, _, name = min(findings)
            value = f"not finite or too large (checked {now - update} updates later)"
            place = {"update": number - (now - update), "checked": number}
            raise _diverged(name, value, f"finite numbers of at most {limit(name):g} in size", place)
