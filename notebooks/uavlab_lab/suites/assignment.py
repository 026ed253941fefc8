"""Assignment: a decision by its size, beside plain Python, and the time and memory of the network."""

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count, product
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from uavlab.benchmarks import Option, Record, suite
from uavlab.core.types import Entities
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.target_assignment.env import FEATURES, Assignment
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig, configure
from uavlab.experiment.transfer import places_by_stage
from uavlab.nets.attention import StackedAttention
from uavlab.ops.action_sampling import random_moves
from uavlab.profiling.batch_size import Budget
from uavlab.profiling.timing import WARM_UP, median, ratio, time_in_turn
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.wrappers import recompute_activations
from uavlab_lab.python_assignment import World

WORLDS, EPISODES = 256, 50  # at once; by which the length of an episode is measured
SIZES = ((3, 2), (6, 4), (10, 8), (20, 15))  # UAVs and targets
NETWORKS = {"small": (128, 4, 2), "large": (256, 8, 4)}  # width, heads, layers
BATCHES = (32, 128)
MOST_ROUNDS, ENOUGH_S = 10, 20.0  # of a network at one size
CURRICULUM = "assignment_curriculum"  # the preset of whose stages padding is counted


@suite(
    "assignment",
    about="decisions of assignment beside plain Python, and the time and memory of its networks",
    options=(Option("batch", "rows of a gradient", (1, 1_000_000)),),
)
def assignment_suite(rounds: int, device: Device, batch: Iterable[int] = ()) -> Record:
    """Time decisions and gradients by numbers of UAVs and targets, gradients by rows of a ``batch``, too.

    Returns:
        ``rows`` of decisions: ``uavs``, ``targets``, ``decisions`` (of an episode by random moves), ``us`` (a decision
        with its observation, and its share of the start of a world, of ``WORLDS`` at once), ``python_us`` (the same of
        one world in plain Python) and ``over_batched``, the median of their ratios with its interval; and the same
        without the start of worlds, ``alone_us``, ``python_alone_us`` and ``alone_over_batched``. ``networks``: for
        each size, network, batch and setting ``ms`` (a policy's loss and its gradient), ``peak_bytes`` (the most that
        tensors take at a time) and ``over_plain``, the median of ratios of times with its interval. Settings are those
        of the toggle ``recompute``, ``plain`` (off), ``whole`` (on) and ``layers`` (whatever their size);
        ``nearest``, one neighbour of each kind instead of all; and ``torch``, see ``TorchAttention``. ``padding``: for
        each ``stage`` of ``CURRICULUM`` the ``share`` of the multiplications of its policy that empty slots cost.
    """
    rt = build.runtime(RunConfig(device=device))
    with rt.scope():
        rows = [_decisions(*size, rounds, rt) for size in SIZES]
        networks = [
            row
            for size in SIZES
            for name in NETWORKS
            for count in tuple(batch) or BATCHES
            for row in network_rows(size, name, count, rounds, rt)
        ]
    return {"worlds": WORLDS, "rows": rows, "networks": networks, "padding": padding_rows()}


def _decisions(uavs: int, targets: int, rounds: int, rt: Runtime) -> dict[str, Any]:
    env = Assignment(uavs=(uavs, uavs), targets=(targets, targets))
    seeds, steps = count(EPISODES), round(fmean(python_episode(*python_start(env, s)) for s in range(EPISODES)))
    started = iter([python_start(env, seed) for seed in range(rounds + WARM_UP)])
    numbers: dict[str, list[int]] = {"python": [], "python_alone": []}  # of decisions
    calls = {
        "batched": batched_decisions(env, rt, steps),
        "python": lambda: numbers["python"].append(python_episode(*python_start(env, next(seeds)))),
        "alone": batched_decisions_alone(env, rt, steps),
        "python_alone": lambda: numbers["python_alone"].append(python_episode(*next(started))),
    }
    seconds = time_in_turn(calls, rounds, rt.device)
    batched, alone = ([each / (WORLDS * steps) for each in seconds[name]] for name in ("batched", "alone"))
    python, python_alone = (
        [each / number for each, number in zip(seconds[name], numbers[name][-rounds:], strict=True)] for name in numbers
    )
    return {
        "uavs": uavs,
        "targets": targets,
        "decisions": steps,
        "threads": rt.toggles.threads,
        "us": round(1e6 * median(batched), 3),
        "python_us": round(1e6 * median(python), 1),
        "over_batched": ratio(python, batched, "mean"),
        "alone_us": round(1e6 * median(alone), 3),
        "python_alone_us": round(1e6 * median(python_alone), 1),
        "alone_over_batched": ratio(python_alone, alone, "mean"),
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


def batched_decisions_alone(env: Assignment, rt: Runtime, steps: int) -> Callable[[], None]:
    """Return a call that decides ``steps`` times in ``WORLDS`` worlds that have started, always the same ones.

    A decision is a random move, its transition and reward, and what follows: the end, and the observation.
    """
    dice = torch.Generator(rt.device).manual_seed(0)
    worlds = start_worlds(env, torch.rand(WORLDS, env.spec.initial_noise, generator=dice, device=rt.device))
    nothing = torch.zeros(WORLDS, 0, device=rt.device)

    def call() -> None:
        state, obs = worlds.state, worlds.obs
        for _ in range(steps):
            action = random_moves(obs, torch.rand(WORLDS, 1, generator=dice, device=rt.device))
            after = env.transition(state, action, nothing)
            env.reward(state, action, after)
            env.terminated(after)
            state, obs = after, env.observe(after)

    return call


def python_start(env: Assignment, seed: int) -> tuple[World, random.Random]:
    """Return a new world of plain Python that was observed, and its dice."""
    dice = random.Random(seed)
    world = World(env, [dice.random() for _ in range(env.spec.initial_noise)])
    world.observation()
    return world, dice


def python_episode(world: World, dice: random.Random) -> int:
    """Run the episode of a new world by random moves; return the number of decisions."""
    decisions = 0
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


class TorchAttention(StackedAttention):
    """The same network by PyTorch's product of attention, ``scaled_dot_product_attention``."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        lead = bias.shape[0], bias.shape[2]
        query, key, value = (
            each.unflatten(1, (lead[1], -1)).unflatten(-1, (self.heads, -1)).flatten(0, 1).transpose(1, 2)
            for each in (query, key, value)
        )
        key, value = (F.pad(each, (0, 0, 0, 1)) for each in (key, value))
        places = bias.permute(0, 2, 1, 4, 3).flatten(0, 1).to(query.dtype)
        result = F.scaled_dot_product_attention(query, key, value, places)
        return result.transpose(1, 2).flatten(2).unflatten(0, lead).flatten(1, 2)


def network_rows(size: tuple[int, int], name: str, batch: int, rounds: int, rt: Runtime) -> list[dict[str, Any]]:
    """Return a row for each setting of a network; the settings are timed in turn."""
    uavs, targets = size
    env, (wide, heads, layers) = Assignment(uavs=(uavs, uavs), targets=(targets, targets)), NETWORKS[name]
    entities = env.spec.entities
    if entities is None:
        raise TypeError("Assignment observes entities")
    net = StackedAttention(entities, wide, heads, layers, pairs=True)
    dice = torch.Generator().manual_seed(0)
    theta = net.initial(torch.rand(1, net.count, generator=dice)).to(rt.device).requires_grad_()
    state = env.initial(torch.rand(batch, env.spec.initial_noise, generator=dice).to(rt.device))
    nearest, every = (
        env.observe(replace(state, near=torch.full_like(state.near, near))).features.transpose(0, 1)
        for near in (1, max(size))
    )
    losses: dict[str, Callable[[Tensor], Tensor]] = {
        "plain": Loss(net, every),
        "nearest": Loss(net, nearest),
        "whole": recompute_activations(Loss(net, every)),
        "layers": Loss(replace(net, recompute=0.0), every),
        "torch": Loss(TorchAttention(entities, wide, heads, layers, pairs=True), every),
    }
    calls = {name: (lambda loss=loss: torch.autograd.grad(loss(theta), theta)) for name, loss in losses.items()}
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    seconds = time_in_turn(calls, min(rounds, MOST_ROUNDS), rt.device, warm_up=1, enough_s=ENOUGH_S)
    head = {"uavs": uavs, "targets": targets, "network": name, "parameters": net.count, "batch": batch}
    return [
        {
            **head,
            "setting": setting,
            "ms": round(1e3 * median(each), 3),
            "peak_bytes": peaks[setting],
            **ratio(each, seconds["plain"], "over_plain"),
        }
        for setting, each in seconds.items()
    ]


def padding_rows() -> list[dict[str, Any]]:
    """Return the share of multiplications that empty slots cost at each stage of ``CURRICULUM``.

    The others are those of slots for as many UAVs and targets as there are, in the mean over the sizes that are drawn.
    """
    policy = configure(CURRICULUM).learner
    rows = []
    for place in places_by_stage(Assignment(), CURRICULUM):
        env, counts = place.env, (range(low, high + 1) for low, high in (place.env.uavs, place.env.targets))
        needed = fmean(multiplications(policy, env, *size) for size in product(*counts))
        all_slots = multiplications(policy, env, env.rows, env.columns)
        rows.append({"stage": place.number, "share": round(1 - needed / all_slots, 3)})
    return rows


def multiplications(policy: Any, env: Assignment, uavs: int, targets: int) -> int:
    """Return the multiplications of a policy's matrix products for one world with so many slots, by their shapes."""
    entities = Entities(uavs, targets, FEATURES, env.sectors)
    net = StackedAttention(entities, policy.hidden, policy.heads, policy.layers, pairs=True)
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(1, net.count), torch.zeros(1, 1, entities.width))
    return counter.get_total_flops() // 2  # it counts additions, too


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes that tensors created by a call take at a time."""
    with Budget(sys.maxsize) as budget:
        call()
    return budget.peak
