"""Multi-agent soft actor-critic: the update, apart from the form in which networks are held and evaluated.

Equations, in order of use (agent i, discount gamma, temperature alpha_i, joint observation s and action a; where agents
choose moves, ``choices.py`` takes the expectation over a_i):

* target      y_i = r_i + gamma (1 - d_i) (min_k Q'_ik(s', a') - alpha_i log pi_i(a'_i | o'_i))         ``targets``
* critics     minimize the mean of (Q_ik(s, a) - y_i)^2 over rows and both critics k                  ``critic_loss``
* actor       minimize the mean of alpha_i log pi_i(a_i | o_i) - min_k Q_ik(s, a), only a_i varying      ``actor_loss``
* temperature minimize -log alpha_i (log pi_i + target entropy), see ``target_entropy``            ``temperature_loss``
* targets     theta' <- theta' + tau (theta - theta')                                                       ``update``

Critics that a group shares (``critic=shared``) have one value Q_gk(s, a) for all its agents, and minimize the mean of
(Q_gk - y_i)^2 over the agents of the group, too. Each agent's actor minimizes the same loss as before, with Q_gk for
Q_ik.

Means of an agent are over the rows before the end of its task, and a joint action holds zeros for agents that take no
part in a row, or whose task ended before it (``live.py``). With ``n_step`` r_i is a sum of discounted rewards, and
gamma the discount after the last of them.

All losses are computed from the parameters at the start of their phase: all critics, then all actors and temperatures
against the updated critics. In the actor loss, other agents' actions are samples of their current policies, detached.

Source:
    Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; joint critics as in Lowe et al. 2017,
    "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments".
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.groups import own_actions, padded_actions
from uavlab.core.protocols import CheckedTensors, Policy
from uavlab.core.rng import Streams, acting_noise
from uavlab.core.types import Batch, ChoiceObs, EnvSpec, Scale, Transition, Update, features_of, tree_map
from uavlab.learners.masac.config import MASACConfig
from uavlab.learners.masac.live import row_mean, weigh, weights
from uavlab.learners.masac.networks import (
    Theta,
    actor_net,
    assign_critics,
    critic_net,
    initial_parameters,
    list_tensors,
    map_tensors,
)
from uavlab.nets.assignment import assign_networks, per_agent
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.action_sampling import sample_moves, squashed_gaussian, without_padding
from uavlab.ops.schedules import linear
from uavlab.runtime.grad_step import MOMENTS, CompiledStep, GradientStep, Rows
from uavlab.runtime.ranks import ALONE, Ranks
from uavlab.runtime.runtime import Runtime

# The size of rewards: m_t = m_{t-1} + (mean of r^2 in batch t - m_{t-1}) / min(t, 1000), the mean over all batches at
# first, and later over about the last thousand. Rewards are not shifted: in tasks that end, a constant says whether to
# go on.
MEMORY = 1000  # batches


class RewardScale:
    """The mean square of each agent's rewards.

    Attributes:
        square: Mean square.
        count: Batches so far.
    """

    def __init__(self, runs: int, agents: int, like: Tensor) -> None:
        self.square, self.count = like.new_zeros(runs, agents), like.new_zeros(())

    def follow(
        self, reward: Float[Tensor, "R N A"], weight: Float[Tensor, "R A N"] | None = None, ranks: Ranks = ALONE
    ) -> Float[Tensor, "R A"]:
        """Take a batch of rewards, of all ``ranks``, into account, in place; return factors that multiply rewards.

        The factor of an agent that never had a reward is 1.
        """
        self.count.add_(1)
        mean = ranks.mean(row_mean(reward.square().transpose(1, 2), weight))
        self.square.add_((mean - self.square) / self.count.clamp_max(MEMORY))
        return torch.where(self.square > 0, self.square.rsqrt(), 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors themselves."""
        return {"square": self.square, "count": self.count}


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


# Entropy, and the target to which temperatures regulate it. Where agents choose moves, both are means over the rows in
# which an agent has more than one legal move: in other rows no policy has entropy.
SHARE = 0.25  # of the entropy of a free choice among the legal moves
TINY = torch.finfo(torch.float32).tiny


def target_entropy(config: MASACConfig, spec: EnvSpec) -> float | tuple[float, ...]:
    """Return the entropy to which temperatures regulate policies (nats per agent): one for all, or one for each.

    Where agents choose, it is that without masks.
    """
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

    ``log_prob`` is minus the entropy, a mean over live rows; ``weight`` is that of ``live.weights``. The target is that
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


Step = GradientStep | CompiledStep

Evaluate = Callable[[Theta, Float[Tensor, "G N I"]], Float[Tensor, "G N out"]]
"""A function that evaluates each network g on its rows x[g]."""

Unpack = Callable[[Float[Tensor, "G P"]], list[Tensor]]
"""A function that splits rows of parameters into the tensors of their layers, each with the leading axis G."""

BY_NETWORK = ("actor", "temperature", "actor_norm", "alpha")  # tensors with one row per network instead of per agent
BY_PAIR = ("critic", "target.parameter", "q", "critic_loss", "critic_norm")  # the same for pairs of critics


class MASACBase(ABC):
    """A learner over R runs; subclasses hold networks in a form (see ``Theta``) and compute targets and losses."""

    targets: Callable[..., Float[Tensor, "R A N"]]
    critic_loss: Callable[..., tuple[Tensor, dict[str, Any]]]
    actor_loss: Callable[..., tuple[Tensor, dict[str, Any]]]
    temperature_loss: Callable[..., tuple[Tensor, dict[str, Any]]]

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
        self.actor, self.acting_parameters = self._hold(rt, actor, nets[0].unpack, config.lr, config.clip)
        self.critic, _ = self._hold(rt, critic, nets[1].unpack, config.critic_lr, config.clip)
        self.temperature, _ = self._hold(rt, alpha.log(), lambda rows: [rows], config.alpha_lr, None)
        self.target = map_tensors(lambda tensor: tensor.detach().clone(), self._theta(self.critic))
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

    @abstractmethod
    def _hold(self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None) -> tuple[Step, Theta]:
        """Return the gradient step of networks, or pairs of them, with initial parameters ``rows`` (R K ... P).

        The second value is the same parameters in the form that ``act`` takes.
        """

    @abstractmethod
    def _theta(self, step: Any) -> Theta:
        """Return the networks of ``step`` in the form that the losses take."""

    @abstractmethod
    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        """Return tensors of all networks of a kind, ``count`` per run, as a row for each network."""

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Return the policy in training, for a team of any size; it is stochastic with or without ``explore``.

        It evaluates all agents at once or, with ``acting=loop``, in turn.
        """
        networks = assign_networks(self.spec, spec, self.config.share)
        padding = padded_actions(spec, self.updates.device)

        @torch.no_grad()
        def at_once(
            obs: Any, noise: Tensor | None, networks: tuple[int, ...] = networks, padding: Tensor | None = padding
        ) -> Tensor:
            return self._act(self.actor_net, self.config, self.acting_parameters, obs, noise, networks, padding)

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
        """Return a copy of the actors' parameters, the argument of ``load_policy``."""
        return self._table(list_tensors(self._theta(self.actor)), self.count).detach().clone()

    def update_noise(self, rng: Streams, rows: int) -> UpdateNoise:
        """Draw the noise of one update on ``rows`` rows per run."""
        names = ("next_action", "action")
        return UpdateNoise(**{name: acting_noise(rng, name, rows, self.spec) for name in names})

    def update(self, batch: Batch, noise: UpdateNoise) -> Update:
        """Take one step of all critics, then of all actors and temperatures."""
        config = self.config
        if self.rate is not None and config.lr_to is not None:  # not in compiled code, which loses this write
            self.rate.copy_(linear(self.updates, config.lr_to, config.lr_updates))
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
        theta, rows, weight = self._theta, Rows(data, 1), weights(data)
        with torch.no_grad():
            target = self._targets(
                theta(self.actor),
                self.target,
                theta(self.temperature),
                rows,
                Rows(noise.next_action, 1),
                Rows(batch.discount, 1),
            )
        critics, critic_norm = self.critic(
            self._critic_loss, theta(self.critic), rows, Rows(target, 2), Rows(batch.weight, 1)
        )
        critic, log_alpha = (map_tensors(torch.detach, theta(step)) for step in (self.critic, self.temperature))
        actors, actor_norm = self.actor(
            self._actor_loss, theta(self.actor), critic, log_alpha, rows, Rows(noise.action, 1)
        )
        above, limits = self._excess_entropy(data, actors["log_prob"], weight)
        self.temperature(self.temperature_loss, theta(self.temperature), above)
        with torch.no_grad():
            for old, new in zip(list_tensors(self.target), list_tensors(theta(self.critic)), strict=True):
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
            "alpha": self._table(list_tensors(theta(self.temperature)), self.count)[..., 0].detach().exp(),
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
            for name, part in self._parts().items():
                state, count = part.state_dict(), self._count(name)
                for key in ("parameter", *MOMENTS[1:]):
                    tensors = [tensor for own, tensor in state.items() if own.split(".")[-1] == key]
                    tables[f"{name}.{key}"] = self._table(tensors, count)
            tables["target.parameter"] = self._table(list_tensors(self.target), self.pairs)
        else:
            tables = update.metrics
        axes = {"target_share": "R", **self._axes}
        return {k: (v, axes.get(k) or axes.get(k.partition(".")[0], "R A")) for k, v in tables.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, target critics and the states of the optimizers."""
        parts = self._parts().items()
        state = {f"{name}.{key}": value for name, part in parts for key, value in part.state_dict().items()}
        return state | self._other_state()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``, also one of networks in another form."""
        for name, part in self._parts().items():
            own = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
            part.load_state_dict(convert(own, part.state_dict(), self.runs * self._count(name)))
        own, targets = self._other_state(), [name for name in state if name.partition(".")[0] == "target"]
        likes = list_tensors(self.target)
        if targets and [state[name].dim() for name in targets] != [each.dim() for each in likes]:
            targets.sort(key=lambda name: number_of(name.removeprefix("target.")))
            parts = from_rows(to_rows([state[name] for name in targets], self.runs * self.pairs), likes)
            state = {**state, **dict(zip((name for name in own if "target" in name), parts, strict=True))}
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def _count(self, part: str) -> int:
        """Return the number of networks, or of pairs of them, of a run."""
        return self.pairs if part == "critic" else self.count

    def _parts(self) -> dict[str, Step]:
        return {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}

    def _other_state(self) -> dict[str, Tensor]:
        tensors = list_tensors(self.target)
        targets = {"target": tensors[0]} if len(tensors) == 1 else {f"target.{n}": t for n, t in enumerate(tensors)}
        rewards = {} if self.rewards is None else self.rewards.state_dict()
        updates = {} if self.rate is None else {"updates": self.updates}
        return targets | {f"rewards.{name}": tensor for name, tensor in rewards.items()} | updates


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


def load_policy(config: MASACConfig, trained: EnvSpec, team: EnvSpec, parameters: Float[Tensor, "R K P"]) -> Policy:
    """Return the policy of saved parameters, for a team that may differ in size from the one trained."""
    networks, net = assign_networks(trained, team, config.share), actor_net(trained, config.hidden)
    padding = padded_actions(team, parameters.device)

    @torch.no_grad()
    def policy(obs: Any, noise: Tensor | None) -> Tensor:
        return act(net, config, parameters.flatten(0, 1), obs, noise, networks, padding)

    return policy
