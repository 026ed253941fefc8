"""The training loop, whole: a generator, so that its caller logs, evaluates, saves and stops between updates."""

from collections.abc import Iterator
from dataclasses import dataclass

from uavlab.core.protocols import Learner, Source
from uavlab.core.rng import Streams
from uavlab.core.types import Update
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class Step:
    """One finished update: how many were made in all, and what the learner returned."""

    number: int
    update: Update


def one_cycle(source: Source, learner: Learner, rng: Streams) -> Update:
    """Produce a batch, learn from it, tell the source."""
    batch = source.next()
    update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
    source.feedback(batch, update)
    return update


def training(source: Source, learner: Learner, rng: Streams, rt: Runtime, start: int, updates: int) -> Iterator[Step]:
    """Make updates ``start`` + 1 to ``updates``, yielding after each; stop by breaking off."""
    cycle = rt.cycle(one_cycle)
    for number in range(start + 1, updates + 1):
        yield Step(number, cycle(source, learner, rng))
