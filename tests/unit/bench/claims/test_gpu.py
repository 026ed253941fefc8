"""What needs a GPU says so without one, and what is said of one model is judged on that model alone."""

import math

import pytest
import torch

from tests.unit.bench.claims.test_leader_follower import TINY
from uavlab.bench.claims.gpu import MEASURES, only_on, saved
from uavlab.bench.claims.leader_follower import Bench, Measured, NotTestable, need_gpu


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **TINY)


def test_memory_saved(bench: Bench) -> None:
    assert saved(bench, lambda bench: Measured(0.65, note="n")) == Measured(pytest.approx(0.35), note="n")


def test_what_is_claimed_of_another_device(bench: Bench) -> None:
    bench.name = "NVIDIA GeForce RTX 3090"
    assert only_on(bench, "RTX 3090", lambda bench: Measured(2.0)) == Measured(2.0)
    with pytest.raises(NotTestable, match="needs another device, RTX 3060; here it is 2, so and so"):
        only_on(bench, "RTX 3060", lambda bench: Measured(2.0, note="so and so"))


def test_without_a_gpu_it_is_asked_for(bench: Bench) -> None:
    with pytest.raises(NotTestable, match="needs a GPU: device memory"):
        need_gpu(bench, "device memory")
    with pytest.raises(NotTestable, match="needs a GPU: copies between host and device"):
        MEASURES["lost_to_copies"](bench)


def test_acting_reaches_a_share_of_the_rate_of_products(bench: Bench) -> None:
    bench.name = "RTX 3090"
    assert MEASURES["filled_on_3090"](bench).value > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_only_a_gpu_shows() -> None:
    bench = Bench(3, **TINY | {"device": "cuda"}, compile="off")
    for name in ("lost_to_copies", "precision_memory", "memory_saved", "busy_loop", "busy_stage_2"):
        assert math.isfinite(MEASURES[name](bench).value), name
    assert 0 < MEASURES["busy_loop"](bench).value <= 1
    assert MEASURES["precision_memory"](bench).value > 0
