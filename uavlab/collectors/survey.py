"""The scale of observations under random actions, for the first parameters of networks."""

import torch

from uavlab.core.protocols import Env
from uavlab.core.rng import Streams
from uavlab.core.types import Scale
from uavlab.runtime.finite_check import require_finite

SURVEY_WORLDS, SURVEY_STEPS = 64, 64  # per run


def survey(env: Env, rng: Streams) -> Scale:
    """Measure mean and standard deviation of observations under random actions; the scale of a constant feature is 1.

    Raises:
        DivergedError: An observation is not finite.
    """
    spec, runs = env.spec, len(rng.seeds)
    state = env.initial(rng.uniform("survey", SURVEY_WORLDS, spec.initial_noise).flatten(0, 1))
    observations = []
    for _ in range(SURVEY_STEPS):
        action = 2 * rng.uniform("survey", SURVEY_WORLDS, spec.agents, spec.action) - 1
        noise = rng.uniform("survey", SURVEY_WORLDS, spec.step_noise)
        state = env.transition(state, action.flatten(0, 1), noise.flatten(0, 1))
        observations.append(env.observe(state).unflatten(0, (runs, SURVEY_WORLDS)))
    obs = torch.cat(observations, 1)
    require_finite({"obs": (obs, "R N A O")})  # the first layers depend on them
    spread = obs.std(1)
    return Scale(center=obs.mean(1), spread=torch.where(spread > 1e-3, spread, 1.0))
