"""Ranks whose learners share each batch of a learner that trains alone.

Ranks are threads of this process, or each is a process of its own that repeats the learner alone, to have its batches.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from tests.support.fixtures_config import sizes
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, tree_map
from uavlab.experiment import build
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS
from uavlab.experiment.config import Config, configure
from uavlab.runtime.ranks import Ranks

T = TypeVar("T")
Spoil = Callable[[Batch, Streams], Batch]

OWN = {"combine", "sum", "mean", "max", "min", "means", "largest", "any", "wait", "<dictcomp>", "<genexpr>"}
WORLD_AXIS = {"on_policy": 2, "fixed_length": 2}  # R T W; rows of other sources are R N


def small(learner: str, env: str = "", **more: Any) -> Config:
    """Return small settings of a learner with an even number of worlds, by default on the first task that fits."""
    env = env or next(
        name for name, each in ENVIRONMENTS.items() if not LEARNERS[learner].unsupported(each.kind().spec)
    )
    own = {"learner": learner, **({"worlds": 4} if LEARNERS[learner].collector != "windows" else {})}
    return configure(env, sizes(env, learner), own, more)


@dataclass
class Board:
    """What the threads combine, and the place where they wait for each other."""

    size: int
    slots: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)

    def all(self, rank: int, value: T) -> list[T]:
        """Return the values of all ranks."""
        self.slots[rank] = value
        self.barrier.wait()
        values = [self.slots[each] for each in range(self.size)]
        self.barrier.wait()
        return values


@dataclass(frozen=True)
class ThreadRank(Ranks):
    """A rank that is a thread.

    Attributes:
        board: Shared by all ranks.
        deaf: Functions that combine nothing, as if their authors had forgotten it.
        heard: Functions that combined something.
    """

    board: Board = field(default_factory=lambda: Board(1))
    deaf: frozenset[str] = frozenset()
    heard: set[str] = field(default_factory=set)

    def combine(self, tensor: Tensor, how: Literal["sum", "max"]) -> Tensor:
        name = caller(sys._getframe(1))
        self.heard.add(name)
        if name in self.deaf:
            return tensor * self.size if how == "sum" else tensor
        each = torch.stack(self.board.all(self.rank, tensor.detach().clone()))
        return each.sum(0) if how == "sum" else each.amax(0)

    def from_first(self, tensor: Tensor) -> Tensor:
        return self.board.all(self.rank, tensor.detach().clone())[0]

    def exchange(self, name: str, value: Any) -> list[Any]:
        return self.board.all(self.rank, value)


def caller(frame: FrameType | None) -> str:
    """Return the name of the function that combines tensors."""
    while frame is not None and frame.f_code.co_name in OWN:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


def together(work: Callable[[ThreadRank], T], size: int = 2, deaf: frozenset[str] = frozenset()) -> list[T]:
    """Call a function on each rank, and return the results of all; the first error is raised."""
    board = Board(size)
    ranks = [ThreadRank(rank, size, board, deaf) for rank in range(size)]

    def call(rank: ThreadRank) -> T:
        try:
            return work(rank)
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(call, rank) for rank in ranks]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]


class Twins:
    """A learner alone, and as two ranks that each get one half of the rows of every batch.

    Attributes:
        alone: The learner that gets all rows.
        ranks: The learners that get a half each.
        here: Ranks that update in this process.
    """

    def __init__(
        self,
        config: Config,
        deaf: str = "",
        spoil: Spoil = lambda batch, rng: batch,
        own: Ranks | None = None,
    ) -> None:
        """Build them.

        Args:
            config: Settings of the learner alone.
            deaf: A function of thread ranks that combines nothing.
            spoil: Changes each batch.
            own: The rank that is this process; None for two threads.
        """
        self.config, self.spoil = config, spoil
        self.here = range(2) if own is None else [own.rank] if own.size > 1 else []
        rt = build.runtime(config.run, config.toggles)
        self.rng = build.streams(config.run, rt.device, torch.float64)
        self.alone, self.source = config.task.build(config, self.rng, rt)
        self.axis = WORLD_AXIS.get(config.task.algorithm.collector, 1)
        board = Board(2)
        self.places = [ThreadRank(rank, 2, board, frozenset({deaf})) for rank in range(2)]
        half = self.halved()
        self.ranks = []
        for place in self.places:
            rank_rt = replace(rt, ranks=own or place)
            data = config.task.collector.measure_inputs(config, build.streams(config.run, rt.device, torch.float64), rt)
            learner = config.task.algorithm.build(
                half, data, build.streams(config.run, rt.device, torch.float64), rank_rt
            )
            learner.load_state_dict(self.initial(learner))
            self.ranks.append(learner)

    def halved(self) -> Config:
        """Return the settings of one rank."""
        size = "worlds" if hasattr(self.config.source, "rollout_steps") else None
        source = (
            self.config.source if size is None else replace(self.config.source, worlds=self.config.source.worlds // 2)
        )
        return replace(self.config, source=source)

    def initial(self, learner: Any) -> dict[str, Tensor]:
        own = learner.state_dict()
        return {
            name: own[name] if name == "critic_memory" else each.clone()
            for name, each in self.alone.state_dict().items()
        }

    def train(self, updates: int) -> float:
        """Make updates; return how far the ranks are from the learner alone, relative to its largest number."""
        for _ in range(updates):
            self.source.before_cycle()
            batch = self.spoil(self.source.next(), self.rng)
            rows = batch.index.shape[1] // 2
            drawn = [learner.update_noise(self.rng, rows) for learner in self.ranks]
            whole, noises = self.join(drawn, batch)
            self.alone.update(batch, whole)
            halves = [self.half(batch, place) for place in range(2)]
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(self.ranks[each].update, halves[each], noises[each]) for each in self.here]
                for job in jobs:
                    job.result()
            self.source.after_cycle()
        return max(
            (distance(self.ranks[each].state_dict(), self.alone.state_dict()) for each in self.here), default=0.0
        )

    def half(self, batch: Batch, place: int) -> Batch:
        """Return the rows of a batch that one rank gets."""

        def part(axis: int) -> Callable[[Tensor], Tensor]:
            return lambda leaf: leaf.chunk(2, axis)[place].clone()

        data = tree_map(part(self.axis), batch.data)
        rest = {
            name: None if (x := getattr(batch, name)) is None else part(1)(x)
            for name in ("index", "weight", "memory", "discount")
        }
        return Batch(data, **rest)

    def join(self, noises: list[Any], batch: Batch) -> tuple[Any, list[Any]]:
        """Return the noise of the learner alone, of the same minibatches, and that of each rank."""
        if isinstance(noises[0], tuple):  # an order of rows, and noise that all share
            order, _ = self.join([each[0] for each in noises], batch)
            return (order, noises[0][1]), [(each[0], noises[0][1]) for each in noises]
        if not isinstance(noises[0], Tensor) or noises[0].dtype != torch.int64:
            return tree_map(lambda a, b: torch.cat((a, b), 1), *noises), noises
        parts = [self.place(order, place) for place, order in enumerate(noises)]
        count = self.config.learner.minibatches
        split = [part.unflatten(2, (count, -1)) for part in parts]
        return torch.cat(split, 3).flatten(2), noises

    def place(self, order: Tensor, place: int) -> Tensor:
        """Return the rows of a rank by their places in the whole batch."""
        worlds = self.config.source.worlds
        half = worlds // 2
        return order // half * worlds + place * half + order % half


def distance(state: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> float:
    """Return the largest difference of the state of a rank from that of the learner alone."""
    gaps = [0.0]
    for name, tensor in alone.items():
        if name != "critic_memory" and tensor.is_floating_point():
            gaps.append(float((state[name] - tensor).abs().max() / tensor.abs().max().clamp_min(1e-3)))
    return max(gaps)


def weighted(batch: Batch, rng: Streams) -> Batch:
    """Return a batch with importance weights."""
    return replace(batch, weight=rng.uniform("weights", batch.index.shape[1]) + 0.1)


def thinned(batch: Batch, rng: Streams) -> Batch:
    """Return a batch in which some agents are not live."""
    live = batch.data.live
    drawn = rng.uniform("live", *live.shape[1:])
    return replace(batch, data=replace(batch.data, live=live & (drawn > 0.3)))


PURSUIT = {"pursuers": 2, "evaders": 2, "obstacles": 0, "side": 3, "horizon": 9}  # agents end before the others
CASES: dict[str, tuple[Any, ...]] = {
    "masac": ("masac", {}, weighted),
    "masac, live marks": ("masac", {"env": "pursuit", **PURSUIT}),
    "masac, loop": ("masac", {"update": "loop"}, weighted),
    "masac, shared critic": ("masac", {"critic": "shared", "n_step": 3}),
    "coma, live marks": ("coma", {}, thinned),
    "mappo": ("mappo", {"target_kl": 0.01, "lr": 0.01}, thinned),
    "ippo": ("ippo", {"target_kl": 0.0}, thinned),
    "mappo, memory": ("mappo", {"memory": 6}, thinned),
    "mappo, noise": ("mappo", {"noisy": True}),
    "forecaster": ("forecaster", {"physics": 0.1}),
}


def twins(name: str, deaf: str = "", own: Ranks | None = None) -> Twins:
    """Return the twins of a case."""
    learner, changes, *spoil = CASES[name]
    rollout = {"rollout_steps": 4} if learner in ("mappo", "ippo") else {}
    return Twins(small(learner, **rollout, **changes), deaf, *spoil, own=own)
