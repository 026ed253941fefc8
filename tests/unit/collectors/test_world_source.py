"""Worlds that go on from batch to batch: another number of them starts anew, and replay stays as it is."""

from typing import Any

import torch

from tests.support.registries import registered
from uavlab.collectors.world_source import host_or_kernel
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.runtime.runtime import Runtime
from uavlab.workers.registration import external

TINY = {"hidden": 8, "batch": 8, "worlds": 4, "learning_starts": 8, "capacity": 64, "threads": 1}


def run_with(**settings: Any) -> Run:
    run = Run(configure("leader_follower_quick", {**TINY, **settings}))
    steps = run.train()
    for progress in steps:
        if progress.number == 4:
            break
    return run


def test_rows_are_counted_over_numbers_of_worlds() -> None:
    run = run_with()  # 2 random steps, then 4 steps of 4 worlds
    assert run.source._stored == 24
    assert run.source.offset == 0
    run.change(worlds=6)
    assert run.source._stored == 24
    assert run.source.offset == 24 - 6 * 6
    run.source.next()
    assert run.source._stored == 30
    assert int(run.source.ring.cursor) == 30


def test_returns_of_older_rows_are_of_one_step() -> None:
    run = run_with(n_step=3)
    slots = torch.arange(24)[None]
    before = run.source._read(slots, None).discount
    assert before is not None
    assert torch.allclose(before[0, :16], torch.full((16,), run.config.learner.gamma**3))
    run.change(worlds=6)
    after = run.source._read(slots, None).discount
    assert torch.allclose(after, torch.full_like(after, run.config.learner.gamma))


def test_new_worlds_start_from_streams_that_went_on() -> None:
    run = run_with()
    starts = []
    for worlds in (6, 4, 6):
        run.change(worlds=worlds)
        starts.append(run.source.worlds.obs[:4].clone())
    assert not torch.equal(starts[0], starts[2])


def test_a_state_of_as_many_worlds_is_restored() -> None:
    run, other = run_with(), Run(configure("leader_follower_quick", TINY))
    state = run.source.state_dict()
    other.source.load_state_dict(state)
    assert not other.source.resized
    assert torch.equal(other.source.worlds.obs, run.source.worlds.obs)
    other.source.load_state_dict({**state, "worlds.replaced": torch.zeros(6)})
    assert other.source.resized


def test_steps_on_the_host_are_not_compiled() -> None:
    class Compiling(Runtime):
        def kernel(self, fn: Any, name: str, part: bool = False) -> Any:
            return f"kernel {name}"

    assert host_or_kernel("other processes", len, Compiling()) is len
    assert host_or_kernel("", len, Compiling()) == "kernel environment"


def test_a_timed_step_goes_on_where_worlds_are_on_the_host() -> None:
    with registered():
        run = Run(configure(external("tests.support.strangers:Meadow", moves=False), {**TINY, "workers": 1}))
        assert "CUDA graph" in run.source.host_work
        assert run.source.record()["workers"] == 1
        assert run.source.inexact() == []
        step = run.source.world_step()
        steps = [int(step()[0].state.step[0]) for _ in range(3)]
        assert steps == [1, 2, 3]
        assert run.source.worlds.state.step[0] == 3  # its copy has gone on
        assert "gone" not in run.source.record()
    plain = run_with()
    step = plain.source.world_step()
    first, second = step()[0].state.step, step()[0].state.step
    assert torch.equal(first, second)
    assert (plain.source.host_work, plain.source.record(), plain.source.inexact()) == ("", {}, [])
