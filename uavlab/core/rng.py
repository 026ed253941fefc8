"""Randomness as data: named streams per run, from which the loop draws the noise that pure functions receive.

Run r of R draws from the streams of its own seed alone, so runs held in one process equal runs made one by one.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.errors import FileError
from uavlab.core.types import EnvSpec

INTEGER_NOISE = 2**62  # integer noise lies in [0, 2^62); `noise % n` is uniform to one part in 2^62 / n


class Streams:
    """One generator per (run, name), made on first use and seeded from both."""

    def __init__(
        self, seeds: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        """Open the streams of the runs with these seeds; numbers come out on ``device`` as ``dtype``."""
        self.seeds = tuple(seeds)
        self.device = torch.device(device)
        self.dtype = dtype
        self.salt = 0
        self._generators: dict[tuple[int, str], torch.Generator] = {}

    def reopen(self, salt: int) -> None:
        """Close every stream and open others, seeded from ``salt`` too: where states of old ones cannot be loaded."""
        self._generators.clear()
        self.salt = salt

    def uniform(self, name: str, *shape: int) -> Float[Tensor, "R ..."]:
        """Draw uniform numbers in [0, 1), ``shape`` of them for each run."""
        return self._draw(lambda g: torch.rand(shape, generator=g, device=self.device, dtype=self.dtype), name)

    def normal(self, name: str, *shape: int) -> Float[Tensor, "R ..."]:
        """Draw standard normal numbers, ``shape`` of them for each run."""
        return self._draw(lambda g: torch.randn(shape, generator=g, device=self.device, dtype=self.dtype), name)

    def integers(self, name: str, *shape: int) -> Int[Tensor, "R ..."]:
        """Draw int64 noise in [0, 2^62), to be reduced modulo a size that may live on the device."""
        return self._draw(lambda g: torch.randint(INTEGER_NOISE, shape, generator=g, device=self.device), name)

    def generators(self) -> list[torch.Generator]:
        """Return those of all streams opened so far."""
        return list(self._generators.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of every stream opened so far, and the salt of those to come."""
        states = {f"{name}.{run}": g.get_state() for (run, name), g in self._generators.items()}
        return {**states, "salt": torch.tensor(self.salt)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue every stream where ``state_dict`` was taken.

        Raises:
            FileError: The state holds a stream of a run that is not here.
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
            entropy = [self.seeds[run], crc32(name.encode()), *([self.salt] if self.salt else [])]
            mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]
            self._generators[key] = torch.Generator(self.device).manual_seed(int(mixed) & (2**63 - 1))
        return self._generators[key]


def acting_noise(rng: Streams, name: str, count: int, spec: EnvSpec) -> Float[Tensor, "R count A ..."]:
    """Draw what a policy consumes in ``count`` worlds per run: standard normal, or to choose by, uniform in [0, 1)."""
    if spec.choices:
        return rng.uniform(name, count, spec.agents)
    return rng.normal(name, count, spec.agents, spec.action)
