"""Proximal policy optimization of teams: MAPPO with critics that observe the team, IPPO with critics of one agent.

Equations, in order of use (agent i, discount gamma, critic V, clipping range c, entropy weight beta):

* advantage   A_t = delta_t + gamma lambda A_t+1 with delta_t = r_t + gamma V(s_t+1) - V(s_t)      ``PPO.targets``
* ratio       rho = pi_i(a_i | o_i) / pi_old_i(a_i | o_i)
* actor       minimize the mean of -min(rho A, clip(rho, 1 - c, 1 + c) A) - beta H(pi_i)           ``PPO.actor_loss``
* critic      minimize the mean of (V(s) - A_t - V_old(s_t))^2 in units of the spread of returns   ``PPO.critic_loss``

Means are over the live rows of each network: rows after the end of an agent's task do not count. Advantages are
normalised per actor. An actor's steps in an update end once its policy is farther than ``target_kl`` from the old one.

Source:
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7; central critics and the normalisation of
    returns as in Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games".
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.core.protocols import Learner, Policy
from uavlab.core.registry import Resume
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Steps, Update, tensors, tree_map
from uavlab.learners.coma.algorithm import require_same_task
from uavlab.learners.masac.networks import assign_networks
from uavlab.learners.ppo.moments import Moments, normalise, row_weights, sum_by_network, update_moments
from uavlab.learners.ppo.networks import MapTeam, Team, VectorTeam
from uavlab.ops.action_sampling import (
    HALF_LOG_2PI,
    masked_policy,
    open_moves_of,
    sample_moves,
    squashed_gaussian,
    squashed_log_prob,
)
from uavlab.ops.minibatches import minibatches
from uavlab.ops.returns import generalized_advantages
from uavlab.ops.schedules import linear
from uavlab.runtime.grad_step import MOMENTS, GradientStep, Rows
from uavlab.runtime.runtime import Runtime

MEAN_BOUND = 3.0  # of a Gaussian before squashing: beyond, actions round to the border and gradients explode


@dataclass(frozen=True)
class MAPPOConfig:
    """Hyper-parameters.

    Attributes:
        critic: What a critic observes: ``central``, all agents; or ``own``, one agent alone, which is IPPO.
        hidden: Width of the hidden layers.
        width: Channels of each convolution, on maps.
        kernels: Side of each convolution's kernel (cells), on maps.
        share: Whether interchangeable agents share one actor; otherwise each agent has its own. On maps all share.
        gamma: Discount per step.
        lam: Lambda of the advantages: 0 for one-step errors, 1 for Monte Carlo returns.
        lr: Adam's learning rate of the actors.
        critic_lr: Adam's learning rate of the critics.
        lr_to: Share of both rates that is left after ``lr_updates``; None for constant rates.
        lr_updates: Updates over which the rates change linearly.
        clip: Largest gradient norm of an actor, and of a critic.
        clip_ratio: Range around 1 within which the ratio of probabilities is rewarded.
        target_kl: Distance from the old policy (nats) at which the actor's steps of an update end; 0 for no limit.
        epochs: Passes of an update over its batch.
        minibatches: Minibatches of each pass, with one gradient step each.
        entropy: Initial weight of the policy's entropy in the actor's loss.
        entropy_to: Final weight of the entropy.
        entropy_updates: Updates over which the weight changes linearly.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing, on vectors.
        log_std_high: Largest log standard deviation; above about 0 squashed actions crowd at the ends of their range.
    """

    critic: Literal["central", "own"] = "central"
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    width: Annotated[int, Ge(1), Le(4096)] = 32
    kernels: tuple[Annotated[int, Ge(1), Le(64)], ...] = (5, 4, 4)
    share: bool = True
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.99
    lam: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 3e-4
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    lr_to: Annotated[Annotated[float, Ge(0), Le(1)] | None, Resume.YES] = None
    lr_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 1000
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 0.5
    clip_ratio: Annotated[float, Gt(0), Le(1), Resume.YES] = 0.2
    target_kl: Annotated[float, Ge(0), Le(100), Resume.YES] = 0.05
    epochs: Annotated[int, Ge(1), Le(1000)] = 5
    minibatches: Annotated[int, Ge(1), Le(1000)] = 4
    entropy: Annotated[float, Ge(0), Le(10), Resume.YES] = 0.01
    entropy_to: Annotated[float, Ge(0), Le(10), Resume.YES] = 0.0
    entropy_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 1000
    log_std_low: Annotated[float, Ge(-20), Le(-0.1)] = -2.5
    log_std_high: Annotated[float, Ge(0), Le(4)] = 0.0

    labels: ClassVar[dict[str, str]] = {
        "lr": "learning rate",
        "critic_lr": "learning rate of critics",
        "gamma": "discount",
        "lam": "λ of advantages",
    }


@dataclass(frozen=True)
class IPPOConfig(MAPPOConfig):
    """The hyper-parameters of ``MAPPOConfig``, with critics that observe one agent."""

    critic: Literal["own"] = "own"


@tensors
class Samples:
    """Rows of a batch, each a step of one team; weights (``row_weights``) are 0 after an agent's task."""

    obs: Any  # Float[Tensor, "R N A O"] | MapObs
    action: Float[Tensor, "R N A D"] | Int[Tensor, "R N A"]
    log_prob: Float[Tensor, "R N A"]  # of the old policy
    advantage: Float[Tensor, "R N A"]
    target: Float[Tensor, "R N A"]
    weight: Float[Tensor, "R N A"]  # in the loss of actors
    critic_weight: Float[Tensor, "R N A"]


class PPO(Learner):
    """A learner over R runs; its state is two matrices with a row for each network, two Adams, moments and a count."""

    def __init__(self, config: MAPPOConfig, spec: EnvSpec, inputs: Any, rng: Streams, rt: Runtime) -> None:
        """Draw the initial parameters; ``inputs`` describes observations that are vectors."""
        self.config, self.spec, self.runs, self.acting = config, spec, len(rng.seeds), rt.toggles.acting
        self.team = make_team(config, spec, spec)
        actor, critic = (rows.flatten(0, 1) for rows in self.team.initial(inputs, rng))
        self.actor, self.critic = rt.grad(actor, config.lr, config.clip), rt.grad(critic, config.critic_lr, config.clip)
        if config.lr_to is not None:
            self.actor.rate = self.critic.rate = actor.new_ones(())
        self.mean, self.square, self.weight = actor.new_zeros(3, self.runs, spec.agents, dtype=torch.float64).unbind()
        self.count = torch.zeros((), dtype=torch.int64, device=rng.device)  # updates made
        self._act = rt.kernel(choose_actions, "act")
        self._targets = rt.kernel(self.targets, "targets")
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss", part=True)
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss", part=True)
        self._step = rt.update(self._take_steps, "ppo")

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Return the policy in training, for a team of any size; it is stochastic with or without ``explore``.

        Raises:
            ConfigError: The team has agents for which no network was trained, or other observations or actions.
        """
        team = make_team(self.config, self.spec, spec)

        @torch.no_grad()
        def act(obs: Any, noise: Tensor | None) -> Tensor:
            return self._act(team, self.config, self.actor.parameter, obs, noise, self.acting == "loop")

        return act

    def update_noise(self, rng: Streams, rows: int) -> Int[Tensor, "R epochs rows"]:
        """Draw the order of rows in each pass."""
        return rng.uniform("shuffle", self.config.epochs, rows).argsort(-1)

    def update(self, batch: Batch, noise: Int[Tensor, "R epochs rows"]) -> Update:
        """Train on T steps of all worlds, ``epochs`` times each."""
        config = self.config
        with torch.no_grad():
            before = Moments(mean=self.mean, square=self.square, weight=self.weight)
            samples, moments = self._targets(self.actor.parameter, self.critic.parameter, before, batch.data)
            for name in ("mean", "square", "weight"):
                getattr(self, name).copy_(getattr(moments, name))
            if self.actor.rate is not None and config.lr_to is not None:
                self.actor.rate.copy_(linear(self.count, config.lr_to, config.lr_updates))  # shared with the critics
            progress = (self.count / config.entropy_updates).clamp_max(1).to(samples.target.dtype)
            entropy = config.entropy + (config.entropy_to - config.entropy) * progress
        going = torch.ones(self.runs, len(set(self.team.networks)), dtype=torch.bool, device=noise.device)
        steps = []
        for part in minibatches(samples, noise, config.minibatches):
            old = [] if config.target_kl == 0 else [tensor.clone() for tensor in _state(self.actor)]
            step = {name: value.clone() for name, value in self._step(part, entropy).items()}  # graphs reuse results
            if config.target_kl > 0:
                going = going & (step["kl"] <= config.target_kl)
            for former, now in zip(old, _state(self.actor), strict=False):  # the count of steps, which all share, stays
                now.copy_(torch.where(going.flatten()[:, None], now, former))
            steps.append({**step, "step_share": going.to(step["kl"].dtype)})
        self.count.add_(1)
        metrics = {"return": moments.scale(samples.target.dtype)[0].mean((1, 2))}
        metrics |= {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}
        return Update({**metrics, "entropy_weight": entropy.expand(self.runs)})

    def targets(
        self, actor: Float[Tensor, "G P"], critic: Float[Tensor, "G Q"], moments: Moments, data: Steps
    ) -> tuple[Samples, Moments]:
        """Compute advantages, normalised returns and old log densities of all rows, and the new moments of returns."""
        config, team = self.config, self.team
        lead = data.reward.shape[:3]
        obs, next_obs = (tree_map(lambda leaf: leaf.flatten(1, 2), each) for each in (data.obs, data.next_obs))
        action, live = data.action.flatten(1, 2), data.live.flatten(1, 2).to(data.reward.dtype)
        center, spread = moments.scale(live.dtype)
        value, next_value = (
            (center + spread * team.value(critic, each)).view(*lead, -1).transpose(0, 1) for each in (obs, next_obs)
        )
        reward, terminated, ended = (each.transpose(0, 1) for each in (data.reward, data.terminated, data.ended))
        error = generalized_advantages(reward, value, next_value, terminated, ended, config.gamma, config.lam)
        advantage, returns = (each.transpose(0, 1).flatten(1, 2) for each in (error, error + value))
        new = update_moments(moments, returns, live, team.critics)
        center, spread = new.scale(live.dtype)
        return Samples(
            obs=obs,
            action=action,
            log_prob=evaluate_actions(config, team.act(actor, obs), obs, action)[0],
            advantage=normalise(advantage, live, team.networks),
            target=(returns - center) / spread,
            weight=row_weights(live, team.networks),
            critic_weight=row_weights(live, team.critics),
        ), new

    def critic_loss(self, critic: Float[Tensor, "G Q"], rows: Samples) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean squared errors of the critics over runs."""
        error = self.team.value(critic, rows.obs) - rows.target
        mean = (rows.critic_weight * error.square()).mean(1).sum(1)
        return mean.sum(), {"critic_loss": mean.detach() / len(set(self.team.critics))}

    def actor_loss(
        self, actor: Float[Tensor, "G P"], rows: Samples, beta: Float[Tensor, ""]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the means of the clipped objective and of the entropy over actors and runs.

        ``kl`` is the mean of rho - 1 - log rho for each actor, an estimate of its distance from the old policy that is
        never negative.
        """
        log_prob, entropy = evaluate_actions(self.config, self.team.act(actor, rows.obs), rows.obs, rows.action)
        change = (log_prob - rows.log_prob).masked_fill(rows.weight == 0, 0.0)  # no overflow where no row is live
        ratio, clip = change.exp(), self.config.clip_ratio
        clipped = ratio.clamp(1 - clip, 1 + clip)
        objective = torch.minimum(ratio * rows.advantage, clipped * rows.advantage) + beta * entropy
        mean = -(rows.weight * objective).mean(1).sum(1)
        figures = {"clipped": (ratio != clipped).to(ratio.dtype), "entropy": entropy}
        count = len(set(self.team.networks))
        metrics = {name: (rows.weight * x.detach()).mean(1).sum(1) / count for name, x in figures.items()}
        distance = sum_by_network((rows.weight * (ratio - 1 - change).detach()).mean(1), self.team.networks)
        first = [self.team.networks.index(network) for network in range(count)]
        metrics["kl"] = torch.stack([distance[:, agent] for agent in first], 1)
        return mean.sum(), {"actor_loss": mean.detach() / count, **metrics}

    def _take_steps(self, rows: Samples, beta: Float[Tensor, ""]) -> dict[str, Float[Tensor, " R"]]:
        """Take one step of the critics and one of the actors."""
        critics, critic_norm = self.critic(self._critic_loss, self.critic.parameter, Rows(rows, 1))
        actors, actor_norm = self.actor(self._actor_loss, self.actor.parameter, Rows(rows, 1), beta)
        norms = {"critic_norm": critic_norm, "actor_norm": actor_norm}
        return {**critics, **actors, **{name: norm.view(self.runs, -1).amax(1) for name, norm in norms.items()}}


def _state(step: GradientStep) -> list[Tensor]:
    """Return the tensors of a gradient step that have a row for each network."""
    state = step.state_dict()
    return [state[name] for name in ("parameter", *MOMENTS[1:])]


def make_team(config: MAPPOConfig, trained: EnvSpec, spec: EnvSpec) -> Team:
    """Return the networks of a team with ``spec``, which may differ in size from the one trained.

    Raises:
        ConfigError: The team has agents for which no network was trained, or other observations or actions.
    """
    central = config.critic == "central"
    if trained.side:
        require_same_task(trained, spec)
        return MapTeam(spec, config.width, config.kernels, config.hidden, central)
    outputs = spec.choices or 2 * spec.action
    return VectorTeam(spec.obs, outputs, config.hidden, assign_networks(trained, spec, config.share), central)


def evaluate_actions(
    config: MAPPOConfig, out: Float[Tensor, "R N A E"], obs: Any, action: Tensor
) -> tuple[Float[Tensor, "R N A"], Float[Tensor, "R N A"]]:
    """Return log densities of actions and entropies of the policy; of a squashed Gaussian those before squashing."""
    if action.is_floating_point():
        mean, log_std = split_gaussian(config, out)
        return squashed_log_prob(mean, log_std, action), (log_std + HALF_LOG_2PI + 0.5).sum(-1)
    chance = masked_policy(out, open_moves_of(obs, action), 0.0)
    log_prob = chance.clamp_min(1e-12).log()
    return log_prob.gather(-1, action[..., None])[..., 0], -(chance * log_prob).sum(-1)


def split_gaussian(config: MAPPOConfig, out: Float[Tensor, "*lead E"]) -> tuple[Tensor, Tensor]:
    """Split an actor's output into means and log standard deviations, both bounded smoothly."""
    mean, log_std = out.chunk(2, -1)
    middle, half = (config.log_std_low + config.log_std_high) / 2, (config.log_std_high - config.log_std_low) / 2
    return MEAN_BOUND * torch.tanh(mean / MEAN_BOUND), middle + half * torch.tanh((log_std - middle) / half)


def choose_actions(
    team: Team, config: MAPPOConfig, theta: Tensor, obs: Any, noise: Tensor | None, one_by_one: bool = False
) -> Tensor:
    """Sample the actions of all agents; without ``noise`` return means, or the most probable moves."""
    out = (team.act_in_turn if one_by_one else team.act)(theta, obs)
    if not isinstance(obs, Tensor):
        return sample_moves(out, obs, noise)
    mean, log_std = split_gaussian(config, out)
    return torch.tanh(mean) if noise is None else squashed_gaussian(mean, log_std, noise)[0]


def load_policy(config: MAPPOConfig, trained: EnvSpec, spec: EnvSpec, parameters: Float[Tensor, "R K P"]) -> Policy:
    """Return the policy of saved parameters, for a team that may differ in size from the one trained.

    Raises:
        ConfigError: The team has agents for which no network was trained, or other observations or actions.
    """
    team = make_team(config, trained, spec)

    @torch.no_grad()
    def act(obs: Any, noise: Tensor | None) -> Tensor:
        return choose_actions(team, config, parameters.flatten(0, 1), obs, noise)

    return act
