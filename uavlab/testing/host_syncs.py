"""Where an environment makes a GPU wait for the host, which CUDA graphs do not allow."""

import traceback
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from uavlab.core.protocols import Env
from uavlab.testing.rollout import place_of

aten = torch.ops.aten
COPY = "copies numbers from the host (use uavlab.constant)"
VALUE = "reads a value (use torch.where)"
SHAPE = "has a shape that depends on values (use torch.where)"
READS = (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default)
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
MASKS = {torch.bool, torch.uint8}


class HostSyncs(TorchDispatchMode):
    """Records the lines of an environment's methods, or of what they call, at which a GPU would wait for the host.

    Attributes:
        places: What each does, by file and line.
    """

    def __init__(self, env: Env) -> None:
        super().__init__()
        self.env = env
        self.places: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if reason := reason_of(func, args):
            place = place_of(traceback.walk_stack(None), self.env)
            if place:
                self.places.setdefault(place, reason)
        return func(*args, **(kwargs or {}))


def reason_of(func: Any, args: tuple) -> str:
    """Return why a GPU waits for the host in an operator; empty if it does not.

    A single number is left out: ``x[0] = 1.0`` looks like ``torch.tensor(1.0)`` here, and only the latter is a copy.
    """
    if func is aten.lift_fresh.default:  # of torch.tensor, new_tensor and lists as indices, and of numbers
        return COPY if args[0].dim() else ""
    if func in READS:
        return VALUE
    if func in INDEXING:
        single = len(args) > 2 and not args[2].dim()  # a GPU fills by mask
        masks = any(index is not None and index.dtype in MASKS for index in args[1])
        return SHAPE if masks and not single else ""
    return SHAPE if torch.Tag.dynamic_output_shape in func.tags else ""
