"""Named random streams for each run; the training loop draws noise from them and passes it to pure functions.

Run r of R draws only from streams of its own seed, so its results do not depend on the other runs of the process.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.types import EnvSpec

SHARED = {"actor", "critic", "network", "noisy", "validate"}  # first parts of names of streams that all ranks share
INTEGER_NOISE = 2**62  # integer noise lies in [0, 2^62); `noise % n` is uniform up to a relative error of n / 2^62


class Streams:
    """One generator per run and name, created on first use and seeded from both."""

    def __init__(
        self,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
    ) -> None:
        """Create the streams of the runs with these seeds; they return tensors on ``device`` of type ``dtype``.

        Each ``rank`` has streams of its own, but for networks and scores: there all draw the same numbers.
        """
        self.seeds = tuple(seeds)
        self.device = torch.device(device)
        self.dtype = dtype
        self.salt, self.rank = 0, rank
        self._generators: dict[tuple[int, str], torch.Generator] = {}

    def reopen(self, salt: int) -> None:
        """Replace all streams by new ones that are also seeded from ``salt``, as on another kind of device."""
        self._generators.clear()
        self.salt = salt

    def uniform(self, name: str, *shape: int) -> Float[Tensor, "R ..."]:
        """Draw uniform numbers in [0, 1) of this shape for each run."""
        return self._draw(lambda g: torch.rand(shape, generator=g, device=self.device, dtype=self.dtype), name)

    def normal(self, name: str, *shape: int) -> Float[Tensor, "R ..."]:
        """Draw standard normal numbers of this shape for each run."""
        return self._draw(lambda g: torch.randn(shape, generator=g, device=self.device, dtype=self.dtype), name)

    def integers(self, name: str, *shape: int) -> Int[Tensor, "R ..."]:
        """Draw int64 numbers in [0, 2^62); reduce them modulo a size, which may be a tensor on the device."""
        return self._draw(lambda g: torch.randint(INTEGER_NOISE, shape, generator=g, device=self.device), name)

    def generators(self) -> list[torch.Generator]:
        """Return the generators of all streams in use."""
        return list(self._generators.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of every stream in use, and the salt."""
        states = {f"{name}.{run}": g.get_state() for (run, name), g in self._generators.items()}
        return {**states, "salt": torch.tensor(self.salt)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the streams of a ``state_dict``.

        Raises:
            FileError: The state holds a stream of a run that this process does not have.
        """
        self.reopen(int(state["salt"]))
        for key, value in state.items():
            if key == "salt":
                continue
            name, _, run = key.rpartition(".")
            if not run.isdigit() or int(run) >= len(self.seeds):
                raise FileError(f"Streams: state has stream {key!r}, but this process holds {len(self.seeds)} runs.")
            self._generator(int(run), name).set_state(value.cpu())

    def _draw(self, draw: Callable[[torch.Generator], Tensor], name: str) -> Tensor:
        return torch.stack([draw(self._generator(run, name)) for run in range(len(self.seeds))])

    def _generator(self, run: int, name: str) -> torch.Generator:
        key = (run, name)
        if key not in self._generators:
            own = 0 if is_shared(name) else self.rank
            further = [self.salt, own] if own else [self.salt] if self.salt else []
            entropy = [self.seeds[run], crc32(name.encode()), *further]
            mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
            self._generators[key] = torch.Generator(self.device).manual_seed(int(mixed) & (2**63 - 1))
        return self._generators[key]


def is_shared(name: str) -> bool:
    """Return whether all ranks draw the same numbers from a stream."""
    return name.partition(".")[0] in SHARED


def acting_noise(rng: Streams, name: str, count: int, spec: EnvSpec) -> Float[Tensor, "R count A ..."]:
    """Draw the noise of a policy in ``count`` worlds per run: standard normal, for choices uniform in [0, 1)."""
    if spec.choices:
        return rng.uniform(name, count, spec.agents)
    return rng.normal(name, count, spec.agents, spec.action)


def team_noise(generator: torch.Generator, worlds: int, spec: EnvSpec) -> Float[Tensor, "B A ..."]:
    """Draw the noise of ``acting_noise`` for a team without an axis of runs, from one generator."""
    if spec.choices:
        return torch.rand(worlds, spec.agents, generator=generator, device=generator.device)
    return torch.randn(worlds, spec.agents, spec.action, generator=generator, device=generator.device)


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the global random numbers of Python, numpy and torch at the end."""
    own, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpy)
