"""Assignment: a decision by its size, beside plain Python, and the time and memory of the network."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from uavlab.benchmarks.registry import Record, suite
from uavlab.benchmarks.timing import median, ratio, time_in_turn
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.target_assignment.env import Assignment
from uavlab.envs.target_assignment.python_reference import World
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.nets.attention import StackedAttention
from uavlab.ops.action_sampling import random_moves
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.wrappers import recompute_activations

WORLDS, EPISODES = 256, 50  # at once; by which the length of an episode is measured
SIZES = ((3, 2), (6, 4), (10, 8), (20, 15))  # UAVs and targets
NETWORKS = {"small": (128, 4, 2), "large": (256, 8, 4)}  # width, heads, layers
BATCHES = (32, 128)


@suite("assignment", about="decisions of assignment beside plain Python, and its network by size")
def assignment_suite(rounds: int, device: Device) -> Record:
    """Time decisions and gradients by numbers of UAVs and targets.

    Returns:
        ``rows`` of decisions: ``uavs``, ``targets``, ``decisions`` (of an episode by random moves), ``us`` (a decision
        with its observation, and its share of the start of a world, of ``WORLDS`` at once), ``python_us`` (the same of
        one world in plain Python) and ``over_batched``, the median of their ratios with its interval. ``networks``: for
        each size, network and batch ``ms`` (a policy's loss and its gradient) and ``saved_bytes`` (what is stored for
        the backward pass), and both with activations recomputed.
    """
    rt = build.runtime(RunConfig(device=device))
    with rt.scope():
        rows = [_decisions(*size, rounds, rt) for size in SIZES]
        networks = [
            _network(*size, name, batch, rounds, rt) for size in SIZES for name in NETWORKS for batch in BATCHES
        ]
    return {"worlds": WORLDS, "rows": rows, "networks": networks}


def _decisions(uavs: int, targets: int, rounds: int, rt: Runtime) -> dict[str, Any]:
    env = Assignment(uavs=(uavs, uavs), targets=(targets, targets))
    seeds, steps = count(EPISODES), round(fmean(python_episode(env, seed) for seed in range(EPISODES)))
    decisions: list[int] = []
    calls = {
        "batched": batched_decisions(env, rt, steps),
        "python": lambda: decisions.append(python_episode(env, next(seeds))),
    }
    seconds = time_in_turn(calls, rounds, rt.device)
    batched = [each / (WORLDS * steps) for each in seconds["batched"]]
    python = [each / number for each, number in zip(seconds["python"], decisions[-len(batched) :], strict=True)]
    return {
        "uavs": uavs,
        "targets": targets,
        "decisions": steps,
        "threads": rt.toggles.threads,
        "us": round(1e6 * median(batched), 3),
        "python_us": round(1e6 * median(python), 1),
        "over_batched": ratio(python, batched, "mean"),
    }


def batched_decisions(env: Assignment, rt: Runtime, steps: int) -> Callable[[], None]:
    """Return a call that decides ``steps`` times in ``WORLDS`` worlds by random moves, and starts as many new ones.

    A world that ends is replaced by a new one; in episodes of ``steps`` decisions, that is once in a call.
    """
    dice = torch.Generator(rt.device).manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=dice, device=rt.device)

    worlds = start_worlds(env, uniform(WORLDS, env.spec.initial_noise))

    def call() -> None:
        nonlocal worlds
        pool = make_pool(env, uniform(1, WORLDS, env.spec.initial_noise))
        for _ in range(steps):
            action = random_moves(worlds.obs, uniform(WORLDS, 1))
            worlds, _ = advance(env, worlds, action, uniform(WORLDS, 0), pool)

    return call


def python_episode(env: Assignment, seed: int) -> int:
    """Run an episode in a new world of plain Python by random moves; return the number of decisions."""
    dice, decisions = random.Random(seed), 0
    world = World(env, [dice.random() for _ in range(env.spec.initial_noise)])
    world.observation()
    while not world.ended():
        world.step(dice.choice([number for number, legal in enumerate(world.moves()) if legal]))
        world.observation()
        decisions += 1
    return max(decisions, 1)


@dataclass(frozen=True)
class Loss:
    """The gradient of a policy's loss on one batch."""

    net: StackedAttention
    obs: Tensor

    def __call__(self, theta: Tensor) -> Tensor:
        """Return the loss."""
        return self.net(theta, self.obs).log_softmax(-1)[..., 0].mean()


def _network(uavs: int, targets: int, name: str, batch: int, rounds: int, rt: Runtime) -> dict[str, Any]:
    env, (wide, heads, layers) = Assignment(uavs=(uavs, uavs), targets=(targets, targets)), NETWORKS[name]
    entities = env.spec.entities
    if entities is None:
        raise TypeError("Assignment observes entities")
    net = StackedAttention(entities, wide, heads, layers, pairs=True)
    dice = torch.Generator().manual_seed(0)
    theta = net.initial(torch.rand(1, net.count, generator=dice)).to(rt.device).requires_grad_()
    state = env.initial(torch.rand(batch, env.spec.initial_noise, generator=dice).to(rt.device))
    plain = Loss(net, env.observe(state).features.transpose(0, 1))
    losses: dict[str, Callable[[Tensor], Tensor]] = {"plain": plain, "recomputed": recompute_activations(plain)}
    calls = {name: (lambda loss=loss: torch.autograd.grad(loss(theta), theta)) for name, loss in losses.items()}
    seconds = time_in_turn(calls, min(rounds, 10), rt.device)
    return {
        "uavs": uavs,
        "targets": targets,
        "network": name,
        "parameters": net.count,
        "batch": batch,
        "ms": round(1e3 * median(seconds["plain"]), 3),
        "saved_bytes": saved_bytes(plain, theta),
        "recomputed_over_plain": ratio(seconds["recomputed"], seconds["plain"], "mean"),
        "recomputed_bytes": saved_bytes(losses["recomputed"], theta),
    }


def saved_bytes(loss: Callable[[Tensor], Tensor], theta: Tensor) -> int:
    """Return the bytes that a loss stores for its backward pass, each tensor once, parameters left out."""
    stored: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(theta)
    stored.pop(theta.untyped_storage().data_ptr(), None)
    del value
    return sum(stored.values())
