"""The training loop: a generator, so that the caller can log, evaluate, save and stop between updates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from uavlab.core.errors import ConfigError, DivergedError
from uavlab.core.protocols import Collector
from uavlab.core.rng import Streams
from uavlab.core.types import Update
from uavlab.learners.learner import Learner
from uavlab.runtime.runtime import Runtime


def one_cycle(source: Collector, learner: Learner, rng: Streams, rt: Runtime) -> Update:
    """Get a batch, update the learner, pass the result back to the source."""
    with at_update(-1):  # the parameters are those of the previous update
        rt.check(learner.tensors_to_check())
    rt.next_update()
    batch = source.next()
    update = learner.update(batch, learner.update_noise(rng, batch.index.shape[1]))
    if not isinstance(update, Update):
        raise ConfigError(
            f"learner.update: got a {type(update).__name__}; expected an Update; see uavlab.check_learner."
        )
    rt.check(learner.tensors_to_check(update))
    source.feedback(batch, update)
    return update


def make_cycle(source: Collector, learner: Learner, rng: Streams, rt: Runtime) -> Callable[[], Update]:
    """Return a function that runs one cycle per call, captured by a CUDA graph if the runtime does so."""
    cycle = rt.cycle(partial(one_cycle, source, learner, rng, rt), rng.generators, source.host_work)

    def call() -> Update:
        source.before_cycle()
        update = cycle()
        source.after_cycle()
        return update

    return call


def training(
    source: Collector, learner: Learner, rng: Streams, rt: Runtime, start: int, updates: int = 10**9
) -> Iterator[tuple[int, Update]]:
    """Run updates ``start`` + 1 to ``updates``; yield the number and the result of each."""
    cycle = make_cycle(source, learner, rng, rt)
    for number in range(start + 1, updates + 1):
        with at_update(number):
            update = cycle()
        yield number, update


def check_state(source: Collector, learner: Learner, rt: Runtime, number: int) -> None:
    """Check all tensors of the checkpoint after update ``number``, before it is saved."""
    with at_update(number):
        rt.check(learner.tensors_to_check())
        rt.check(source.tensors_to_check())
    rt.read(number)


@contextmanager
def at_update(number: int) -> Iterator[None]:
    """Add the number of the update to the record of a ``DivergedError``."""
    try:
        yield
    except DivergedError as error:
        error.record["update"] = number + error.record.get("update", 0)
        raise
