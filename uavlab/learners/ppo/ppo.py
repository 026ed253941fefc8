"""Proximal policy optimization of teams: MAPPO with critics that observe the team, IPPO with critics of one agent.

Equations, in order of use (agent i, discount gamma, critic V, clipping range c, entropy weight beta):

* advantage   A_t = delta_t + gamma lambda A_t+1 with delta_t = r_t + gamma V(s_t+1) - V(s_t)      ``PPO.targets``
* ratio       rho = pi_i(a_i | o_i) / pi_old_i(a_i | o_i)
* actor       minimize the mean of -min(rho A, clip(rho, 1 - c, 1 + c) A) - beta H(pi_i)           ``PPO.actor_loss``
* critic      minimize the mean of (V(s) - A_t - V_old(s_t))^2 in units of the spread of returns   ``PPO.critic_loss``

Means are over the live rows of each network: rows after the end of an agent's task do not count. A critic that a group
shares has one value for the team, and the rows of all agents of the group. Advantages are
normalised per actor. An actor's steps in an update end once its policy is farther than ``target_kl`` from the old one.

With ``memory``, V and pi_i also depend on a GRU's memory of the episode so far. Gradients pass through all steps of a
batch and end at its start, where the memory is a number like any other (truncated backpropagation through time), and at
the start of an episode. Minibatches are of whole worlds.

With ``noisy``, pi_i of a batch and of the update on it has the same noise on its weights (``nets.mlp``).

Source:
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7; central critics and the normalisation of
    returns as in Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.portable import Portable
from uavlab.core.protocols import Policy
from uavlab.core.registry import Resume, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Entropy, Range, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import Batch, EnvSpec, Steps, Update, legal_of, own_actions, padded_actions, tensors, tree_map
from uavlab.learners.learner import Learner
from uavlab.learners.ppo.networks import (
    EntityTeam,
    MapTeam,
    Memory,
    RecurrentTeam,
    Sequences,
    TeamMemoryPolicy,
    VectorTeam,
    sequences_of,
)
from uavlab.nets.assignment import assign_networks, require_same_task
from uavlab.nets.attention import LARGE
from uavlab.nets.mlp import add_noise, append_stds, factorised_noise
from uavlab.ops.action_sampling import (
    HALF_LOG_2PI,
    masked_policy,
    open_moves_of,
    sample_moves,
    squashed_gaussian,
    squashed_log_prob,
    without_padding,
)
from uavlab.ops.returns import generalized_advantages
from uavlab.ops.schedules import linear, minibatches
from uavlab.runtime.grad_step import Rows
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class MAPPOConfig:
    """Hyper-parameters.

    Attributes:
        critic: What critics observe, and whose they are: ``central``, all agents, a critic for each agent; ``shared``,
            the same, one critic for all agents of a group, whose value is the mean of theirs and costs one evaluation;
            or ``own``, one agent alone, shared as actors are, which is IPPO. On maps one critic serves all agents
            anyway, by an evaluation for each, and ``shared`` is refused; a ``central`` one sees an agent's maps, the
            team's, and the features of all agents.
        hidden: Width of the hidden layers.
        memory: Units of a GRU after the hidden layers of actors and critics, on vectors; 0 for policies without memory.
        layers: Layers of attention where observations list entities; 0 for dense layers.
        heads: Heads of attention; ``hidden`` is a multiple.
        positions: Whether attention sees how entities lie from each other.
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
        minibatches: Minibatches of each pass, with one gradient step each; ``auto`` for a number by the entities of the
            task.
        entropy: Initial weight of the policy's entropy in the actor's loss.
        entropy_to: Final weight of the entropy.
        entropy_updates: Updates over which the weight changes linearly.
        noisy: Whether an update's rows are collected, and learned from, with noise on the weights of each actor's last
            layer, drawn once for them; its standard deviations are learned. Scored, saved and exported policies are
            without it.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing.
        log_std_high: Largest log standard deviation; above about 0 squashed actions crowd at the ends of their range.
    """

    critic: Literal["central", "shared", "own"] = "central"
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    memory: Annotated[int, Ge(0), Le(4096)] = 0
    layers: Annotated[int, Ge(0), Le(64)] = 2
    heads: Annotated[int, Ge(1), Le(64)] = 4
    positions: bool = True
    width: Annotated[int, Ge(1), Le(4096)] = 32
    kernels: tuple[Annotated[int, Ge(1), Le(64)], ...] = (5, 4, 4)
    share: bool = True
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    lam: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
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
    noisy: bool = False
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
    """Return log densities of actions and entropies of the policy; of a squashed Gaussian those before squashing."""
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
    team: Team,
    config: MAPPOConfig,
    theta: Tensor,
    obs: Any,
    noise: Tensor | None,
    one_by_one: bool,
    padding: Bool[Tensor, "A D"] | None = None,
    memory: Any = None,  # Float[Tensor, "R N A M"] of a team that has one
) -> Any:
    """Sample the actions of all agents as ``sample_actions`` does; of a team with memory return its memory, too."""
    if isinstance(team, RecurrentTeam):
        out, memory = team.act_once(theta, obs, memory, one_by_one)
        return sample_actions(config, out, obs, noise, padding), memory
    out = team.act_in_turn(theta, obs) if one_by_one else team.act(theta, obs)
    return sample_actions(config, out, obs, noise, padding)


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


def make_policy(
    function: Callable[..., Any],
    team: Team,
    config: MAPPOConfig,
    theta: Tensor,
    padding: Bool[Tensor, "A D"] | None,
    one_by_one: bool = False,
) -> Policy:
    """Return the policy of a team that acts by ``function``, such as ``choose_actions``."""

    @torch.no_grad()
    def act(obs: Any, noise: Tensor | None, *memory: Tensor) -> Any:
        return function(team, config, theta, obs, noise, one_by_one, padding, *memory)

    if isinstance(team, RecurrentTeam):
        return TeamMemoryPolicy(act, theta, len(team.networks), team.memory)
    return act


# Moving moments of returns, by which critics learn normalised values. Rows that are not live do not count.
MEMORY = 0.9  # weight of the past in the moving moments of returns, per update
MIN_STD, MIN_RATIO = 1e-6, 1e-4  # smallest standard deviation, and that of returns relative to their mean


@tensors
class Moments:
    """Moving sums of the returns of each agent's critic, in float64: their mean and square, and the total weight.

    Differences of float32 sums would lose a standard deviation that is a thousandth of the mean.
    """

    mean: Float[Tensor, "R A"]
    square: Float[Tensor, "R A"]
    weight: Float[Tensor, "R A"]

    def scale(self, dtype: torch.dtype) -> tuple[Float[Tensor, "R 1 A"], Float[Tensor, "R 1 A"]]:
        """Return mean and standard deviation; before the first return 0 and 1."""
        mean, square = (each / self.weight.clamp_min(MIN_STD) for each in (self.mean, self.square))
        spread = (square - mean.square()).clamp_min(0).sqrt()
        spread = torch.maximum(spread, MIN_RATIO * mean.abs()).clamp_min(MIN_STD)
        known = torch.where(self.weight > 0, spread, torch.ones_like(spread))
        return mean[:, None].to(dtype), known[:, None].to(dtype)


def update_moments(
    moments: Moments,
    returns: Float[Tensor, "R N A"],
    live: Float[Tensor, "R N A"],
    critics: tuple[int, ...],
    ranks: Ranks = ALONE,
) -> Moments:
    """Return the moments after new returns; every live row of the agents with one critic counts once."""
    returns, live = returns.double(), live.double()
    each = {"mean": returns, "square": returns.square(), "weight": torch.ones_like(returns)}
    sums = {name: ranks.sum(sum_by_network((live * x).sum(1), critics)) for name, x in each.items()}
    new = {name: x / sums["weight"].clamp_min(1) for name, x in sums.items()}
    return Moments(**{name: MEMORY * getattr(moments, name) + (1 - MEMORY) * value for name, value in new.items()})


def normalise(
    x: Float[Tensor, "R N A"], live: Float[Tensor, "R N A"], networks: tuple[int, ...], ranks: Ranks = ALONE
) -> Float[Tensor, "R N A"]:
    """Shift and scale numbers to mean 0 and standard deviation 1 over the live rows of each network."""
    count, total = (ranks.sum(sum_by_network(each.sum(1), networks)) for each in (live, live * x))
    apart = x - (total / count.clamp_min(1))[:, None]
    square = ranks.sum(sum_by_network((live * apart.square()).sum(1), networks))
    spread = (square / count.clamp_min(1)).sqrt()
    return apart / spread.clamp_min(MIN_STD)[:, None]


def row_weights(
    live: Float[Tensor, "R N A"], networks: tuple[int, ...], ranks: Ranks = ALONE
) -> Float[Tensor, "R N A"]:
    """Return weights by which a sum over agents of means over rows is, for each network, the mean of its live rows."""
    return live / ranks.mean(sum_by_network(live.mean(1), networks)).clamp_min(MIN_STD)[:, None]


def sum_by_network(x: Float[Tensor, "R A"], networks: tuple[int, ...]) -> Float[Tensor, "R A"]:
    """Return for each agent the sum over the agents of its network."""
    rows = x.unbind(1)
    owners = [[row for row, network in zip(rows, networks, strict=True) if network == own] for own in networks]
    return torch.stack([torch.stack(own).sum(0) for own in owners], 1)


Order = Int[Tensor, "R epochs rows"]


@tensors
class Samples:
    """Rows of a batch: a step of one team, or with memory T steps of a world; weights are 0 after an agent's task."""

    obs: Any  # Float[Tensor, "R N A O"] | ChoiceObs | MapObs | Sequences
    action: Float[Tensor, "R N A D"] | Int[Tensor, "R N A"]
    log_prob: Float[Tensor, "R N A"]  # of the old policy
    advantage: Float[Tensor, "R N A"]
    target: Float[Tensor, "R N A"]
    weight: Float[Tensor, "R N A"]  # in the loss of actors
    critic_weight: Float[Tensor, "R N A"]


def entropy_range(config: MAPPOConfig, spec: EnvSpec) -> Range:
    """Return the range of an agent's entropy, a mean over actors: of moves, or of Gaussians before squashing."""
    if spec.choices:
        return move_range(spec)
    own = fmean(dict(zip(make_team(config, spec, spec).networks, own_actions(spec), strict=True)).values())
    low, high = (own * (end + HALF_LOG_2PI + 0.5) for end in (config.log_std_low, config.log_std_high))
    return Range(low, high)


SYMPTOMS = Symptoms(
    entropy=Entropy("entropy", entropy_range, "entropy_limit"),
    loss="critic_loss",
    returns="return",
    remedies={
        "entropy_high": (
            times("entropy", 0.1, least=1e-4),
            times("entropy_to", 0.1, least=1e-4),
            times("lr", 3, most=1e-2),
        ),
        "entropy_low": (
            lower("lr", 3e-3, 3e-4),
            times("entropy", 10, least=0.01, most=0.1),
            times("entropy_to", 10, least=0.01, most=0.1),
            times("lr", 0.3, least=1e-6),
        ),
        "loss_grows": (lower("gamma", 0.99, 0.99), times("critic_lr", 0.3, least=1e-6)),
        "scores_still": (higher("lr", 1e-4, 3e-4), longer_view(), times("lr", 3, most=1e-2)),
    },
)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks with gradients and two moments."""
    team = make_team(config.learner, config.env.spec, config.env.spec)
    actors, critics = (len(set(each)) for each in (team.networks, team.critics))
    return 16 * config.run.runs * (actors * team.actor_net.count + critics * team.critic_net.count)


class PPO(Learner):
    """A learner over R runs; its state is two matrices with a row for each network, two Adams, moments and a count."""

    local = ("critic_memory",)
    settings: ClassVar[type[MAPPOConfig]] = MAPPOConfig
    collector = "fixed_length"
    inapplicable: ClassVar[dict[str, str]] = {"update": "this learner updates all agents at once; use update=batched"}
    portable = Portable(
        layers=lambda config, spec: make_team(config, spec, spec).actor_net.by_layer,
        memory=lambda config: config.memory,
    )
    symptoms = SYMPTOMS

    @classmethod
    def build(cls, config: Settings, inputs: Any, rng: Streams, rt: Runtime) -> "PPO":
        require_memory(learner_bytes(config), "learner", "width, hidden, worlds or runs", rt.device)
        return cls(config.learner, config.env.spec, inputs, rng, rt, config.source.worlds)

    @classmethod
    def load_policy(cls, hyper: Any, trained: Any, spec: Any, parameters: Float[Tensor, "R K P"]) -> Policy:
        team, theta = make_team(hyper, trained, spec), parameters.flatten(0, 1)
        padding = padded_actions(spec, parameters.device)
        return make_policy(choose_actions, team, hyper, theta, padding)

    @classmethod
    def unsupported(cls, spec: Any) -> str | None:
        if spec is None:  # ``check_env`` reports a class without a spec
            return None
        return None if isinstance(spec, EnvSpec) else "it has no team of agents"

    @classmethod
    def require_same(cls, hyper: Any, trained: Any, spec: Any) -> None:
        make_team(hyper, trained, spec)

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        updates, hyper = config.run.updates, config.learner
        return {"gradient_steps_per_run": None if updates is None else updates * hyper.epochs * hyper.minibatches}

    @classmethod
    def assign_networks(cls, hyper: Any, spec: Any) -> tuple[int, ...]:
        return make_team(hyper, spec, spec).networks

    def __init__(
        self, config: MAPPOConfig, spec: EnvSpec, inputs: Any, rng: Streams, rt: Runtime, worlds: int = 1
    ) -> None:
        """Draw the initial parameters; ``inputs`` is mean and spread of observations that are vectors."""
        self.config, self.spec, self.runs, self.acting = config, spec, len(rng.seeds), rt.toggles.acting
        self.ranks = rt.ranks
        self.team, self.padding = make_team(config, spec, spec), padded_actions(spec, rng.device)
        if rt.toggles.recompute == "layers" and isinstance(self.team, EntityTeam):
            self.team = replace(self.team, recompute=LARGE)
        actor, critic = (rows.flatten(0, 1) for rows in self.team.initial(inputs, rng))
        if config.noisy:
            actor, self.noise = append_stds(actor, *self.team.actor_net.weights[-1]), self._draw_noise(rng)
        self.actor = rt.grad(actor, config.lr, config.clip, undo=True)
        self.critic = rt.grad(critic, config.critic_lr, config.clip)
        if config.lr_to is not None:
            self.actor.rate = self.critic.rate = actor.new_ones(())
        self.mean, self.square, self.weight = actor.new_zeros(3, self.runs, spec.agents, dtype=torch.float64).unbind()
        self.count = torch.zeros((), dtype=torch.int64, device=rng.device)  # updates made
        if isinstance(self.team, RecurrentTeam):
            self.critic_memory = actor.new_zeros(self.runs, worlds, len(self.team.evaluated), config.memory)
        self._act: Callable[..., Any] = rt.kernel(choose_actions, "act")
        self._targets = rt.kernel(self.targets, "targets")
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss", part=True)
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss", part=True)
        self._step = rt.update(self._take_steps, "ppo")

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Return the policy in training, for a team of any size; noise on weights is for the one that explores."""
        team = make_team(self.config, self.spec, spec)
        padding = padded_actions(spec, self.count.device)
        act, theta = self._act, self._mean_actor
        if self.config.noisy and explore:
            act, theta = self._act_with_noise, self.actor.parameter
        return make_policy(act, team, self.config, theta, padding, self.acting == "loop")

    def parameters(self) -> Float[Tensor, "R K P"]:
        return self._mean_actor.clone().unflatten(0, (self.runs, -1))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``; what critics remember of another number of worlds is left out."""
        if self.config.memory and state["critic_memory"].shape != self.critic_memory.shape:
            state = {name: tensor for name, tensor in state.items() if name != "critic_memory"}
        super().load_state_dict(state)

    def update_noise(self, rng: Streams, rows: int) -> Order | tuple[Order, Tensor]:
        """Draw the order of rows in each pass, with memory that of worlds; with ``noisy`` the next noise, too."""
        count = self.critic_memory.shape[1] if self.config.memory else rows
        order = rng.uniform("shuffle", self.config.epochs, count).argsort(-1)
        return (order, self._draw_noise(rng)) if self.config.noisy else order

    def update(self, batch: Batch, noise: Order | tuple[Order, Tensor]) -> Update:
        config = self.config
        order, *following = noise if isinstance(noise, tuple) else (noise,)
        own = [self.noise] if config.noisy else []  # of this batch
        with torch.no_grad():
            earlier = Moments(mean=self.mean, square=self.square, weight=self.weight)
            memory = None if batch.memory is None else Memory(actor=batch.memory, critic=self.critic_memory)
            actor = add_noise(self.actor.parameter, self.noise) if config.noisy else self.actor.parameter
            samples, moments, last = self._targets(actor, self.critic.parameter, earlier, batch.data, memory)
            for name in ("mean", "square", "weight"):
                getattr(self, name).copy_(getattr(moments, name))
            if self.actor.rate is not None and config.lr_to is not None:
                self.actor.rate.copy_(linear(self.count, 1, config.lr_to, config.lr_updates))  # shared with the critics
            count = self.count.to(samples.target.dtype)
            entropy = linear(count, config.entropy, config.entropy_to, config.entropy_updates)
        going = torch.ones(self.runs, len(set(self.team.networks)), dtype=torch.bool, device=order.device)
        steps, taken = [], []
        for part in minibatches(samples, order, config.minibatches):
            before = self.actor.copy_state() if config.target_kl > 0 else {}
            result = self._step(part, entropy, *own)
            step = {name: value.clone() for name, value in result.items()}  # graphs reuse results
            step["kl"] = self.ranks.mean(step["kl"])
            if config.target_kl > 0:
                going = going & ~(step["kl"] > config.target_kl)  # a nan goes on, and is found
                self.actor.undo(~going.flatten(), before)
            step["actor_norm"] = step["actor_norm"].masked_fill(~going, 0.0).amax(1, keepdim=True).expand(going.shape)
            steps.append(step)
            taken.append(going)
        if last is not None:
            self.critic_memory.copy_(last)  # now, because minibatches begin with the one before
        for now, after in zip(own, following, strict=True):
            now.copy_(after)
        self.count.add_(1)
        metrics = {"return": moments.scale(samples.target.dtype)[0].mean((1, 2)), **self._entropy_limit(samples)}
        metrics |= means_of_steps(steps, torch.stack(taken))
        if config.noisy:
            stds = self.actor.parameter.detach()[:, self.team.actor_net.count :]
            metrics["noise_std"] = stds.abs().unflatten(0, (self.runs, -1)).mean((1, 2))
        return Update({**metrics, "entropy_weight": entropy.expand(self.runs)})

    def targets(
        self,
        actor: Float[Tensor, "G P"],
        critic: Float[Tensor, "G Q"],
        moments: Moments,
        data: Steps,
        memory: Memory | None = None,
    ) -> tuple[Samples, Moments, Float[Tensor, "R W C M"] | None]:
        """Compute the samples, the new moments of returns and, with memory, what critics remember at the end."""
        config, team, time = self.config, self.team, 1
        if memory is not None:
            data, time = tree_map(lambda leaf: leaf.transpose(1, 2), data), 2  # worlds are rows
        lead = data.reward.shape[:3]
        obs, next_obs = (tree_map(lambda leaf: leaf.flatten(1, 2), each) for each in (data.obs, data.next_obs))
        action, live = data.action.flatten(1, 2), data.live.flatten(1, 2).to(data.reward.dtype)
        center, spread = moments.scale(live.dtype)
        if isinstance(team, RecurrentTeam) and memory is not None:
            seen: Any = sequences_of(data, memory)
            before, after, last = team.values(critic, seen, data.next_obs, data.ended)
        else:
            seen, before, after, last = obs, team.value(critic, obs), team.value(critic, next_obs), None
        value, next_value = ((center + spread * each).view(*lead, -1).movedim(time, 0) for each in (before, after))
        reward, terminated, ended = (each.movedim(time, 0) for each in (data.reward, data.terminated, data.ended))
        error = generalized_advantages(reward, value, next_value, terminated, ended, config.gamma, config.lam)
        advantage, returns = (each.movedim(0, time).flatten(1, 2) for each in (error, error + value))
        new = update_moments(moments, returns, live, team.critics, self.ranks)
        center, spread = new.scale(live.dtype)
        samples = Samples(
            obs=obs,
            action=action,
            log_prob=evaluate_actions(config, team.act(actor, seen), obs, action, self.padding)[0],
            advantage=normalise(advantage, live, team.networks, self.ranks),
            target=(returns - center) / spread,
            weight=row_weights(live, team.networks, self.ranks),
            critic_weight=row_weights(live, team.critics, self.ranks),
        )
        if memory is not None:
            samples = replace(tree_map(lambda leaf: leaf.unflatten(1, lead[1:]), samples), obs=seen)
        return samples, new, last

    def critic_loss(self, critic: Float[Tensor, "G Q"], rows: Samples) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean squared errors of the critics over runs."""
        value, rows = self.team.value(critic, rows.obs), steps_of(rows)
        error = value - rows.target
        mean = (rows.critic_weight * error.square()).mean(1).sum(1)
        return mean.sum(), {"critic_loss": mean.detach() / len(set(self.team.critics))}

    def actor_loss(
        self, actor: Float[Tensor, "G P"], rows: Samples, beta: Float[Tensor, ""], *noise: Float[Tensor, "G S"]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the means of the clipped objective and of the entropy over actors and runs.

        ``kl`` is the mean of rho - 1 - log rho for each actor, an estimate of its distance from the old policy that is
        never negative.
        """
        out, rows = self.team.act(add_noise(actor, *noise) if noise else actor, rows.obs), steps_of(rows)
        log_prob, entropy = evaluate_actions(self.config, out, rows.obs, rows.action, self.padding)
        change = (log_prob - rows.log_prob).masked_fill(rows.weight == 0, 0.0)  # no overflow where no row is live
        ratio, clip = change.exp(), self.config.clip_ratio
        clipped = ratio.clamp(1 - clip, 1 + clip)
        objective = torch.minimum(ratio * rows.advantage, clipped * rows.advantage) + beta * entropy
        mean = -(rows.weight * objective).mean(1).sum(1)
        figures = {"clipped": (ratio != clipped).to(ratio.dtype), "entropy": entropy, "kl": ratio - 1 - change}
        metrics = {name: self._by_actor(rows.weight * x.detach()) for name, x in figures.items()}
        return mean.sum(), {"actor_loss": self._by_actor(-rows.weight * objective.detach()), **metrics}

    def _by_actor(self, x: Float[Tensor, "R N A"]) -> Float[Tensor, "R K"]:
        """Return the sum over its agents of weighted means over rows, for each actor."""
        networks = self.team.networks
        means = sum_by_network(x.mean(1), networks)
        return torch.stack([means[:, networks.index(actor)] for actor in range(len(set(networks)))], 1)

    def _entropy_limit(self, samples: Samples) -> dict[str, Float[Tensor, " R"]]:
        """Return the largest entropy that masks of moves allow (nats), a mean over actors as that of policies is."""
        if not self.spec.choices:
            return {}
        rows = steps_of(samples)
        limit = open_moves_of(rows.obs, rows.action).sum(-1).clamp_min(1).log()
        return {"entropy_limit": self._by_actor(rows.weight * limit).mean(1)}

    @property
    def _mean_actor(self) -> Float[Tensor, "G P"]:
        """Parameters of the actors without noise, not a copy."""
        return self.actor.parameter.detach()[:, : self.team.actor_net.count]

    def _act_with_noise(self, team: Team, config: MAPPOConfig, theta: Float[Tensor, "G P+S"], *inputs: Any) -> Any:
        return self._act(team, config, add_noise(theta, self.noise), *inputs)

    def _draw_noise(self, rng: Streams) -> Float[Tensor, "G S"]:
        layer = self.team.actor_net.weights[-1]
        normal = rng.normal("noisy", len(set(self.team.networks)), sum(layer))
        return factorised_noise(normal, layer[0]).flatten(0, 1)

    def _take_steps(self, rows: Samples, beta: Float[Tensor, ""], *noise: Float[Tensor, "G S"]) -> dict[str, Tensor]:
        """Take one step of the critics and one of the actors; return metrics of runs, and of each actor (R K)."""
        critics, critic_norm = self.critic(self._critic_loss, self.critic.parameter, Rows(rows, 1))
        actors, actor_norm = self.actor(self._actor_loss, self.actor.parameter, Rows(rows, 1), beta, *noise)
        norm = actor_norm.view(self.runs, -1)
        return {**critics, **actors, "critic_norm": critic_norm.view(self.runs, -1).amax(1), "actor_norm": norm}


class IPPO(PPO):
    """PPO with critics of one agent, by its other defaults."""

    settings = IPPOConfig


def steps_of(rows: Samples) -> Samples:
    """Return the steps of worlds as rows; rows without memory are steps."""
    if not isinstance(rows.obs, Sequences):
        return rows
    return tree_map(lambda leaf: leaf.flatten(1, 2), replace(rows, obs=rows.obs.obs))


def means_of_steps(steps: Sequence[Mapping[str, Tensor]], taken: Bool[Tensor, "S R K"]) -> dict[str, Tensor]:
    """Return the mean of each metric over the steps of an update; those of K actors over the steps that were kept."""
    counts = taken.sum((0, 2)).clamp_min(1)
    metrics = {"step_share": taken.to(steps[0]["kl"].dtype).mean(0)}
    for name in steps[0]:
        values = torch.stack([step[name] for step in steps])
        own = values.dim() == taken.dim()
        metrics[name] = values.masked_fill(~taken, 0.0).sum((0, 2)) / counts if own else values.mean(0)
    return metrics
