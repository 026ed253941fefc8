"""A rank that is a process in a gloo group, and the process that trains alone: which one, torchrun says.

``torchrun ... tests/support/gloo_twins.py FOLDER [[CASE, UPDATES, DEAF], ...]`` trains each case of ``lockstep`` and
writes the state of this process; DEAF is a function of rank 1 that combines nothing.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, distributed

from tests.support.lockstep import caller, twins
from uavlab.runtime.ranks import Group
from uavlab.runtime.torchrun import join


@dataclass(frozen=True)
class DeafRank(Group):
    """A rank that takes part in each sum, and uses its own numbers in one function.

    Attributes:
        deaf: The function.
    """

    deaf: str = ""

    def combine(self, tensor: Tensor, how: Literal["sum", "max"]) -> Tensor:
        combined = super().combine(tensor, how)  # for the other
        if caller(sys._getframe(1)) != self.deaf:
            return combined
        return tensor * self.size if how == "sum" else tensor


def path(folder: Path, case: str, deaf: str, size: int, rank: int) -> Path:
    """Return the file of the state of one of so many processes after a case."""
    return folder / f"{case}-{deaf}-{rank}-of-{size}.npz"


def read(folder: Path, *which: str | int) -> dict[str, Tensor]:
    """Return the state that a process wrote; the arguments are those of ``path``."""
    with np.load(path(folder, *which)) as arrays:  # type: ignore[arg-type]
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def main(folder: str, jobs: str) -> None:
    """Train all cases, and write the state of this process after each."""
    own = join("gloo", device="cpu")
    if isinstance(own, Group) and distributed.get_backend() != "gloo":
        raise RuntimeError(f"connected by {distributed.get_backend()}")
    for case, updates, deaf in json.loads(jobs):
        rank = DeafRank(own.rank, own.size, own.store, deaf=deaf) if isinstance(own, Group) and own.rank else own
        pair = twins(case, own=rank)
        pair.train(updates)
        state = (pair.ranks[own.rank] if own.size > 1 else pair.alone).state_dict()
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        np.savez(path(Path(folder), case, deaf, own.size, own.rank), **arrays)
    own.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
