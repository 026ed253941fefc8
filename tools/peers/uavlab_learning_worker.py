"""MAPPO of this package on one of its environments, with the toggles that runs start from."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tools.peers.uavlab_worker import PACKAGES, Own
from tools.peers.worker import Calls, completion, count_steps, seconds, serve, versions
from uavlab.core.rng import Streams, acting_noise
from uavlab.experiment.config import configure


def build(sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Calls]:
    """Build a run; return the facts of this program, and its calls: some iterations, and a score."""
    settings = {key: sizes[key] for key in ("hidden", "worlds", "lr", "clip", "gamma", "seed")}
    rest = {"learner": "mappo", "device": "cpu", "critic_lr": sizes["lr"], "lam": sizes["algorithm"]["lmbda"]}
    own = Own("mappo", configure(sizes["task"], {**settings, **rest, **sizes["mappo"], **sizes["ours"]}))
    spec, noise = own.config.env.spec, Streams([sizes["seed"]])
    policy = own.learner.policy(spec)

    @torch.no_grad()
    def act(obs: Tensor) -> Tensor:
        return policy(obs[None], acting_noise(noise, "score", len(obs), spec))[0]

    def train() -> float:
        with own.rt.scope():
            return seconds(lambda: [own.cycle() for _ in range(sizes["iterations"])])

    calls = {"train": train, "score": lambda: completion(sizes, act)}
    return {
        "versions": versions(PACKAGES),
        "observations": spec.obs,
        "parameters": own.parameters(),
        "steps": count_steps({"train": train}, lambda name: own.steps()),
    }, calls


if __name__ == "__main__":
    serve(build)
