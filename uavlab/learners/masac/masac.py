"""Multi-agent soft actor-critic (MASAC): losses, and two forms in which networks are held and evaluated together.

``MASAC`` computes a layer of all networks as one batched product; ``MASACVmap`` applies ``torch.func.vmap`` to the
function of one network, over the stacked tensors of all. ``MASACLoop`` (``loop.py``) is the plain reference.

Equations, in order of use (agent i, discount gamma, temperature alpha_i, joint observation s and action a):

* target      y_i = r_i + gamma (1 - d_i) (min_k Q'_ik(s', a') - alpha_i log pi_i(a'_i | o'_i))         ``targets``
* critics     minimize the mean of (Q_ik(s, a) - y_i)^2 over rows and both critics k                  ``critic_loss``
* actor       minimize the mean of alpha_i log pi_i(a_i | o_i) - min_k Q_ik(s, a), only a_i varying      ``actor_loss``
* temperature minimize -log alpha_i (log pi_i + target entropy), see ``target_entropy``            ``temperature_loss``
* targets     theta' <- theta' + tau (theta - theta')                                                       ``update``

Critics that a group shares (``critic=shared``) have one value Q_gk(s, a) for all its agents, and minimize the mean of
(Q_gk - y_i)^2 over the agents of the group, too. Each agent's actor minimizes the same loss as before, with Q_gk for
Q_ik.

Means of an agent are over the rows before the end of its task, and a joint action holds zeros for agents that take no
part in a row, or whose task ended before it. With ``n_step`` r_i is a sum of discounted rewards, and gamma the discount
after the last of them.

All losses are computed from the parameters at the start of their phase: all critics, then all actors and temperatures
against the updated critics. In the actor loss, other agents' actions are samples of their current policies, detached.

Where agents choose moves, the expectation over an agent's own move e takes the place of the sample, and -H that of
log pi_i (H the entropy, others' moves a_-i sampled from their current policies). Agent i's critics observe what all
agents observe and the others' moves, or its own observation alone, and return a value for each own move:

* target      y_i = r_i + gamma (1 - d_i) (sum_e pi_i(e | o'_i) min_k Q'_ik(s', a'_-i, e) + alpha_i H(pi_i(. | o'_i)))
* critics     minimize the mean of (Q_ik(s, a_-i, e) - y_i)^2 at the move e = a_i that was taken
* actor       minimize the mean of -alpha_i H(pi_i) - sum_e pi_i(e | o_i) min_k Q_ik(s, a_-i, e)
* temperature minimize log alpha_i (H(pi_i) - target entropy)

Moves that are not legal have probability 0 and no gradient. A group shares no critic there: the value of a move depends
on which agent makes it and on the moves of all others, so one evaluation could not serve two agents.

Source:
    Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; joint critics as in Lowe et al. 2017,
    "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments"; moves as in Christodoulou 2019, "Soft
    Actor-Critic for Discrete Action Settings", eq. 10 to 12.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.portable import Portable
from uavlab.core.protocols import CheckedTensors, Policy
from uavlab.core.registry import Resume, Settings
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.symptoms import Entropy, Range, Remedy, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import (
    Batch,
    ChoiceObs,
    EnvSpec,
    LiveTransition,
    Scale,
    Transition,
    Update,
    features_of,
    own_actions,
    padded_actions,
    tensors,
    tree_map,
)
from uavlab.learners.learner import Learner
from uavlab.nets.assignment import assign_networks
from uavlab.nets.mlp import StackedMLP, by_network, of_agents, per_agent
from uavlab.ops.action_sampling import (
    HALF_LOG_2PI,
    sample_categorical,
    sample_moves,
    squashed_gaussian,
    without_padding,
)
from uavlab.ops.schedules import linear
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class MASACConfig:
    """Hyper-parameters.

    Attributes:
        critic: What critics observe, and whose they are: ``central``, all observations and actions, a pair for each
            agent; ``shared``, the same, one pair for all agents of a group, whose value is the mean of theirs and costs
            one evaluation; or ``own``, one agent's, a pair for each. Agents that choose moves share no critics.
        hidden: Width of the hidden layers.
        gamma: Discount per step.
        n_step: Steps whose rewards a target sums before it takes a value; entropies of later steps do not count.
        tau: Weight of the critics in the moving average of the target critics, per update.
        lr: Adam's learning rate of the actors.
        critic_lr: Adam's learning rate of the critics.
        alpha_lr: Adam's learning rate of the log temperatures.
        lr_to: Share of all three rates that is left after ``lr_updates``; None for constant rates.
        lr_updates: Updates over which the rates change linearly.
        alpha: Initial temperature, in units of scaled rewards.
        clip: Largest gradient norm of one agent's actor, and of its pair of critics.
        target_entropy: Entropy to which the temperature regulates the policy (nats per agent); None for minus the
            dimensions of the agent's own actions, or for a quarter of the entropy of a free choice among its legal
            moves. Rows in which an agent has one legal move do not count for it.
        reward_scale: Factor on rewards in the target; None divides what a target sums, the discounted rewards of
            ``n_step`` steps, by its root mean square so far, agent by agent. With more steps, or with a constant part
            of rewards, an equal ``alpha`` therefore weighs more.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing.
        log_std_high: Largest log standard deviation.
        share: Whether interchangeable agents share one actor; otherwise each agent has its own.
    """

    critic: Literal["central", "shared", "own"] = "central"
    hidden: Annotated[int, Ge(1), Le(4096)] = 128
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.95
    n_step: Annotated[int, Ge(1), Le(100), Resume.YES] = 3
    tau: Annotated[float, Gt(0), Le(1), Resume.YES] = 0.01
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 3e-3
    alpha_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    lr_to: Annotated[float, Ge(0), Le(1)] | None = None
    lr_updates: Annotated[int, Ge(1), Le(10**9), Resume.YES] = 10_000
    alpha: Annotated[float, Ge(1e-8), Le(1e6)] = 0.1
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 1.0
    target_entropy: Annotated[Annotated[float, Ge(-1000), Le(1000)] | None, Resume.YES] = None
    reward_scale: Annotated[float, Gt(0), Le(1e4)] | None = None
    log_std_low: Annotated[float, Ge(-20), Le(0)] = -5.0
    log_std_high: Annotated[float, Ge(0), Le(4)] = 2.0
    share: bool = True

    labels: ClassVar[dict[str, str]] = {
        "lr": "learning rate",
        "critic_lr": "learning rate of critics",
        "alpha_lr": "learning rate of temperatures",
        "gamma": "discount",
        "tau": "weight in the target critics",
    }


# Networks: actors and critics, initial parameters, and the forms in which a learner holds them.


Theta = Any
"""All networks of a kind: one matrix (G P), a list of stacked tensors by layer (G ...), or a list of tensors each."""

Network = Sequence[Tensor]
"""Weights and biases of three layers; a pair of critics is the concatenation of two networks."""

Evaluate = Callable[[Theta, Float[Tensor, "G N I"]], Float[Tensor, "G N out"]]
"""A function that evaluates each network g on its rows x[g]."""

Unpack = Callable[[Float[Tensor, "G P"]], list[Tensor]]
"""A function that splits rows of parameters into the tensors of their layers, each with the leading axis G."""


def actor_net(spec: EnvSpec, hidden: int) -> StackedMLP:
    """Return an actor without parameters; its outputs are means and log standard deviations, or logits of moves."""
    return StackedMLP(spec.obs, hidden, spec.choices or 2 * spec.action)


def critic_net(spec: EnvSpec, hidden: int, critic: str) -> StackedMLP:
    """Return a critic of an action, or of each own move, given all observations and actions, or an agent's own."""
    if critic == "own":
        return StackedMLP(spec.obs + (0 if spec.choices else spec.action), hidden, spec.choices or 1)
    return StackedMLP(spec.agents * (spec.obs + (spec.choices or spec.action)), hidden, spec.choices or 1)


def assign_critics(spec: EnvSpec, critic: str) -> tuple[int, ...]:
    """Return the index of each agent's pair of critics: that of its group if critics are ``shared``, else its own."""
    if critic == "shared" and spec.choices:
        raise ConfigError(
            "critic: got shared; a critic of moves has a value for each own move, given the moves of the others, so it "
            "must be evaluated for each agent; expected critic=central or critic=own where agents choose moves."
        )
    return assign_networks(spec, spec, critic == "shared")


def initial_parameters(
    actor: StackedMLP,
    critic: StackedMLP,
    networks: tuple[int, ...],
    pairs: int,
    inputs: Scale,
    rng: Streams,
    central: bool,
) -> tuple[Float[Tensor, "R K P"], Float[Tensor, "R C 2 Q"]]:
    """Draw the initial actors (one per network) and pairs of critics of each run."""
    first = [networks.index(network) for network in sorted(set(networks))]  # the first agent of each network
    actors = actor.initial_for(
        rng.uniform("actor", len(first), actor.count), inputs.center[:, first], inputs.spread[:, first]
    )
    seen = [each.flatten(1)[:, None] if central else each for each in (inputs.center, inputs.spread)]
    still = seen[0].new_zeros(*seen[0].shape[:2], critic.inputs - seen[0].shape[-1])  # actions: mean 0 and scale 1
    center, spread = (
        torch.cat(parts, -1)[:, :, None].expand(-1, pairs, 2, -1) for parts in ((seen[0], still), (seen[1], still + 1))
    )
    return actors, critic.initial_for(rng.uniform("critic", pairs, 2, critic.count), center, spread)


def map_tensors(fn: Callable[[Tensor], Any], theta: Theta) -> Theta:
    return fn(theta) if isinstance(theta, Tensor) else [map_tensors(fn, part) for part in theta]


def list_tensors(theta: Theta) -> list[Tensor]:
    return [theta] if isinstance(theta, Tensor) else [tensor for part in theta for tensor in list_tensors(part)]


def evaluate(net: Network, x: Float[Tensor, "N I"]) -> Float[Tensor, "N out"]:
    """Evaluate one network; its first and last layer are in float32 in every precision, as in ``StackedMLP``."""
    w1, b1, w2, b2, w3, b3 = net
    full = not torch.is_autocast_enabled(x.device.type)
    with nullcontext() if full else torch.autocast(x.device.type, enabled=False):
        x = F.layer_norm(torch.addmm(b1, x, w1), b1.shape[1:]).relu_()
    x = F.layer_norm(torch.addmm(b2, x, w2), b2.shape[1:]).relu_()
    if full:
        return torch.addmm(b3, x, w3)
    with torch.autocast(x.device.type, enabled=False):
        return torch.addmm(b3.float(), x.float(), w3.float())


def evaluate_actors(
    net: Evaluate, theta: Theta, obs: Float[Tensor, "R N A O"], networks: tuple[int, ...]
) -> Float[Tensor, "R N A E"]:
    runs, rows, agents, features = obs.shape
    weights = map_tensors(lambda tensor: per_agent(tensor, runs, networks).flatten(0, 1), theta)
    flat = obs.transpose(1, 2).reshape(runs * agents, rows, features)
    return net(weights, flat).view(runs, agents, rows, -1).transpose(1, 2)


def act(
    net: Evaluate,
    config: MASACConfig,
    theta: Theta,
    obs: Any,
    noise: Float[Tensor, "R N A ..."] | None,
    networks: tuple[int, ...],
    padding: Bool[Tensor, "A D"] | None = None,
) -> Float[Tensor, "R N A D"] | Int[Tensor, "R N A"]:
    """Return the action of each agent; without noise, the mean or the likeliest one."""
    out = evaluate_actors(net, theta, features_of(obs), networks)
    return sample_moves(out, obs, noise) if isinstance(obs, ChoiceObs) else squash(config, out, noise, padding)[0]


def squash(
    config: MASACConfig,
    out: Float[Tensor, "*lead E"],
    noise: Float[Tensor, "*lead D"] | None,
    padding: Bool[Tensor, "*#lead D"] | None = None,
) -> tuple[Float[Tensor, "*lead D"], Float[Tensor, "*lead"]]:
    """Turn an actor's output (mean and log std, E = 2 D) into actions and log densities (0 without noise)."""
    mean, log_std = out.chunk(2, -1)
    if noise is None:
        return without_padding(torch.tanh(mean), padding), mean.new_zeros(mean.shape[:-1])
    return squashed_gaussian(mean, log_std.clamp(config.log_std_low, config.log_std_high), noise, padding)


@tensors
class Weighted(Transition):
    """Rows of a batch with the weight of each agent: 0 after its end, and 1 in the mean over the rows of the batch.

    Pieces of a batch keep these weights, so a mean over pieces is the mean over all live rows.
    """

    weight: Float[Tensor, "R N A"]


def weigh(data: Transition, ranks: Ranks = ALONE) -> Transition:
    """Turn marks of live agents, if there are any, into weights, whose means are over the rows of all ``ranks``.

    Where an agent is not live its action becomes 0, or its move -1, whose one-hot vector is zeros.
    """
    if not isinstance(data, LiveTransition):
        return data
    live = data.live.to(data.reward.dtype)
    weight = live / ranks.mean(live.mean(1, keepdim=True)).clamp_min(1 / (live.shape[1] * ranks.size))
    ended, moves = ~data.live, not data.action.is_floating_point()
    action = data.action.masked_fill(ended, -1) if moves else data.action.masked_fill(ended[..., None], 0.0)
    return Weighted(data.obs, action, data.reward, data.next_obs, data.terminated, data.truncated, weight)


def weights(data: Transition) -> Float[Tensor, "R A N"] | None:
    """Return the weight of each row for each agent; None if all count alike."""
    return data.weight.transpose(1, 2) if isinstance(data, Weighted) else None


def weights_ahead(data: Transition) -> Float[Tensor, "R A N"] | None:
    """Return ``weights`` without those of agents that end in a row: of them no action follows."""
    return data.weight.masked_fill(data.terminated, 0.0).transpose(1, 2) if isinstance(data, Weighted) else None


def row_mean(x: Float[Tensor, "*lead N"], weight: Float[Tensor, "*#lead N"] | None) -> Float[Tensor, "*lead"]:
    """Return the mean over rows that count; others may hold any finite number."""
    return (x if weight is None else x * weight).mean(-1)


def mask_actions(action: Float[Tensor, "*lead D"], weight: Float[Tensor, "*lead"] | None) -> Float[Tensor, "*lead D"]:
    """Return actions, or one-hot moves, that are 0 in rows without weight."""
    return action if weight is None else action.masked_fill((weight == 0)[..., None], 0.0)


# The size of rewards: m_t = m_{t-1} + (mean of r^2 in batch t - m_{t-1}) / min(t, 1000), the mean over all batches at
# first, and later over about the last thousand. Rewards are not shifted: in tasks that end, a constant says whether to
# go on.
MEMORY = 1000  # batches


class RewardScale:
    """The mean square of each agent's rewards, and the number of batches so far."""

    def __init__(self, runs: int, agents: int, like: Tensor) -> None:
        self.square, self.count = like.new_zeros(runs, agents), like.new_zeros(())

    def follow(
        self, reward: Float[Tensor, "R N A"], weight: Float[Tensor, "R A N"] | None = None, ranks: Ranks = ALONE
    ) -> Float[Tensor, "R A"]:
        """Take a batch of rewards into account, in place; return factors of rewards, 1 where there never was one."""
        self.count.add_(1)
        mean = ranks.mean(row_mean(reward.square().transpose(1, 2), weight))
        self.square.add_((mean - self.square) / self.count.clamp_max(MEMORY))
        return torch.where(self.square > 0, self.square.rsqrt(), 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {"square": self.square, "count": self.count}


# Entropy, and the target to which temperatures regulate it. Where agents choose moves, both are means over the rows in
# which an agent has more than one legal move: in other rows no policy has entropy.
SHARE = 0.25  # of the entropy of a free choice among the legal moves

TINY = torch.finfo(torch.float32).tiny


def target_entropy(config: MASACConfig, spec: EnvSpec) -> float | tuple[float, ...]:
    """Return the entropy to which temperatures regulate policies without masks (nats): of all agents, or of each."""
    if config.target_entropy is not None:
        return config.target_entropy
    each = tuple(math.log(own) * SHARE if spec.choices else -float(own) for own in own_actions(spec))
    return each if len(set(each)) > 1 else each[0]


def excess(
    log_prob: Float[Tensor, "R A"],
    target: Float[Tensor, " A"] | float,
    legal: Bool[Tensor, "R N A E"],
    moves: Float[Tensor, "A 1"],
    masked: bool,
    weight: Float[Tensor, "R A N"] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Float[Tensor, "R A"], dict[str, Tensor]]:
    """Return target minus entropy in rows with more than one legal move, 0 of an agent without such a row; and metrics.

    ``log_prob`` is minus the entropy, a mean over live rows; ``weight`` is that of ``weights``. The target is that
    of agents with so many ``moves``, and lower under masks if ``masked``. Metrics are the largest entropy (R A), a mean
    over live rows, and the highest target relative to it (R).
    """
    count = legal.sum(-1).clamp_min(1).transpose(1, 2).to(moves.dtype)
    live = torch.ones_like(count) if weight is None else (weight > 0).to(count.dtype)
    free = (count > 1).to(count.dtype)
    share = ranks.mean((live * free).mean(-1)) / ranks.mean(live.mean(-1)).clamp_min(TINY)
    closed, limit = row_mean((moves / count).log() * free, weight), row_mean(count.log(), weight)
    goal = target * share - SHARE * closed * masked  # a mean over live rows, too
    above = (log_prob + goal) / share.clamp_min(TINY)
    return above, {"entropy_limit": limit, "target_share": (goal / limit.clamp_min(TINY)).amax(1)}


@dataclass(frozen=True)
class UpdateNoise:
    """Noise of one update as in ``acting_noise``: for the next actions of the target, and for the actor loss."""

    next_action: Float[Tensor, "R N A ..."]
    action: Float[Tensor, "R N A ..."]


BY_NETWORK = ("actor", "temperature", "actor_norm", "alpha")  # tensors with one row per network instead of per agent

BY_PAIR = ("critic", "target.parameter", "q", "critic_loss", "critic_norm")  # the same for pairs of critics


def entropy_range(config: MASACConfig, spec: EnvSpec) -> Range:
    """Return the range of an agent's entropy: at most that of uniform actions in [-1, 1]^D, D log 2.

    The lower end is that of the narrowest Gaussian in the middle, where squashing changes little. Of agents whose D
    differ, it is the range of the mean.
    """
    if spec.choices:
        return move_range(spec)
    own = fmean(own_actions(spec))
    return Range(own * min(config.log_std_low + HALF_LOG_2PI + 0.5, 0.0), own * math.log(2))


def _usual_target(too_low: bool, config: MASACConfig, spec: EnvSpec) -> float | None:
    """Return the usual target entropy, -D (its mean), if the one that is set is near an end of the range."""
    low, high = entropy_range(config, spec)
    target = config.target_entropy
    if spec.choices or target is None:  # chosen for the moves
        return None
    return -fmean(own_actions(spec)) if (target < low / 2 if too_low else target > high / 2) else None


SYMPTOMS = Symptoms(
    entropy=Entropy("entropy", entropy_range, "entropy_limit", "target_share"),
    loss="critic_loss",
    remedies={
        "target_high": (  # the default follows the legal moves
            Remedy("target_entropy", lambda config, spec: None if config.target_entropy is None else "null"),
        ),
        "entropy_high": (
            Remedy("target_entropy", partial(_usual_target, False)),
            lower("alpha", 0.1, 0.1),
            higher("alpha_lr", 3e-3, 1e-2),  # the temperature falls while the entropy is above its target
            times("alpha", 0.1, least=1e-4),
            times("reward_scale", 10, most=1e4),
        ),
        "entropy_low": (
            Remedy("target_entropy", partial(_usual_target, True)),
            times("alpha", 10, most=10.0),
            times("reward_scale", 0.1, least=1e-4),
        ),
        "loss_grows": (
            Remedy("target_entropy", partial(_usual_target, False)),  # out of reach, it raises the temperature for ever
            lower("tau", 0.05, 0.01),
            lower("gamma", 0.99, 0.99),
            times("critic_lr", 0.3, least=1e-6),
        ),
        "scores_still": (higher("lr", 1e-4, 1e-3), longer_view(), times("reward_scale", 10, most=1e4)),
    },
)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks, targets, gradients, moments and activations."""
    spec, hyper, batch = config.env.spec, config.learner, config.source.batch
    actors = len(set(assign_networks(spec, spec, hyper.share))) * actor_net(spec, hyper.hidden).count
    pairs = len(set(assign_critics(spec, hyper.critic)))
    critics = 2 * pairs * critic_net(spec, hyper.hidden, hyper.critic).count
    activations = 2 * 2 * pairs * batch * hyper.hidden  # two critics of two layers
    return 4 * config.run.runs * (4 * actors + 5 * critics + activations)


class MASAC(Learner):
    """A learner over R runs. Its networks are rows of matrices: the state is four matrices and three Adams."""

    settings = MASACConfig
    collector = "off_policy"
    inapplicable: ClassVar[dict[str, str]] = {}
    portable = Portable(layers=lambda config, spec: actor_net(spec, config.hidden).by_layer)
    symptoms = SYMPTOMS

    @classmethod
    def build(cls, config: Settings, inputs: Any, rng: Streams, rt: Runtime) -> "MASAC":
        """Build the learner in the form that the toggle ``update`` selects."""
        require_memory(learner_bytes(config), "learner", "hidden, batch or runs", rt.device)
        return FORMS[rt.toggles.update](config.learner, config.env.spec, inputs, rng, rt)

    @classmethod
    def load_policy(cls, hyper: Any, trained: Any, spec: Any, parameters: Float[Tensor, "R K P"]) -> Policy:
        networks, net = assign_networks(trained, spec, hyper.share), actor_net(trained, hyper.hidden)
        padding = padded_actions(spec, parameters.device)

        @torch.no_grad()
        def policy(obs: Any, noise: Tensor | None) -> Tensor:
            return act(net, hyper, parameters.flatten(0, 1), obs, noise, networks, padding)

        return policy

    @classmethod
    def unsupported(cls, spec: Any) -> str | None:
        if spec is None:  # ``check_env`` reports a class without a spec
            return None
        if not isinstance(spec, EnvSpec):
            return "it has no team of agents"
        return "its agents observe maps, MASAC's networks take vectors" if spec.side else None

    @classmethod
    def require_same(cls, hyper: Any, trained: Any, spec: Any) -> None:
        assign_networks(trained, spec, hyper.share)

    @classmethod
    def assign_networks(cls, hyper: Any, spec: Any) -> tuple[int, ...]:
        return assign_networks(spec, spec, hyper.share)

    def __init__(self, config: MASACConfig, spec: EnvSpec, inputs: Scale, rng: Streams, rt: Runtime) -> None:
        self.config, self.spec, self.runs, self.acting = config, spec, len(rng.seeds), rt.toggles.acting
        self.ranks = rt.ranks
        self.networks = assign_networks(spec, spec, config.share)
        self.count = len(set(self.networks))
        self.central, self.critics = config.critic != "own", assign_critics(spec, config.critic)
        self.pairs = len(set(self.critics))
        nets = actor_net(spec, config.hidden), critic_net(spec, config.hidden, config.critic)
        actor, critic = initial_parameters(*nets, self.networks, self.pairs, inputs, rng, self.central)
        alpha = actor.new_full((*actor.shape[:2], 1), config.alpha)
        self.actor_net, self.critic_net = (self._evaluator(net) for net in nets)
        self.actor, self.actor_theta, self.acting_theta = self._hold(rt, actor, nets[0].unpack, config.lr, config.clip)
        self.critic, self.critic_theta, _ = self._hold(rt, critic, nets[1].unpack, config.critic_lr, config.clip)
        self.temperature, self.log_alpha, _ = self._hold(rt, alpha.log(), lambda rows: [rows], config.alpha_lr, None)
        self.target = map_tensors(lambda tensor: tensor.detach().clone(), self.critic_theta)
        goal = target_entropy(config, spec)
        self.target_entropy = actor.new_tensor(goal) if isinstance(goal, tuple) else goal
        moves = torch.tensor(own_actions(spec), dtype=actor.dtype, device=actor.device)
        self.moves = moves[:, None] if spec.choices else None
        self.padding = padded_actions(spec, actor.device)
        self.reward_factor = config.reward_scale or 1.0  # in the target
        self.rewards = RewardScale(self.runs, spec.agents, actor) if config.reward_scale is None else None
        self.updates = torch.zeros((), dtype=torch.int64, device=actor.device)  # counted for the schedule alone
        self.rate = None if config.lr_to is None else actor.new_ones(())
        self.actor.rate = self.critic.rate = self.temperature.rate = self.rate
        self._act = rt.kernel(act, "act")
        self._targets = rt.split_batch(rt.kernel(self.targets, "targets", part=True), "targets", 2)
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss", part=True)
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss", part=True)
        rows = ((self.networks, BY_NETWORK), (self.critics, BY_PAIR))
        shared = [names for owners, names in rows if owners != tuple(range(spec.agents))]
        self._axes = {name: "R K" for names in shared for name in names}
        self._make_update = rt.update(self._update, "masac")

    def _evaluator(self, net: StackedMLP) -> Evaluate:
        """Return the function that evaluates all networks of a kind."""
        return net

    def _hold(
        self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None
    ) -> tuple[GradientStep, Theta, Theta]:
        """Return the gradient step of networks, or pairs of them, with initial parameters ``rows`` (R K ... P).

        The second value is the parameters in the form that the losses take, the third in that of ``act``.
        """
        step = rt.grad(rows.flatten(2).flatten(0, 1), lr, clip)
        return step, step.parameter, step.parameter

    def _heads(self, theta: Theta) -> Theta:
        """Return the critics of all pairs as separate networks."""
        return theta.view(2 * len(theta), -1)

    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        """Return tensors of all networks of a kind, ``count`` per run, as a row for each network."""
        return tensors[0].view(self.runs, count, -1)

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Return the policy in training, for a team of any size; it is stochastic with or without ``explore``."""
        networks = assign_networks(self.spec, spec, self.config.share)
        padding = padded_actions(spec, self.updates.device)

        @torch.no_grad()
        def at_once(
            obs: Any, noise: Tensor | None, networks: tuple[int, ...] = networks, padding: Tensor | None = padding
        ) -> Tensor:
            return self._act(self.actor_net, self.config, self.acting_theta, obs, noise, networks, padding)

        @torch.no_grad()
        def in_turn(obs: Any, noise: Tensor | None) -> Tensor:
            actions = []
            for i, network in enumerate(networks):
                own = tree_map(lambda leaf, i=i: leaf.narrow(2, i, 1), obs)
                drawn, row = None if noise is None else noise.narrow(2, i, 1), slice(i, i + 1)
                actions.append(at_once(own, drawn, (network,), None if padding is None else padding[row]))
            return torch.cat(actions, 2)

        return at_once if self.acting == "batched" else in_turn

    def parameters(self) -> Float[Tensor, "R K P"]:
        return self._table(list_tensors(self.actor_theta), self.count).detach().clone()

    def update_noise(self, rng: Streams, rows: int) -> UpdateNoise:
        names = ("next_action", "action")
        return UpdateNoise(**{name: acting_noise(rng, name, rows, self.spec) for name in names})

    def update(self, batch: Batch, noise: UpdateNoise) -> Update:
        config = self.config
        if self.rate is not None and config.lr_to is not None:  # not in compiled code, which loses this write
            self.rate.copy_(linear(self.updates, 1, config.lr_to, config.lr_updates))
            self.updates.add_(1)
        if self.rewards is None:
            return self._make_update(batch, noise)
        data = weigh(batch.data, self.ranks)
        factor = self.rewards.follow(data.reward, weights(data), self.ranks)  # not in compiled code, as above
        scaled = replace(batch, data=replace(data, reward=data.reward * factor[:, None]))
        update = self._make_update(scaled, noise)
        return replace(update, metrics={"reward_scale": factor, **update.metrics})

    def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
        data = weigh(batch.data, self.ranks)
        rows, weight = Rows(data, 1), weights(data)
        with torch.no_grad():
            target = self._targets(
                self.actor_theta,
                self.target,
                self.log_alpha,
                rows,
                Rows(noise.next_action, 1),
                Rows(batch.discount, 1),
            )
        critics, critic_norm = self.critic(
            self._critic_loss, self.critic_theta, rows, Rows(target, 2), Rows(batch.weight, 1)
        )
        critic, log_alpha = (map_tensors(torch.detach, theta) for theta in (self.critic_theta, self.log_alpha))
        actors, actor_norm = self.actor(
            self._actor_loss, self.actor_theta, critic, log_alpha, rows, Rows(noise.action, 1)
        )
        above, limits = self._excess_entropy(data, actors["log_prob"], weight)
        self.temperature(self.temperature_loss, self.log_alpha, above)
        with torch.no_grad():
            for old, new in zip(list_tensors(self.target), list_tensors(self.critic_theta), strict=True):
                old.lerp_(new, self.config.tau)
        td_error = critics.pop("td_error")
        metrics = {  # inputs before results: a message names the first that is not finite
            "target": row_mean(target, weight),
            **critics,
            "critic_norm": critic_norm.view(self.runs, -1),
            "entropy": -actors.pop("log_prob"),
            **limits,
            **actors,
            "actor_norm": actor_norm.view(self.runs, -1),
            "alpha": self._table(list_tensors(self.log_alpha), self.count)[..., 0].detach().exp(),
        }
        return Update(metrics, td_error)

    def _excess_entropy(
        self, data: Transition, log_prob: Float[Tensor, "R A"], weight: Float[Tensor, "R A N"] | None
    ) -> tuple[Float[Tensor, "R A"], dict[str, Tensor]]:
        """Return target minus entropy, 0 without a row that counts, and what masks of moves leave of the entropy."""
        if self.moves is not None:
            legal, masked = data.obs.legal, self.config.target_entropy is None
            return excess(log_prob, self.target_entropy, legal, self.moves, masked, weight, self.ranks)
        above = log_prob + self.target_entropy
        return above if weight is None else above * self.ranks.max((weight > 0).any(2).to(weight.dtype)), {}

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        """Return all parameters and moments, with a row for each network, or all tensors of ``update``."""
        if update is None:
            tables = {} if self.rewards is None else {"rewards.square": self.rewards.square}
            for name, step, count in self._parts():
                for kind in KINDS:
                    tables[f"{name}.{kind}"] = self._table(step.tensors(kind), count)
            tables["target.parameter"] = self._table(list_tensors(self.target), self.pairs)
        else:
            tables = update.metrics
        axes = {"target_share": "R", **self._axes}
        return {k: (v, axes.get(k) or axes.get(k.partition(".")[0], "R A")) for k, v in tables.items()}

    def state_dict(self) -> dict[str, Tensor]:
        parts = self._parts()
        state = {f"{name}.{key}": value for name, step, _ in parts for key, value in step.state_dict().items()}
        return state | self._other_state()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``, also one of networks in another form."""
        for name, step, count in self._parts():
            saved = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
            step.load_state_dict(convert(saved, step.state_dict(), self.runs * count))
        others, targets = self._other_state(), [name for name in state if name.partition(".")[0] == "target"]
        likes = list_tensors(self.target)
        if targets and [state[name].dim() for name in targets] != [like.dim() for like in likes]:
            targets.sort(key=lambda name: number_of(name.removeprefix("target.")))
            parts = from_rows(to_rows([state[name] for name in targets], self.runs * self.pairs), likes)
            state = {**state, **dict(zip((name for name in others if "target" in name), parts, strict=True))}
        for name, tensor in others.items():
            tensor.copy_(state[name])

    def _parts(self) -> tuple[tuple[str, GradientStep, int], ...]:
        """Return the gradient steps by name, and how many networks, or pairs of them, of a run each has."""
        return (
            ("actor", self.actor, self.count),
            ("critic", self.critic, self.pairs),
            ("temperature", self.temperature, self.count),
        )

    def _other_state(self) -> dict[str, Tensor]:
        tensors = list_tensors(self.target)
        targets = {"target": tensors[0]} if len(tensors) == 1 else {f"target.{n}": t for n, t in enumerate(tensors)}
        rewards = {} if self.rewards is None else self.rewards.state_dict()
        updates = {} if self.rate is None else {"updates": self.updates}
        return targets | {f"rewards.{name}": tensor for name, tensor in rewards.items()} | updates

    def values(
        self, theta: Theta, obs: Float[Tensor, "R N A O"], action: Float[Tensor, "R _ N J"]
    ) -> Float[Tensor, "R C 2 N out"]:
        """Evaluate both critics of every pair on the actions that they observe (per pair, or the same for all)."""
        runs, rows, pairs = obs.shape[0], obs.shape[1], self.pairs
        seen = obs.flatten(2)[:, None].expand(-1, action.shape[1], -1, -1) if self.central else obs.transpose(1, 2)
        joint = torch.cat((seen, action), -1)
        x = joint[:, :, None].expand(runs, pairs, 2, rows, -1).reshape(runs * pairs * 2, rows, -1)
        return self.critic_net(self._heads(theta), x).view(runs, pairs, 2, rows, -1)

    def data_values(self, critic: Theta, data: Transition) -> Float[Tensor, "R A 2 N"]:
        if self.spec.choices:
            move = one_hot(data.action, self.spec.choices, data.obs.features.dtype)
            q = self.values(critic, data.obs.features, self._others(move))
            return (q * move.transpose(1, 2)[:, :, None]).sum(-1)
        action = data.action.flatten(2)[:, None] if self.central else data.action.transpose(1, 2)
        return of_agents(self.values(critic, data.obs, action).squeeze(-1), self.critics)

    def policy_values(
        self,
        actor: Theta,
        critic: Theta,
        obs: Any,
        noise: Float[Tensor, "R N A ..."],
        own: bool,
        weight: Float[Tensor, "R A N"] | None = None,
    ) -> tuple[Float[Tensor, "R A N"], Float[Tensor, "R A N"]]:
        """Return the smaller value of each agent, and log pi_i, for actions of the current policies.

        Where agents choose, it is the expected value of their moves, and minus the entropy of their policies. Agents
        without weight in a row act with zeros. With ``own`` the sum of the values of all agents, weighted by
        ``weight``, has the gradient of agent i's own value for its action.
        """
        seen = obs.features if self.spec.choices else obs
        out = evaluate_actors(self.actor_net, actor, seen, self.networks)
        if self.spec.choices:
            return self._expected_values(critic, obs, *move_chances(out, obs.legal), noise, weight)
        action, log_prob = squash(self.config, out, noise, self.padding)
        action = mask_actions(action.transpose(1, 2), weight).transpose(1, 2)
        if own and self.config.critic == "shared":
            joint = actions_of_groups(action, self.critics, weight).flatten(3)
        elif own and self.central:
            diagonal = torch.eye(action.shape[2], dtype=torch.bool, device=action.device)[:, None, :, None]  # A 1 A 1
            joint = torch.where(diagonal, action[:, None], action.detach()[:, None]).flatten(3)
        else:
            joint = action.flatten(2)[:, None] if self.central else action.transpose(1, 2)
        q = self.values(critic, obs, joint).squeeze(-1).amin(2)
        return of_agents(q, self.critics), log_prob.transpose(1, 2)

    def _expected_values(
        self,
        critic: Theta,
        obs: ChoiceObs,
        chance: Float[Tensor, "R N A E"],
        log_chance: Float[Tensor, "R N A E"],
        noise: Float[Tensor, "R N A"],
        weight: Float[Tensor, "R A N"] | None,
    ) -> tuple[Float[Tensor, "R A N"], Float[Tensor, "R A N"]]:
        move = one_hot(sample_categorical(chance, noise), self.spec.choices, chance.dtype)
        move = mask_actions(move.transpose(1, 2), weight).transpose(1, 2)
        q = self.values(critic, obs.features, self._others(move)).amin(2)
        expected = (chance.transpose(1, 2) * q).sum(-1)
        return expected, (chance * log_chance).sum(-1).transpose(1, 2)

    def _others(self, move: Float[Tensor, "R N A E"]) -> Float[Tensor, "R A N J"]:
        """Return the moves that each agent's critics observe."""
        return moves_of_others(move) if self.central else move.transpose(1, 2)[..., :0]

    def targets(
        self,
        actor: Theta,
        target: Theta,
        log_alpha: Theta,
        data: Transition,
        noise: Float[Tensor, "R N A ..."],
        discount: Float[Tensor, "R N"] | None = None,
    ) -> Float[Tensor, "R A N"]:
        """Compute y_i, without the bootstrapped value where an agent's task ended."""
        q, log_prob = self.policy_values(actor, target, data.next_obs, noise, own=False, weight=weights_ahead(data))
        soft = q - self._log_alpha(log_alpha).exp() * log_prob
        alive = (~data.terminated).to(q.dtype).transpose(1, 2)
        reward = self.reward_factor * data.reward.transpose(1, 2)
        if discount is not None:
            return torch.addcmul(reward, alive, soft * discount[:, None])
        return torch.addcmul(reward, alive, soft, value=self.config.gamma)

    def critic_loss(
        self, critic: Theta, data: Transition, target: Float[Tensor, "R A N"], weight: Float[Tensor, "R N"] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean squared errors over runs, pairs and critics; those of a shared pair are means over agents."""
        q = self.data_values(critic, data)
        error = q - target[:, :, None]
        square = error.square() if weight is None else error.square() * weight[:, None, None]
        live = weights(data)
        by_head = None if live is None else live[:, :, None]
        mean = by_network(torch.mean, row_mean(square, by_head), self.critics)
        td_error = error.detach().abs().mean(2)
        if live is not None:
            td_error = td_error.masked_fill(live == 0, 0.0)
        q_mean = q.detach().mean((2, 3)) if live is None else row_mean(q.detach(), by_head).mean(2)
        q_mean = by_network(torch.mean, q_mean, self.critics)
        metrics = {"q": q_mean, "critic_loss": mean.detach().sum(2), "td_error": Rows(td_error.transpose(1, 2), 1)}
        return mean.sum(), metrics

    def actor_loss(
        self, actor: Theta, critic: Theta, log_alpha: Theta, data: Transition, noise: Float[Tensor, "R N A ..."]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the means of alpha_i log pi_i - min_k Q_ik over runs and agents."""
        live = weights(data)
        q, log_prob = self.policy_values(actor, critic, data.obs, noise, own=True, weight=live)
        mean = row_mean(self._log_alpha(log_alpha).exp() * log_prob - q, live)
        return mean.sum(), {"actor_loss": mean.detach(), "log_prob": row_mean(log_prob.detach(), live)}

    def temperature_loss(self, log_alpha: Theta, excess: Float[Tensor, "R A"]) -> tuple[Tensor, dict[str, Any]]:
        """Sum -log alpha_i (log pi_i + target entropy) over runs and agents; ``excess`` is the bracket."""
        return -(self._log_alpha(log_alpha)[..., 0] * excess).sum(), {}

    def _log_alpha(self, log_alpha: Theta) -> Float[Tensor, "R A 1"]:
        (rows,) = list_tensors(log_alpha)
        return per_agent(rows, self.runs, self.networks)


class MASACVmap(MASAC):
    """Networks stacked layer by layer."""

    def _evaluator(self, net: StackedMLP) -> Evaluate:
        return torch.func.vmap(evaluate)

    def _hold(
        self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None
    ) -> tuple[GradientStep, Theta, Theta]:
        # both critics of a pair share an entry of the leading axis, and thus a gradient norm
        lead = (rows.shape[0] * rows.shape[1], *rows.shape[2:-1])
        layers = [layer.detach().reshape(*lead, *layer.shape[1:]).clone() for layer in unpack(rows.flatten(0, -2))]
        step = rt.grad([[layer.requires_grad_() for layer in layers]], lr, clip, stacked=True)
        return step, layers, layers

    def _heads(self, theta: Theta) -> list[Tensor]:
        return [layer.flatten(0, 1) for layer in theta]

    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        return torch.cat([layer.flatten(-2) for layer in tensors], -1).view(self.runs, count, -1)


def actions_of_groups(
    action: Float[Tensor, "R N A D"], critics: tuple[int, ...], weight: Float[Tensor, "R A N"] | None
) -> Float[Tensor, "R C N A D"]:
    """Return for each pair of critics the actions that it values: those of its agents with a gradient, others without.

    Agents of a group have the same function Q(s, a), and the derivative of Q for a_i does not depend on which other
    actions have a gradient. So one evaluation of Q in which all actions of the group have one gives every agent its own
    dQ/da_i. But the losses of all agents of the group subtract this Q, each by its weight w_i of the row (1 without
    weights), so dQ/da_i arrives sum_j w_j times, where agent i has to get w_i times; the gradient of its action is
    therefore scaled by w_i / sum_j w_j, while its value stays.
    """
    weight = action.new_ones(1, len(critics), 1) if weight is None else weight
    total = of_agents(by_network(torch.sum, weight, critics), critics).clamp_min(torch.finfo(weight.dtype).tiny)
    share, held = (weight / total).transpose(1, 2)[..., None], action.detach()
    live = held + share * (action - held)
    own = of_agents(torch.eye(len(set(critics)), dtype=torch.bool, device=action.device), critics)
    return torch.where(own[:, None, :, None], live[:, None], held[:, None])


def move_chances(
    logits: Float[Tensor, "*lead E"], legal: Bool[Tensor, "*lead E"]
) -> tuple[Float[Tensor, "*lead E"], Float[Tensor, "*lead E"]]:
    """Return the probability of each move and its logarithm, both 0 for moves that are not legal."""
    log_chance = logits.masked_fill(~legal, -torch.inf).log_softmax(-1)
    return log_chance.exp(), log_chance.masked_fill(~legal, 0.0)  # 0 times -inf would be nan


def one_hot(move: Int[Tensor, "*lead"], choices: int, dtype: torch.dtype) -> Float[Tensor, "*lead E"]:
    """Return 1 for a move and 0 for all others (-1: for all), without the host sync of torch's own function."""
    return (move[..., None] == torch.arange(choices, device=move.device)).to(dtype)


def moves_of_others(move: Float[Tensor, "R N A E"]) -> Float[Tensor, "R A N A*E"]:
    """Return for each agent the moves of all agents, its own replaced by zeros."""
    own = torch.eye(move.shape[2], dtype=torch.bool, device=move.device)[:, None, :, None]  # A 1 A 1
    return move[:, None].masked_fill(own, 0.0).flatten(3)


# Forms of the state on disk: rows of one matrix, stacked layers, or the tensors of each network.
KINDS = ("parameter", "exp_avg", "exp_avg_sq")  # of tensors that have a number for each parameter

STACKED = 3  # axes of a stacked layer at least; one of a single network has at most two


def to_rows(tensors: Sequence[Tensor], count: int) -> Float[Tensor, "count P"]:
    """Return the tensors of ``count`` networks, or pairs of them, as a row for each."""
    if len(tensors) > 1 and tensors[0].dim() >= STACKED:
        return torch.cat([layer.flatten(-2) for layer in tensors], -1).reshape(count, -1)
    return torch.cat([tensor.flatten() for tensor in tensors]).reshape(count, -1)


def from_rows(rows: Float[Tensor, "count P"], like: Sequence[Tensor]) -> list[Tensor]:
    sizes = [tensor.numel() for tensor in like]
    places = torch.arange(sum(sizes), device=rows.device).split(sizes)
    order = to_rows([place.view(tensor.shape) for place, tensor in zip(places, like, strict=True)], len(rows))
    flat = rows.new_empty(sum(sizes))
    flat[order.flatten()] = rows.flatten()
    return [part.view(tensor.shape) for part, tensor in zip(flat.split(sizes), like, strict=True)]


def convert(state: Mapping[str, Tensor], like: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the state of a gradient step in the form of another one of as many networks.

    Each network keeps its own count of steps, which differ where a loss scale skipped some; a form that counts them
    together, without ``behind``, takes the largest one.
    """
    if _axes(state) == _axes(like):
        return dict(state)
    names, steps = named(like, "step"), steps_of(state, count)
    several = len(names) > 1 and like[named(like, KINDS[0])[0]].dim() < STACKED  # a list of tensors for each network
    own = steps.repeat_interleave(len(names) // count) if several else steps.max().expand(len(names))
    result = {name: step.clone() for name, step in zip(names, own, strict=True)}
    result |= {"behind": steps.max() - steps} if "behind" in like else {}
    for kind in KINDS:
        names = named(like, kind)
        rows = to_rows([state[name] for name in named(state, kind)], count)
        result |= dict(zip(names, from_rows(rows, [like[name] for name in names]), strict=True))
    return result


def steps_of(state: Mapping[str, Tensor], count: int) -> Float[Tensor, " count"]:
    """Return the steps that each of ``count`` networks, or pairs of them, took."""
    steps = torch.stack([state[name].reshape(()) for name in named(state, "step")])
    if len(steps) > 1 and state[named(state, KINDS[0])[0]].dim() < STACKED:
        return steps.view(count, -1)[:, 0]
    return steps[0] - state.get("behind", steps.new_zeros(count))


def _axes(state: Mapping[str, Tensor]) -> list[int]:
    """Return how many axes each parameter has: forms differ by this list."""
    return [state[name].dim() for name in named(state, KINDS[0])]


def named(state: Mapping[str, Tensor], kind: str) -> list[str]:
    """Return the names of one kind of tensors, in the order of their numbers."""
    return sorted((name for name in state if name.split(".")[-1] == kind), key=number_of)


def number_of(name: str) -> int:
    """Return the number before a name, 0 where there is none."""
    first = name.partition(".")[0]
    return int(first) if first.isdigit() else 0


FORMS: dict[str, type[MASAC]] = {"vmap": MASACVmap, "batched": MASAC}
"""Forms by the value of the toggle ``update``; the loop adds itself."""
