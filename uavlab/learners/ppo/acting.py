"""How a team acts by the networks of PPO: its networks, the distributions of actions, and policies."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.groups import padded_actions
from uavlab.core.protocols import Policy
from uavlab.core.types import EnvSpec, legal_of
from uavlab.learners.ppo.config import MAPPOConfig
from uavlab.learners.ppo.networks import EntityTeam, MapTeam, VectorTeam
from uavlab.learners.ppo.recurrent import RecurrentTeam, TeamMemoryPolicy
from uavlab.nets.assignment import assign_networks, require_same_task
from uavlab.ops.action_sampling import (
    HALF_LOG_2PI,
    masked_policy,
    open_moves_of,
    sample_moves,
    squashed_gaussian,
    squashed_log_prob,
    without_padding,
)

Team = VectorTeam | MapTeam | RecurrentTeam
MEAN_BOUND = 3.0  # of a Gaussian before squashing: beyond, actions round to the border and gradients explode


def make_team(config: MAPPOConfig, trained: EnvSpec, spec: EnvSpec) -> Team:
    """Return the networks of a team with ``spec``, which may differ in size from the one trained."""
    central = config.critic != "own"
    if trained.side:
        if config.memory:
            raise ConfigError(f"memory: got {config.memory}; a team that observes maps has no memory; set memory=0.")
        if config.critic == "shared":
            raise ConfigError(
                "critic: got shared; on maps all agents have one critic anyway, which sees the maps of each agent and "
                "so has a value for each; expected critic=central or critic=own where agents observe maps."
            )
        require_same_task(trained, spec)
        return MapTeam(spec, config.width, config.kernels, config.hidden, central)
    if spec.entities and config.layers:
        if config.memory:
            raise ConfigError(
                f"memory: got {config.memory}; attention has none: set memory=0, or layers=0 for a recurrent network."
            )
        return entity_team(config, trained, spec, central)
    outputs, networks = spec.choices or 2 * spec.action, assign_networks(trained, spec, config.share)
    critics = tuple(range(spec.agents)) if central else networks
    if config.critic == "shared":
        critics = assign_networks(trained, spec, share=True)
    if config.memory:
        return RecurrentTeam(spec.obs, outputs, config.hidden, networks, critics, central, config.memory)
    return VectorTeam(spec.obs, outputs, config.hidden, networks, critics, central)


def entity_team(config: MAPPOConfig, trained: EnvSpec, spec: EnvSpec, central: bool) -> EntityTeam:
    """Return the networks of one agent that observes entities, of which there may be other numbers than in training."""
    before, now = trained.entities, spec.entities
    if before is None or now is None or (before.features, before.moves) != (now.features, now.moves) or spec.agents > 1:
        raise ConfigError(
            f"policy: trained on {before}, to be used with {now} and {spec.agents} agents; expected one agent, and "
            "entities of the same features and moves."
        )
    if config.hidden % config.heads:
        raise ConfigError(f"hidden: got {config.hidden}; expected a multiple of heads, {config.heads}.")
    one = (0,)
    size = config.hidden, one, one, central, now, config.heads, config.layers
    return EntityTeam(spec.obs, spec.choices, *size, config.positions)


def evaluate_actions(
    config: MAPPOConfig,
    out: Float[Tensor, "R N A E"],
    obs: Any,
    action: Tensor,
    padding: Bool[Tensor, "A D"] | None = None,
) -> tuple[Float[Tensor, "R N A"], Float[Tensor, "R N A"]]:
    """Return log densities of actions and entropies of the policy; of a squashed Gaussian those before squashing.

    Dimensions that are ``padding`` have neither.
    """
    if action.is_floating_point():
        mean, log_std = split_gaussian(config, out)
        log_prob = squashed_log_prob(mean, log_std, action, padding)
        return log_prob, without_padding(log_std + HALF_LOG_2PI + 0.5, padding).sum(-1)
    chance = masked_policy(out, open_moves_of(obs, action), 0.0)
    log_prob = chance.clamp_min(1e-12).log()
    return log_prob.gather(-1, action[..., None])[..., 0], -(chance * log_prob).sum(-1)


def split_gaussian(config: MAPPOConfig, out: Float[Tensor, "*lead E"]) -> tuple[Tensor, Tensor]:
    """Split an actor's output into means and log standard deviations, both bounded smoothly."""
    mean, log_std = out.chunk(2, -1)
    middle, half = (config.log_std_low + config.log_std_high) / 2, (config.log_std_high - config.log_std_low) / 2
    return MEAN_BOUND * torch.tanh(mean / MEAN_BOUND), middle + half * torch.tanh((log_std - middle) / half)


def choose_actions(
    team: VectorTeam | MapTeam,
    config: MAPPOConfig,
    theta: Tensor,
    obs: Any,
    noise: Tensor | None,
    one_by_one: bool,
    padding: Bool[Tensor, "A D"] | None = None,
) -> Tensor:
    """Sample the actions of all agents; without ``noise`` return means, or the most probable moves."""
    return sample_actions(config, (team.act_in_turn if one_by_one else team.act)(theta, obs), obs, noise, padding)


def act_with_memory(
    team: RecurrentTeam,
    config: MAPPOConfig,
    theta: Tensor,
    obs: Any,
    noise: Tensor | None,
    memory: Float[Tensor, "R N A M"],
    one_by_one: bool,
    padding: Bool[Tensor, "A D"] | None = None,
) -> tuple[Tensor, Float[Tensor, "R N A M"]]:
    """Sample the actions of all agents as ``choose_actions`` does; return their memory, too."""
    out, memory = team.act_once(theta, obs, memory, one_by_one)
    return sample_actions(config, out, obs, noise, padding), memory


def sample_actions(
    config: MAPPOConfig,
    out: Float[Tensor, "R N A E"],
    obs: Any,
    noise: Tensor | None,
    padding: Bool[Tensor, "A D"] | None = None,
) -> Tensor:
    """Sample actions from the outputs of actors; without ``noise`` return means, or the most probable moves."""
    if legal_of(obs) is not None:
        return sample_moves(out, obs, noise)
    mean, log_std = split_gaussian(config, out)
    if noise is None:
        return without_padding(torch.tanh(mean), padding)
    return squashed_gaussian(mean, log_std, noise, padding)[0]


def load_policy(config: MAPPOConfig, trained: EnvSpec, spec: EnvSpec, parameters: Float[Tensor, "R K P"]) -> Policy:
    """Return the policy of saved parameters, for a team that may differ in size from the one trained."""
    team, theta = make_team(config, trained, spec), parameters.flatten(0, 1)
    padding = padded_actions(spec, parameters.device)
    return make_policy(act_with_memory if config.memory else choose_actions, team, config, theta, padding)


def make_policy(
    function: Callable[..., Any],
    team: Team,
    config: MAPPOConfig,
    theta: Tensor,
    padding: Bool[Tensor, "A D"] | None,
    one_by_one: bool = False,
) -> Policy:
    """Return the policy of a team that acts by ``function``: ``choose_actions``, or ``act_with_memory``."""

    @torch.no_grad()
    def act(obs: Any, noise: Tensor | None, *memory: Tensor) -> Any:
        return function(team, config, theta, obs, noise, *memory, one_by_one, padding)

    if isinstance(team, RecurrentTeam):
        return TeamMemoryPolicy(act, theta, len(team.networks), team.memory)
    return act
