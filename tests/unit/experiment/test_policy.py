"""A trained policy acts equally from memory, from its run and from an exported copy."""

import dataclasses
import itertools
import os
from pathlib import Path

import pytest
import torch

from tests.support.fixtures_config import sizes, tiny, train_run, train_tiny
from uavlab import api
from uavlab.core.errors import ConfigError, FileError
from uavlab.core.rng import Streams
from uavlab.core.types import leaves
from uavlab.experiment import policy, scores
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run

EPISODES = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two runs in one process, evaluated with more followers than they were trained with."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "pair", runs=2, eval_followers=3, eval_horizon=9)


@pytest.fixture(scope="module")
def loaded(pair: Run) -> policy.TrainedPolicy:
    assert pair.folder is not None
    return policy.load(pair.folder)


@pytest.fixture(scope="module")
def team() -> policy.TrainedPolicy:
    """A team with memory."""
    values = {**sizes("spread", "mappo"), "learner": "mappo", "memory": 5, "updates": 2, "evaluate_every": 2}
    return train_run(configure("spread", values)).trained()


def positions(trained_policy: policy.TrainedPolicy, **choice: int | bool) -> torch.Tensor:
    return torch.stack([state.pos for state in policy.fly(trained_policy, **{"seed": 0, **choice})])  # type: ignore[arg-type]


def test_loaded_is_what_the_run_holds(pair: Run, loaded: policy.TrainedPolicy) -> None:
    held = pair.trained()
    assert torch.equal(loaded.parameters, held.parameters)
    assert torch.equal(loaded.score, held.score)
    assert (loaded.config, loaded.update) == (held.config, held.update) == (pair.config, 8)
    assert loaded.parameters.shape[:2] == (2, 2)  # runs, and two networks: the leader's and the followers'


class TestFlight:
    def test_begins_with_the_start_and_shows_every_step(self, loaded: policy.TrainedPolicy) -> None:
        states = list(policy.fly(loaded, seed=5))
        env = loaded.config.evaluation
        noise = Streams([5]).uniform("fly.start", 1, env.spec.initial_noise)[0]
        start = env.initial(noise)
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(states[0]), leaves(start), strict=True))
        assert [int(state.step) for state in states] == list(range(env.horizon + 1))

    def test_ends_with_the_task(self, loaded: policy.TrainedPolicy) -> None:
        class Short(type(loaded.config.evaluation)):  # type: ignore[misc]
            def terminated(self, state):  # type: ignore[no-untyped-def]
                return (state.step == 4)[:, None].expand(-1, self.followers + 1)

        task = Short(**vars(dataclasses.replace(loaded.config.evaluation)))
        assert [int(state.step) for state in policy.fly(loaded, seed=0, env=task)] == [0, 1, 2, 3, 4]

    def test_is_chosen_by_seed_run_and_kind_of_action(self, loaded: policy.TrainedPolicy) -> None:
        first = positions(loaded)
        assert torch.equal(first, positions(loaded))
        assert torch.equal(first[0], positions(loaded, run=1)[0])
        for choice in ({"seed": 1}, {"run": 1}, {"mean_action": True}):
            assert not torch.equal(first, positions(loaded, **choice)), choice

    @pytest.mark.parametrize("run", [-1, 2])
    def test_a_run_that_is_not_there(self, loaded: policy.TrainedPolicy, run: int) -> None:
        with pytest.raises(ConfigError, match=rf"policy: run {run} of 2; expected 0 to 1\."):
            next(policy.fly(loaded, seed=0, run=run))


class TestMemory:
    def test_is_kept_by_the_caller(self, team: policy.TrainedPolicy) -> None:
        """Steps by hand give the flight; a memory of another step, or of none, gives other actions."""
        act, env, rng = team.policy(), team.config.evaluation, Streams([3])
        states = list(policy.fly(team, seed=3, mean_action=True))
        memory = act.start(1)
        assert memory.shape == (1, 3, 5)
        assert not memory.any()
        for state, after in itertools.pairwise(states):
            before = memory.clone()
            action, memory = act.step(env.observe(state), memory)
            assert torch.equal(act.step(env.observe(state), before)[0], action)  # nothing is hidden
            moved = env.transition(state, action, rng.uniform("fly.step", 1, env.spec.step_noise)[0])
            assert all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(moved), leaves(after), strict=True))
        assert len(states) > 2
        assert not torch.equal(act.step(env.observe(state), act.start(1))[0], action)

    def test_scores_begin_anew(self, team: policy.TrainedPolicy) -> None:
        one, again = (scores.evaluate(team, EPISODES, 0, mean_action=False) for _ in range(2))
        assert one == again

    def test_is_refused_where_it_is_none_of_this_team(self, team: policy.TrainedPolicy) -> None:
        act, obs = team.policy(), torch.zeros(2, 3, team.config.env.spec.obs)
        shape = r"torch.float32 of shape \(2, 3, 5\)"
        for wrong in (None, act.start(1), act.start(2).double(), 7):
            with pytest.raises(ConfigError, match=rf"expected {shape}.*memory = act.start\(2\)"):
                act.step(obs, wrong)
        with pytest.raises(ConfigError, match=r"action, memory = act.step\(obs, memory\)"):
            act(obs)

    def test_of_a_policy_without_memory_is_none(self, loaded: policy.TrainedPolicy) -> None:
        act, env = loaded.policy(), loaded.config.evaluation
        obs = env.observe(env.initial(torch.rand(2, env.spec.initial_noise)))
        assert act.start(2) is None
        action, memory = act.step(obs, None)
        assert memory is None
        assert torch.equal(action, act(obs))
        with pytest.raises(ConfigError, match="as memory; expected None, because this policy has none"):
            act.step(obs, torch.zeros(2, 4, 5))


class TestExport:
    def test_flies_and_scores_like_the_run(self, pair: Run, loaded: policy.TrainedPolicy, tmp_path: Path) -> None:
        assert pair.folder is not None
        out = api.export(pair.folder, tmp_path / "deep" / "copy")
        copy = policy.load(out)
        assert scores.evaluate(copy, EPISODES, 0, mean_action=False) == scores.evaluate(
            loaded, EPISODES, 0, mean_action=False
        )
        assert torch.equal(positions(copy), positions(loaded))
        files = sorted(path.name for path in out.rglob("*") if path.is_file())
        assert files == ["best.npz", "config.json", "manifest.json", "run.json"]
        again = policy.load(api.export(out, tmp_path / "again"))
        assert torch.equal(again.parameters, loaded.parameters)

    def test_refuses_a_folder_in_use_and_a_source_that_is_no_run(self, pair: Run, tmp_path: Path) -> None:
        assert pair.folder is not None
        with pytest.raises(ConfigError, match="not empty"):
            api.export(pair.folder, pair.folder)
        with pytest.raises(FileError):
            api.export(tmp_path, tmp_path / "copy")
        assert os.listdir(tmp_path) == []


def test_the_loops_policy_is_kept_like_any_other(tmp_path: Path) -> None:
    run = train_tiny(tmp_path / "loop", update="loop")
    figures = scores.evaluate(policy.load(tmp_path / "loop"), EPISODES, 0, mean_action=False)
    assert figures == scores.evaluate(run.trained(), EPISODES, 0, mean_action=False)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    Run(tiny(), tmp_path / "new")
    with pytest.raises(FileError, match="holds no intact checkpoint"):
        policy.load(tmp_path / "new")


# ---- scores ----
