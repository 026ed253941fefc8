"""Mean and deviation of observations, computed again from the same draws."""

import math

import torch
from torch import Tensor

from uavlab.collectors.survey import SURVEY_STEPS, SURVEY_WORLDS, survey
from uavlab.core.rng import Streams
from uavlab.envs.leader_follower.env import LeaderFollower, State

ENV = LeaderFollower(sight=1, horizon=12)


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
