"""Worlds of several stages: which one each starts in, and what is refused."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch

from uavlab.core.errors import ConfigError
from uavlab.core.rng import Streams
from uavlab.envs.autoreset import advance, make_pool, start_worlds
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.staged import AtStages, Staged, choose_stages, first_stage, start_noise

ENV = LeaderFollower()
STAGES = tuple(LeaderFollower(obstacle_speed=speed) for speed in (0.0, 10.0, 20.0))
STAGED = Staged(ENV, STAGES)


def speeds(env: Staged, noise: torch.Tensor) -> list[float]:
    return env.initial(noise).drift.norm(dim=-1)[:, 0].round().tolist()


def test_the_last_number_chooses_the_stage() -> None:
    noise = torch.rand(4, STAGED.spec.initial_noise)
    noise[:, -1] = torch.tensor([0.0, 0.34, 0.67, 0.999])
    assert speeds(STAGED, noise) == [0.0, 10.0, 20.0, 20.0]
    other = STAGES[1].initial(noise[1:2, :-1])
    assert torch.equal(STAGED.initial(noise).drift[1:2], other.drift)


def test_worlds_keep_the_stage_at_which_they_started() -> None:
    """Both worlds start at the first stage; the second one ends, and is replaced by one of the last stage."""
    noise = torch.zeros(2, STAGED.spec.initial_noise)
    spare = noise.clone()
    spare[:, -1] = 0.999
    worlds, pool = start_worlds(STAGED, noise), make_pool(STAGED, spare[None])
    step = torch.tensor([0, STAGED.spec.horizon - 1])
    worlds = replace(worlds, state=replace(worlds.state, step=step))
    action, still = torch.zeros(2, STAGED.spec.agents, 2), torch.zeros(2, STAGED.spec.step_noise)
    after, row = advance(STAGED, worlds, action, still, pool)
    assert row.truncated.tolist() == [False, True]
    assert row.stage_number is not None
    assert after.stage_number is not None
    assert (row.stage_number.tolist(), after.stage_number.tolist()) == ([0, 0], [0, 2])
    plain, bare = advance(ENV, start_worlds(ENV, noise[:, :-1]), action, still, make_pool(ENV, spare[None, :, :-1]))
    assert (plain.stage_number, bare.stage_number) == (None, None)


def test_shares_are_met() -> None:
    share = torch.tensor([[0.2, 0.0, 0.8], [0.0, 1.0, 0.0]])
    noise = choose_stages(torch.rand(2, 5, 2000, 3, generator=torch.Generator().manual_seed(0)), share)
    number = (noise[..., -1] * 3).long()
    counts = torch.stack([(number == stage).double().mean((1, 2)) for stage in range(3)], 1)
    torch.testing.assert_close(counts, share.double(), rtol=0, atol=0.02)
    assert counts[0, 1] == counts[1, 0] == counts[1, 2] == 0


def test_numbers_but_the_last_stay() -> None:
    noise = torch.rand(2, 4, 3)
    assert torch.equal(choose_stages(noise, torch.tensor([[0.5, 0.5], [1.0, 0.0]]))[..., :-1], noise[..., :-1])


def test_each_run_has_a_stage_where_policies_are_scored() -> None:
    env = AtStages(ENV, STAGES, (2, 0))
    assert speeds(env, torch.rand(6, env.spec.initial_noise)) == [20.0] * 3 + [0.0] * 3


def test_runs_begin_at_the_first_stage() -> None:
    rng = Streams([0, 1])
    assert first_stage(ENV, 2, rng) is None
    share = first_stage(STAGED, 2, rng)
    assert share is not None
    assert share.tolist() == [[1.0, 0.0, 0.0]] * 2
    assert speeds(STAGED, start_noise(STAGED, rng, "worlds", (5,), share).flatten(0, 1)) == [0.0] * 10


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="stage 2: spec of the task, then of the stage: agents 2 -> 3, initial_noise"):
        Staged(ENV, (ENV, LeaderFollower(followers=2)))
    with pytest.raises(ConfigError, match="stages: got none"):
        Staged(ENV, ())


def test_it_is_copied_and_has_what_the_task_has() -> None:
    for other in (copy.deepcopy(STAGED), pickle.loads(pickle.dumps(STAGED))):
        assert other == STAGED
    assert (STAGED.metrics, STAGED.dt, STAGED.spec.agents) == (ENV.metrics, ENV.dt, 2)
    with pytest.raises(AttributeError, match="no_such"):
        _ = STAGED.no_such
