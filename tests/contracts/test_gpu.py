"""Worlds and learners on a GPU match those on the CPU; equal noise is drawn on the CPU and copied."""

from typing import Any

import pytest
import torch

from uavlab.core.errors import FallbackWarning
from uavlab.core.types import leaves
from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.learners.masac.batched import MASAC
from uavlab.training import training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SMALL = {"hidden": 16, "worlds": 8, "batch": 32, "capacity": 4096, "learning_starts": 64, "evaluate_episodes": 8}


@pytest.mark.parametrize("env", [LeaderFollower(followers=4, obstacles=3, obstacle_speed=9.0, sight=2), PUBLISHED])
def test_flights_agree_with_the_cpu(env):
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(64, env.spec.initial_noise, generator=generator)
    states = {d: env.initial(start.to(d)) for d in ("cpu", "cuda")}
    for _ in range(100):
        action = 2 * torch.rand(64, env.spec.agents, 2, generator=generator) - 1
        none = torch.zeros(64, 0)
        states = {d: env.transition(state, action.to(d), none.to(d)) for d, state in states.items()}
    for (name, here), (_, there) in zip(leaves(states["cpu"]), leaves(states["cuda"]), strict=True):
        assert torch.allclose(here.double(), there.cpu().double(), rtol=1e-4, atol=1e-2), name


@pytest.mark.parametrize("update", ["batched", "loop"])
def test_a_run_trains_saves_and_goes_on(tmp_path, update):
    ends = {"device": "cuda", "updates": 20, "evaluate_every": 10, "update": update}
    config = configure("leader_follower_quick", SMALL, ends)
    run = Run(config, tmp_path / "run")
    for progress in run.train():
        if progress.number == 10:
            break
    again = Run.resume(tmp_path / "run")
    assert again.number == 10
    assert again.learner.parameters().is_cuda
    for _ in again.train():
        pass
    assert again.status == "complete"


def test_no_hidden_synchronization_in_an_update():
    run = Run(configure("leader_follower_quick", SMALL, {"device": "cuda"}))
    run.source._check = lambda numbers: None  # the guard asks the device on purpose
    run.source.next()
    run.learner.update(run.source.next(), run.learner.update_noise(run.rng, 32))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(40):  # long enough to refill the pool of fresh worlds
            batch = run.source.next()
            run.learner.update(batch, run.learner.update_noise(run.rng, 32))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def graphed(graph: str, **changes: Any) -> Run:
    """Train 100 updates on a GPU."""
    ends = {"device": "cuda", "updates": 100, "evaluate_every": 50, "log_every": 10, "graph": graph}
    run = Run(configure("leader_follower_quick", SMALL, ends, changes))
    for _ in run.train():
        pass
    return run


@pytest.mark.parametrize("changes", [{}, {"runs": 3, "world_steps": 2}, {"priorities": "mean"}], ids=str)
@pytest.mark.parametrize("graph", ["update", "cycle"])
def test_a_graph_computes_what_single_launches_do(graph, changes):
    plain, fast = graphed("off", **changes), graphed(graph, **changes)
    assert fast.rt.fell_back == {}
    assert fast.rng.state_dict().keys() == plain.rng.state_dict().keys()
    for name, state in plain.rng.state_dict().items():
        assert torch.equal(state, fast.rng.state_dict()[name]), name  # the same numbers were drawn
    for name, value in plain.learner.state_dict().items():
        off = (fast.learner.state_dict()[name] - value).norm() / (value.norm() + 1e-6)
        assert off < 1e-3, name


@pytest.mark.parametrize("graph", ["update", "cycle"])
def test_no_hidden_synchronization_in_a_loop_of_graphs(graph):
    run = Run(configure("leader_follower_quick", SMALL, {"device": "cuda", "graph": graph}))
    with run.rt.scope():
        steps = training(run.source, run.learner, run.rng, run.rt, 0, 60)
        for _ in range(10):  # the first rows, warm-up and recording
            next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(40):  # long enough to refill the pool of fresh worlds
                next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert run.rt.fell_back == {}


@pytest.mark.parametrize("graph", ["update", "cycle"])
def test_what_cannot_be_recorded_falls_back_with_the_same_digest(graph, monkeypatch):
    plain = graphed("off")
    update = MASAC._update

    def asks(self, batch, noise):
        result = update(self, batch, noise)
        assert result.metrics["target"].isfinite().all()  # waits for the value
        return result

    monkeypatch.setattr(MASAC, "_update", asks)
    with pytest.warns(FallbackWarning, match=f"graph={graph} fell back"):
        fast = graphed(graph)
    assert "graph" in fast.rt.fell_back
    assert fast.digest == plain.digest
