"""A toy learner, and a reference of a source's schedule that makes every step in turn in one thread."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import torch
from torch import Tensor

from uavlab.collectors.off_policy import POOL_DEPTH, POOL_STEPS, OffPolicyCollector, ReplayConfig, blank_row
from uavlab.core.protocols import Policy
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, Transition, Update, leaves, tree_map
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.replay.buffer import Store, Uniform
from uavlab.replay.prioritized import ByPriority
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles

ENV = LeaderFollower(sight=1, horizon=12)
CONFIG = ReplayConfig(worlds=3, world_steps=2, batch=5, capacity=61, learning_starts=30, priority_draws=20)
SEEDS = (3, 8)


class ToyLearner:
    """One number per run, changed in place by every batch; its policy acts on it element by element."""

    def __init__(self, runs: int) -> None:
        self.theta = torch.zeros(runs, dtype=torch.float64)

    def policy(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        return act(self.theta, obs, noise)

    def snapshot(self) -> Policy:
        theta = self.theta.clone()
        return lambda obs, noise: act(theta, obs, noise)

    def learn(self, batch: Batch) -> Update:
        data: Transition = batch.data
        weight = 1.0 if batch.weight is None else batch.weight[..., None]
        self.theta.add_((weight * data.action[..., 0] * data.reward).sum((1, 2))).remainder_(3.0)
        return Update({}, td_error=data.obs[..., 2] + self.theta[:, None, None])


def act(theta: Tensor, obs: Tensor, noise: Tensor | None) -> Tensor:
    assert noise is not None
    return torch.tanh(noise + obs[..., :2] + theta[:, None, None, None] - 1)


class InlineExecutor(Executor):
    """Runs a job when it is submitted."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class DeferredExecutor(Executor):
    """Runs a job when its result is requested."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        class Waiting(Future):
            def result(self, timeout: float | None = None) -> Any:
                if not self.done():
                    self.set_result(fn(*args, **kwargs))
                return super().result(timeout)

        return Waiting()


def example(runs: int, config: ReplayConfig = CONFIG) -> Transition:
    """Return one row of zeros for each run and world, R W."""
    noise = torch.zeros(runs * config.worlds, ENV.spec.initial_noise, dtype=torch.float64)
    row = blank_row(ENV, start_worlds(ENV, noise))
    return tree_map(lambda leaf: leaf.unflatten(0, (runs, config.worlds)), row)


def make_store(toggles: Toggles, runs: int, config: ReplayConfig = CONFIG) -> Store:
    if toggles.priorities == "off":
        return Uniform(example(runs, config), config.capacity)
    return ByPriority(example(runs, config), config.capacity, config, toggles.priorities)


def make(
    seeds: tuple[int, ...] = SEEDS, config: ReplayConfig = CONFIG, executor: Executor | None = None, **toggles: Any
) -> tuple[OffPolicyCollector, ToyLearner]:
    """Build a source and its learner; an executor replaces the source's thread."""
    asked, learner = Toggles(**toggles), ToyLearner(len(seeds))
    source = OffPolicyCollector(
        ENV, learner.policy, config, Streams(seeds, dtype=torch.float64), Runtime(requested=asked),
        make_store(asked, len(seeds), config), learner.snapshot,
    )  # fmt: skip
    if executor is not None:
        source.executor = source.executor and executor
        if source.prefetcher is not None:
            source.prefetcher.executor = executor
    return source, learner


Trace = list[tuple[str, Tensor]]


def tensors_of(batch: Batch, learner: ToyLearner) -> Trace:
    """Return all tensors of a batch, and the parameter after its update."""
    weight = [] if batch.weight is None else [("weight", batch.weight)]
    return [*leaves(batch.data), ("index", batch.index), *weight, ("theta", learner.theta.clone())]


def run_updates(source: OffPolicyCollector, learner: ToyLearner, updates: int) -> Trace:
    """Make updates with a source; return every batch and parameter."""
    seen: Trace = []
    for _ in range(updates):
        batch = source.next()
        update = learner.learn(batch)
        source.feedback(batch, update)
        seen += tensors_of(batch, learner)
    return seen


def run_in_turn(toggles: Toggles, updates: int, config: ReplayConfig = CONFIG, seeds: tuple[int, ...] = SEEDS) -> Trace:
    """Make updates with a plain loop that stores, draws and learns in turn."""
    runs, count, spec = len(seeds), config.worlds, ENV.spec
    rng, learner, store = Streams(seeds, dtype=torch.float64), ToyLearner(runs), make_store(toggles, runs, config)
    steps, worlds = 0, start_worlds(ENV, rng.uniform("worlds", count, spec.initial_noise).flatten(0, 1))

    def filled() -> Any:
        noise = rng.uniform("pool", POOL_DEPTH, count, spec.initial_noise).transpose(0, 1).flatten(1, 2)
        return make_pool(ENV, noise)

    def step(policy: Policy | None) -> Transition:
        nonlocal worlds, pool, steps
        if policy is None:
            action = 2 * rng.uniform("explore", count, spec.agents, 2) - 1
        else:
            action = policy(worlds.obs.view(runs, count, spec.agents, -1), rng.normal("act", count, spec.agents, 2))
        worlds, row = advance(ENV, worlds, action.flatten(0, 1), rng.uniform("step", count, 0).flatten(0, 1), pool)
        steps += 1
        pool = filled() if steps % POOL_STEPS == 0 else pool
        return tree_map(lambda leaf: leaf.unflatten(0, (runs, count)), row)

    def add(row: Transition) -> None:
        nonlocal total
        store.add(row)
        for _ in range(count):
            owner[total % config.capacity], total = total, total + 1

    def draw() -> tuple[Batch, Tensor]:
        index, weight = store.choose(rng.integers("replay", config.batch))
        return Batch(store.take(index), index, weight), owner[index]

    owner, total = torch.full((config.capacity,), -1), 0  # the number of the row in each slot
    pool, seen, rows, ahead = filled(), [], [], None
    while steps * count < config.learning_starts:
        add(step(None))
    for number in range(updates):
        if number % (toggles.interval * toggles.ratio) == 0:
            for row in rows:  # of the round before
                add(row)
            rows = [step(learner.policy) for _ in range(toggles.interval * config.world_steps)]
            if toggles.prefetch != "overlap":
                for row in rows:
                    add(row)
                rows = []
        batch, owners = ahead or draw()
        ahead = draw() if toggles.prefetch == "on" else None
        update = learner.learn(batch)
        store.feedback(batch.index, update, owner[batch.index] != owners)
        seen += tensors_of(batch, learner)
    return seen


def check_equal(a: Trace, b: Trace) -> None:
    for (name, x), (_, y) in zip(a, b, strict=True):
        assert torch.equal(x, y), name
