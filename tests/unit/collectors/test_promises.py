"""What registrations promise before anything is built is there afterwards; a survey, computed again from its draws."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import sighted
from tests.support.fixtures_config import tiny
from tests.support.lockstep import ThreadRank, together
from uavlab.collectors import world_source
from uavlab.collectors.world_source import SURVEY_STEPS, SURVEY_WORLDS, survey, world_bytes
from uavlab.core.errors import ConfigError
from uavlab.core.registry import COLLECTORS
from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale, leaves
from uavlab.envs.leader_follower.env import LeaderFollower, State
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.learners.masac.masac import MASAC
from uavlab.learners.ppo.networks import TeamMemoryPolicy
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import TOGGLES

ENV = LeaderFollower(sight=1, horizon=12)


def test_the_bytes_of_a_world() -> None:
    config = tiny(worlds=3)
    _, _, _, source = build.assemble(config)
    assert 3 * world_bytes(config.env) == sum(leaf.nbytes for _, leaf in leaves(source.worlds.state))


def test_the_pace_counts_agent_steps_of_an_update() -> None:
    config = tiny(worlds=4, world_steps=5, runs=2, followers=2)
    assert config.task.collector.data_per_update(config) == (4 * 5 * 2 * 3, "agent-steps")
    missions = configure("mapping_quick", {"worlds": 2})
    moves = 2 * missions.env.spec.horizon * missions.env.spec.agents
    assert missions.task.collector.data_per_update(missions) == (moves, "agent-steps")


@pytest.mark.parametrize(
    ("preset", "own", "steps", "agents"),
    [
        ("spread", {"learner": "masac", "world_steps": 5, "learning_starts": 20}, 10 * 5 * 4 + 20, 3),
        ("spread", {"learner": "mappo", "rollout_steps": 5}, 10 * 5 * 4, 3),
        ("mapping", {"learner": "coma", "measurements": 6}, 10 * 5 * 4, 4),  # 5 moves between 6 measurements
    ],
)
def test_a_plan_is_arithmetic(preset: str, own: dict[str, Any], steps: int, agents: int) -> None:
    config = configure(preset, own, {"worlds": 4, "updates": 10})
    planned = config.task.collector.plan(config)
    assert (planned["world_steps_per_run"], planned["agent_steps_per_run"]) == (steps, steps * agents)


def test_few_worlds_stand_for_many() -> None:
    many = configure("mapping", {"worlds": 16, "runs": 2})
    trial = many.task.collector.trial(many)
    assert (trial.config.source.worlds, trial.times, trial.size) == (2, 8.0, "2 of 16 worlds")
    few = configure("mapping", {"worlds": 2})
    assert few.task.collector.trial(few).times == 1.0


def test_random_steps_before_the_first_update_are_cut() -> None:
    long = configure("leader_follower", {"learning_starts": 50_000, "worlds": 64})
    trial = long.task.collector.trial(long)
    assert (trial.config.source.learning_starts, trial.apart) == (6_400, "50,000 random steps")
    usual = configure("leader_follower")
    assert usual.task.collector.trial(usual).config == usual


@pytest.mark.parametrize("name", ["off_policy", "on_policy", "windows"])
def test_each_lacks_parts_that_some_toggle_names(name: str) -> None:
    assert set(COLLECTORS[name].lacks) <= {toggle.part for toggle in TOGGLES.values()} - {""}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_survey_measures_what_random_flights_see() -> None:
    seeds = (3, 8)
    inputs = survey(ENV, Streams(seeds, dtype=torch.float64))
    assert inputs.center.shape == inputs.spread.shape == (2, 2, 9)
    # The same draws by hand: starts, then action by action (this environment takes no step noise).
    rng, runs = Streams(seeds, dtype=torch.float64), len(seeds)
    noise = rng.uniform("survey", SURVEY_WORLDS, ENV.spec.initial_noise).flatten(0, 1)
    state, seen = ENV.initial(noise), []
    for _ in range(SURVEY_STEPS):
        action = (2 * rng.uniform("survey", SURVEY_WORLDS, 2, 2) - 1).flatten(0, 1)
        state = ENV.transition(state, action, noise[:, :0])
        seen.append(ENV.observe(state).view(runs, SURVEY_WORLDS, 2, 9))
    table = torch.cat(seen, 1)
    close(inputs.center, table.mean(1))
    spread = (table - table.mean(1, keepdim=True)).square().sum(1) / (table.shape[1] - 1)
    close(inputs.spread, spread.sqrt())
    alone = survey(ENV, Streams((8,), dtype=torch.float64))
    close(inputs.spread[1:], alone.spread)


def test_survey_gives_constant_features_scale_one() -> None:
    class Blind(LeaderFollower):
        def observe(self, state: State) -> Tensor:
            return torch.full_like(super().observe(state), math.pi)

    inputs = survey(Blind(), Streams((3,), dtype=torch.float64))
    close(inputs.center, torch.full((1, 2, 7), math.pi, dtype=torch.float64))
    assert inputs.spread.unique().tolist() == [1]


@pytest.mark.parametrize("features", [0, 1, 3])
def test_what_is_seen_beside_maps_is_surveyed(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sighted, "FEATURES", features)
    config = SimpleNamespace(env=sighted.Sighted(features=features > 0))
    scale = COLLECTORS["fixed_length"].measure_inputs(config, Streams((3, 8)), Runtime())
    assert (0 if scale is None else scale.center.shape[-1]) == features


def test_a_policy_with_memory_does_not_fill_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MASAC, "policy", lambda learner, spec, explore: TeamMemoryPolicy(at_rest, Tensor(), 2, 1))
    with pytest.raises(ConfigError, match="a policy with memory, which replay does not hold; collect by fixed_length"):
        build.assemble(tiny())


def at_rest(obs: Tensor, noise: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
    return obs[..., :2] * 0, memory


class Sample(Streams):
    """Streams whose survey is a half of the rows that a process alone draws."""

    def uniform(self, name: str, *shape: int) -> Tensor:
        whole = super().uniform(name, len(self.halves) * shape[0], *shape[1:])
        return whole.chunk(len(self.halves), 1)[self.own]

    halves, own = (0, 1), 0


def test_ranks_survey_all_their_worlds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(rank: ThreadRank) -> Scale:
        rng = Sample((3, 8), dtype=torch.float64)
        rng.own = rank.rank
        return survey(ENV, rng, rank)

    monkeypatch.setattr(world_source, "random_actions", lambda spec, rng, name, obs: still(spec, obs))
    halves, mutant = together(half), together(half, deaf=frozenset({"survey"}))
    monkeypatch.setattr(world_source, "SURVEY_WORLDS", 2 * SURVEY_WORLDS)
    whole = survey(ENV, Streams((3, 8), dtype=torch.float64))
    for scale in halves:
        close(scale.center, whole.center)
        close(scale.spread, whole.spread)
    assert not torch.allclose(mutant[0].center, whole.center)


def still(spec: EnvSpec, obs: Tensor) -> Tensor:
    return torch.zeros(len(obs), spec.agents, spec.action, dtype=obs.dtype)
