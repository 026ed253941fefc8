"""Mapping missions for several tests."""

import torch

from uavlab.core.types import leaves
from uavlab.envs.mapping.env import Mapping, State

SMALL = Mapping(cells=193, cell=50 / 193, uavs=3)
TINY_MISSION = Mapping(cells=41, cell=0.5, lattice=5, uavs=3, measurements=5, reach=12.0)


def start_missions(env: Mapping, missions: int, seed: int = 0) -> tuple[State, torch.Generator]:
    """Draw missions, and return the generator for their steps."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(missions, env.initial_noise, generator=generator)
    return env.initial(noise), generator


def random_step(env: Mapping, state: State, generator: torch.Generator) -> tuple[torch.Tensor, State]:
    """Take a random step; return the action and the next state."""
    action = torch.randint(6, state.place.shape[:2], generator=generator)
    return action, env.transition(state, action, torch.rand(len(action), env.step_noise, generator=generator))


def require_close(one: object, other: object, most: float = 1e-5) -> None:
    """Compare two trees of tensors leaf by leaf."""
    for (name, a), (_, b) in zip(leaves(one), leaves(other), strict=True):
        far = (a.double() - b.double()).abs().max() / (b.abs().max().clamp_min(1) if name == "uncertainty" else 1)
        assert far <= most, f"{name}: {float(far)}"
