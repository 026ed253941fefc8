"""A monitor watches and changes nothing: every learner computes the same bits with it and without."""

import pytest
import torch
from torch import Tensor

from tests.contracts.test_equality import tasks
from tests.support.fixtures_config import sizes
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.profiling.roofline import count_operators
from uavlab.runtime.stage_timer import Monitor
from uavlab.training import make_cycle


def train(env: str, learner: str, monitor: Monitor | None = None) -> dict[str, Tensor]:
    """Return what a learner holds after three cycles."""
    config = configure(env, sizes(env, learner), {"device": "cpu", "learner": learner})
    rt, rng, trained, source = build.assemble(config, monitor)
    cycle = make_cycle(source, trained, rng, rt)
    with rt.scope():
        for number in range(3):
            count_operators(cycle) if monitor and number == 1 else cycle()  # as a run counts them once
    return trained.state_dict()


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(("env", "learner"), tasks())
def test_the_bits_are_the_same(env: str, learner: str) -> None:
    monitor = Monitor(torch.device("cpu"))
    plain, watched = train(env, learner), train(env, learner, monitor)
    assert monitor.read()
    assert not differ(plain, watched)
    next(tensor for tensor in watched.values() if tensor.is_floating_point()).view(-1)[0] += 1e-6
    assert differ(plain, watched)
