"""Policies to export, their inputs, and what the policy itself returns for them."""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from tests.support.fixtures_config import SMALL_FLIGHTS, SMALL_MISSION, TINY, sizes, train_run
from tests.support.uneven import SHORT, registered_uneven
from uavlab.core.protocols import step_policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import MapObs, leaves
from uavlab.experiment.config import Config, configure
from uavlab.experiment.policy import TrainedPolicy

TEAM = {**TINY, "hidden": 16, "followers": 2}
CONFIGS: dict[str, tuple[str, dict[str, object]]] = {
    "shared": ("leader_follower", TEAM),
    "not_shared": ("leader_follower", {**TEAM, "share": False}),
    "groups": ("leader_follower", {**TEAM, "runs": 2, "eval_followers": 4}),  # more followers than in training
    "moves": ("mapping", {**SMALL_MISSION, "updates": 1, "evaluate_episodes": 2, "device": "cpu"}),
    "memory": ("spread", {**sizes("spread", "mappo"), "learner": "mappo", "memory": 6, "updates": 2}),
    "uneven": ("uneven", {**SHORT, "hidden": 16}),  # groups whose actions have 2 and 3 dimensions
    "forecaster": ("telemetry", {**SMALL_FLIGHTS, "updates": 2, "batch": 8, "device": "cpu"}),
}


@cache
def trained_policy(name: str) -> TrainedPolicy:
    """Train for a moment, then move all weights of the networks far from their small first values."""
    preset, values = CONFIGS[name]
    with registered_uneven():
        config: Config = configure(preset, values)
        trained = train_run(config).trained()
    layers = config.task.algorithm.portable.layers(config.learner, config.env.spec)
    count = sum(
        torch.Size(shape).numel() for name, layer in layers.items() if "layer" in name for shape in layer.values()
    )
    parameters = trained.parameters.clone()
    change = torch.randn(*parameters.shape[:2], count, generator=torch.Generator().manual_seed(5))
    parameters[..., :count] += 0.2 * change
    return replace(trained, parameters=parameters)


def inputs_of(trained: TrainedPolicy, batch: int) -> dict[str, Tensor]:
    """Return inputs of an exported policy: observations of new worlds, or windows of random numbers."""
    env, dice = trained.config.evaluation, torch.Generator().manual_seed(batch)
    if isinstance(env.spec, tuple):
        (name, signal), *_ = trained.config.task.algorithm.portable.inputs(env.spec).items()
        scale = trained.batched_policy(env, 0).inputs  # type: ignore[attr-defined]
        return {name: scale.center[0] + scale.spread[0] * torch.randn(batch, *signal.shape, generator=dice)}
    rng = Streams([batch])
    obs = env.observe(env.initial(rng.uniform("start", batch, env.spec.initial_noise)[0]))
    noise = acting_noise(rng, "act", batch, env.spec)[0]
    if isinstance(obs, Tensor):
        units = trained.config.task.algorithm.portable.memory(trained.config.learner)
        memory = {"memory": torch.rand(batch, env.spec.agents, units, generator=dice) - 0.5} if units else {}
        return {"observations": obs, "noise": noise, **memory}
    legal = obs.legal & (torch.rand(obs.legal.shape, generator=dice) < 0.8)
    legal[..., 0] |= ~legal.any(-1)
    maps = obs.maps + torch.randn(obs.maps.shape, generator=dice)
    return {**dict(leaves(replace(obs, maps=maps, legal=legal))), "noise": noise}


def observations(inputs: dict[str, Tensor]) -> Tensor | MapObs:
    """Return the observations among the inputs of one run, with the leading axis of runs."""
    parts = {name: each[None] for name, each in inputs.items() if name not in ("noise", "memory")}
    return MapObs(**parts) if "maps" in parts else parts["observations"]


def own_outputs(trained: TrainedPolicy, inputs: dict[str, Tensor], seed_index: int = 0) -> list[Tensor]:
    """Return what the policy of one seed itself computes."""
    policy = trained.batched_policy(trained.config.evaluation, seed_index)
    if "window" in inputs:
        forecast, count = policy, inputs["window"].shape[0]
        mean = forecast(inputs["window"][None])[0]  # type: ignore[call-arg]
        sd = ((0.5 * forecast.log_variance).exp() * forecast.spread)[0]  # type: ignore[attr-defined]
        ahead = sd[-1].repeat(mean.shape[1] - len(sd) + 1)
        return [mean, torch.cat([sd[:-1], ahead]).repeat(count, 1)]
    obs, before = observations(inputs), inputs["memory"][None] if "memory" in inputs else None
    (mean, after), (sampled, _) = (step_policy(policy, obs, each, before) for each in (None, inputs["noise"][None]))
    return [each[0] for each in (mean, sampled, after) if each is not None]


def error(own: Tensor, other: Tensor) -> float:
    """Return the largest difference as a share of the largest output."""
    return float((own.double() - other.double()).abs().max() / own.double().abs().max())
