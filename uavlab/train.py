"""The training loop, whole: a generator, so that its caller logs, evaluates, saves and stops between updates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from uavlab.core.errors import DivergedError
from uavlab.core.protocols import Learner, Source
from uavlab.core.rng import Streams
from uavlab.core.types import Update
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class Step:
    """One finished update: how many were made in all, and what the learner returned."""

    number: int
    update: Update


def one_cycle(source: Source, learner: Learner, rng: Streams, rt: Runtime) -> Update:
    """Produce a batch, learn from it, tell the source.

    Raises:
        DivergedError: An observation, action or reward, or what the learner returned, is not finite.
    """
    with at_update(-1):  # as the update before left it
        rt.check(learner.tensors_to_check())
    rt.next_update()
    batch = source.next()
    update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
    rt.check(learner.tensors_to_check(update))
    source.feedback(batch, update)
    return update


def make_cycle(source: Source, learner: Learner, rng: Streams, rt: Runtime) -> Callable[[], Update]:
    """Make cycles of these, one per call; what a captured one leaves to be done is done around it."""
    cycle = rt.cycle(partial(one_cycle, source, learner, rng, rt), rng.generators)

    def call() -> Update:
        source.before_cycle()
        update = cycle()
        source.after_cycle()
        return update

    return call


def training(source: Source, learner: Learner, rng: Streams, rt: Runtime, start: int, updates: int) -> Iterator[Step]:
    """Make updates ``start`` + 1 to ``updates``, yielding after each; stop by breaking off.

    Raises:
        DivergedError: A number is not finite, so that this update or the one before is the last.
    """
    cycle = make_cycle(source, learner, rng, rt)
    for number in range(start + 1, updates + 1):
        with at_update(number):
            update = cycle()
        yield Step(number, update)


def check_state(source: Source, learner: Learner, rt: Runtime, number: int) -> None:
    """Check everything that a checkpoint after update ``number`` would keep; call it before each.

    Raises:
        DivergedError: A number in it is not finite.
    """
    with at_update(number):
        rt.check(learner.tensors_to_check())
        rt.check(source.tensors_to_check())
    rt.read(number)


@contextmanager
def at_update(number: int) -> Iterator[None]:
    """Add to a finding which update it belongs to."""
    try:
        yield
    except DivergedError as error:
        error.record["update"] = number + error.record.get("update", 0)
        raise
