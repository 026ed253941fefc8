"""A rank that is a process in a gloo group, started by torchrun.

``torchrun ... tests/support/gloo_twins.py FOLDER [[CASE, UPDATES, DEAF], ...]`` trains each case of ``lockstep`` and
writes the state of this rank; DEAF is a function of rank 1 that combines nothing.
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
from uavlab.runtime.ranks import Group, Ranks, join


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


def train(case: str, updates: int, own: Ranks) -> dict[str, Tensor]:
    """Return the state of a rank that is this process after some updates; of one alone, that of all rows."""
    pair = twins(case, own=own)
    pair.train(updates)
    return (pair.ranks[own.rank] if own.size > 1 else pair.alone).state_dict()


def path(folder: Path, case: str, deaf: str, rank: int) -> Path:
    """Return the file of the state of a rank after a case."""
    return folder / f"{case}-{deaf}-{rank}.npz"


def read(folder: Path, case: str, deaf: str) -> list[dict[str, Tensor]]:
    """Return the states that two ranks wrote."""
    states = []
    for rank in range(2):
        with np.load(path(folder, case, deaf, rank)) as arrays:
            states.append({name: torch.from_numpy(array) for name, array in arrays.items()})
    return states


def main(folder: str, jobs: str) -> None:
    """Train all cases as the rank that torchrun says, and write its state after each.

    Raises:
        RuntimeError: It is connected by another backend.
    """
    own = join("gloo", device="cpu")
    if not isinstance(own, Group) or distributed.get_backend() != "gloo":
        raise RuntimeError(f"{own} is no rank in a gloo group")
    for case, updates, deaf in json.loads(jobs):
        rank = DeafRank(own.rank, own.size, own.store, deaf=deaf if own.rank else "")
        state = train(case, updates, rank)
        np.savez(path(Path(folder), case, deaf, own.rank), **{name: each.numpy() for name, each in state.items()})
    own.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
