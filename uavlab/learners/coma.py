"""Counterfactual multi-agent policy gradients (COMA), for teams that observe maps and choose moves in turn.

Equations, in order of use (agent i, discount gamma, its move a_i among E, the moves of all others a_-i):

* returns     G_t = r_t + gamma ((1 - lambda) Q'(s_t+1, a_t+1) + lambda G_t+1)  ``COMA.targets``
* critic      minimize the mean of (Q(s, a_-i)[a_i] - G)^2  ``COMA.critic_loss``
* actor       minimize the mean of -A_i log pi_i(a_i) - beta H(pi_i),  ``COMA.actor_loss``
              A_i = Q[a_i] - sum over e of pi_i(e) Q[e]
* target      Q' <- Q after every ``target_every`` updates  ``COMA.update``

All agents share one actor and one critic; their observations identify them. The policy is a softmax over the moves
that are open when an agent's turn comes, mixed with a uniform distribution whose share falls during training.

Source:
    Foerster et al. 2018, "Counterfactual Multi-Agent Policy Gradients"; maps and exploration as in Westheider, Rückin,
    Popović 2023, "Multi-UAV Adaptive Path Planning Using Deep Reinforcement Learning".
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.portable import Portable
from uavlab.core.protocols import Policy
from uavlab.core.registry import LEARNERS, Resume, Settings
from uavlab.core.rng import Streams
from uavlab.core.symptoms import Entropy, Symptoms, higher, longer_view, lower, move_range, times
from uavlab.core.types import Batch, EnvSpec, MapObs, Rollout, Update, tensors, tree_map
from uavlab.learners.learner import Learner
from uavlab.nets.assignment import require_same_task
from uavlab.nets.cnn import StackedCNN
from uavlab.ops.action_sampling import masked_policy, open_moves_in_turn, sample_in_turn
from uavlab.ops.belief_maps import centre_maps
from uavlab.ops.returns import counterfactual_advantage, lambda_returns
from uavlab.ops.schedules import linear, minibatches
from uavlab.runtime.grad_step import Rows
from uavlab.runtime.oom_retry import require_memory
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class COMAConfig:
    """Hyper-parameters.

    Attributes:
        width: Channels of each convolution.
        kernels: Side of each convolution's kernel (cells).
        hidden: Width of the hidden layer after the convolutions.
        gamma: Discount per step.
        lam: Lambda of the returns: 0 for one-step returns, 1 for Monte Carlo returns.
        lr: Adam's learning rate of the actor.
        critic_lr: Adam's learning rate of the critic.
        clip: Largest gradient norm of actor and of critic.
        passes: Passes of an update over its episodes.
        actor_passes: Number of last passes that also update the actor; the published training uses all.
        minibatches: Minibatches of each pass, with one gradient step each; ``auto`` for a number by the agents.
        target_every: Updates between copies of the critic to the target critic.
        entropy: Weight of the policy's entropy in the actor's loss; 0 in the published training.
        explore_from: Initial share of the uniform distribution in the policy.
        explore_to: Final share of the uniform distribution.
        explore_updates: Updates over which the share changes linearly.
    """

    width: Annotated[int, Ge(1), Le(4096)] = 32
    kernels: tuple[Annotated[int, Ge(1), Le(64)], ...] = (5, 4, 4)
    hidden: Annotated[int, Ge(1), Le(4096)] = 64
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.99
    lam: Annotated[float, Ge(0), Le(1)] = 0.8
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 2e-4
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    clip: Annotated[float, Gt(0), Le(1e6), Resume.YES] = 10.0
    passes: Annotated[int, Ge(1), Le(1000)] = 6
    actor_passes: Annotated[int, Ge(1), Le(1000)] = 1
    minibatches: Annotated[int, Ge(1), Le(1000)] = 8
    target_every: Annotated[int, Ge(1), Le(10**6)] = 10
    entropy: Annotated[float, Ge(0), Le(10)] = 0.01
    explore_from: Annotated[float, Ge(0), Le(1)] = 0.3
    explore_to: Annotated[float, Ge(0), Le(1)] = 0.02
    explore_updates: Annotated[int, Ge(1), Le(10**9)] = 400

    labels: ClassVar[dict[str, str]] = {
        "lr": "learning rate",
        "critic_lr": "learning rate of critics",
        "gamma": "discount",
        "lam": "λ of returns",
    }


@tensors
class Samples:
    """Rows of a batch, each a step of one team; ``weight`` is 0 after an agent's task, with mean 1 per run."""

    maps: Float[Tensor, "R N A C L L"]
    critic_input: Float[Tensor, "R N A C+K+1 L L"]
    action: Int[Tensor, "R N A"]
    open: Bool[Tensor, "R N A E"]
    target: Float[Tensor, "R N A"]
    weight: Float[Tensor, "R N A"]


SYMPTOMS = Symptoms(
    entropy=Entropy("entropy", lambda config, spec: move_range(spec), "entropy_limit"),  # with exploration
    loss="critic_loss",
    returns="return",
    remedies={
        "entropy_high": (
            lower("explore_to", 0.1, 0.02),
            times("entropy", 0.1, least=1e-4),
            times("lr", 3, most=1e-2),
        ),
        "entropy_low": (
            lower("lr", 3e-3, 2e-4),
            times("entropy", 10, least=0.01, most=0.1),
            times("explore_to", 3, least=0.05, most=0.2),
            times("lr", 0.3, least=1e-6),
        ),
        "loss_grows": (lower("gamma", 0.99, 0.99), times("critic_lr", 0.3, least=1e-6)),
        "scores_still": (higher("lr", 1e-4, 2e-4), longer_view(), times("lr", 3, most=1e-2)),
    },
)


class COMA(Learner):
    """A learner over R runs; its state is three matrices with a row for each run, two Adams and a count."""

    settings = COMAConfig
    collector = "on_policy"
    on_maps = True
    inapplicable: ClassVar[dict[str, str]] = {"update": "this learner updates all agents at once; use update=batched"}
    portable = Portable(layers=lambda config, spec: networks(config, spec)[0].by_layer)
    symptoms = SYMPTOMS

    @classmethod
    def build(cls, config: Settings, inputs: Any, rng: Streams, rt: Runtime) -> "COMA":
        require_memory(learner_bytes(config), "learner", "width, hidden, worlds or runs", rt.device)
        return cls(config.learner, config.env.spec, rng, rt)

    @classmethod
    def load_policy(cls, hyper: Any, trained: Any, spec: Any, parameters: Float[Tensor, "R 1 P"]) -> Policy:
        require_same_task(trained, spec)
        net = networks(hyper, trained)[0]

        @torch.no_grad()
        def act(obs: MapObs, noise: Tensor | None) -> Tensor:
            return choose(net, parameters[:, 0], obs, noise, 0.0)

        return act

    @classmethod
    def require_same(cls, hyper: Any, trained: Any, spec: Any) -> None:
        require_same_task(trained, spec)

    @classmethod
    def plan(cls, config: Settings) -> dict[str, Any]:
        updates, hyper = config.run.updates, config.learner
        return {"gradient_steps_per_run": None if updates is None else updates * hyper.passes * hyper.minibatches}

    def __init__(self, config: COMAConfig, spec: EnvSpec, rng: Streams, rt: Runtime) -> None:
        self.config, self.spec, self.runs, self.acting = config, spec, len(rng.seeds), rt.toggles.acting
        self.ranks = rt.ranks
        self.actor_net, self.critic_net = networks(config, spec)
        actor = self.actor_net.initial(rng.uniform("actor", self.actor_net.count))
        critic = self.critic_net.initial(rng.uniform("critic", self.critic_net.count))
        self.actor, self.critic = rt.grad(actor, config.lr, config.clip), rt.grad(critic, config.critic_lr, config.clip)
        self.target = critic.clone()
        self.count = torch.zeros((), dtype=torch.int64, device=rng.device)  # updates made
        self._act = rt.kernel(choose, "act")
        self._targets = rt.kernel(self.targets, "targets")
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss", part=True)
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss", part=True)
        self._update_critic = rt.update(self._critic_step, "coma_critic")
        self._update_both = rt.update(self._both_steps, "coma")

    @property
    def explore(self) -> Float[Tensor, ""]:
        """Share of the uniform distribution in the current policy."""
        return linear(self.count, self.config.explore_from, self.config.explore_to, self.config.explore_updates)

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Return the policy in training, for a team of any size, with or without exploration."""
        require_same_task(self.spec, spec)

        @torch.no_grad()
        def act(obs: MapObs, noise: Tensor | None) -> Tensor:
            share = self.explore if explore else 0.0
            return self._act(self.actor_net, self.actor.parameter, obs, noise, share, self.acting == "loop")

        return act

    def update_noise(self, rng: Streams, rows: int) -> Int[Tensor, "R passes rows"]:
        return rng.uniform("shuffle", self.config.passes, rows).argsort(-1)

    def update(self, batch: Batch, noise: Int[Tensor, "R passes rows"]) -> Update:
        with torch.no_grad():
            samples = self._targets(self.target, batch.data)
            explore = self.explore
        critic_passes = noise.shape[1] - min(self.config.actor_passes, noise.shape[1])
        for part in minibatches(samples, noise[:, :critic_passes], self.config.minibatches):
            self._update_critic(part)
        steps = [
            {name: value.clone() for name, value in self._update_both(part, explore).items()}  # graphs reuse results
            for part in minibatches(samples, noise[:, critic_passes:], self.config.minibatches)
        ]
        self.count.add_(1)
        due = (self.count % self.config.target_every == 0).to(self.target.dtype)
        self.target.lerp_(self.critic.parameter.detach(), due)  # weight 1 or 0: reading the count would be a host sync
        limit = samples.open.sum(-1).clamp_min(1).log()
        metrics = {"return": live_mean(samples, samples.target), "entropy_limit": live_mean(samples, limit)}
        metrics |= {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}
        return Update({**metrics, "explore": explore.expand(self.runs)})

    def targets(self, target: Float[Tensor, "R Q"], data: Rollout) -> Samples:
        """Compute critic inputs, lambda returns and open moves of all rows."""
        config, obs = self.config, data.obs
        critic_input = critic_maps(obs, data.action, self.spec.centred)
        value = self.critic_net(target, critic_input.flatten(1, 3)).view(*data.action.shape, -1)
        value = value.gather(-1, data.action[..., None])[:, 1:, ..., 0]  # of the next states
        reward, value, terminated = (each.transpose(0, 1) for each in (data.reward, value, data.terminated))
        returns = lambda_returns(reward, value, terminated, config.gamma, config.lam).transpose(0, 1)
        live = data.live.to(returns.dtype)
        open_ = open_moves_in_turn(obs.legal, obs.target_cell, data.action)
        return tree_map(
            lambda leaf: leaf[:, : returns.shape[1]].flatten(1, 2),
            Samples(
                maps=obs.maps,
                critic_input=critic_input,
                action=data.action,
                open=open_,
                target=returns,
                weight=live / self.ranks.mean(live.mean((1, 2, 3), keepdim=True)),
            ),
        )

    def critic_loss(self, critic: Float[Tensor, "R Q"], rows: Samples) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean squared error over runs; also return the values of all moves."""
        value = self.critic_net(critic, rows.critic_input.flatten(1, 2)).view(*rows.action.shape, -1)
        chosen = value.gather(-1, rows.action[..., None])[..., 0]
        mean = live_mean(rows, (chosen - rows.target).square())
        metrics = {"q": live_mean(rows, chosen.detach()), "critic_loss": mean.detach()}
        return mean.sum(), {**metrics, "value": Rows(value.detach(), 1)}

    def actor_loss(
        self, actor: Float[Tensor, "R P"], rows: Samples, value: Float[Tensor, "R N A E"], explore: Float[Tensor, ""]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean loss -A_i log pi_i(a_i) - beta H(pi_i) over runs."""
        logits = self.actor_net(actor, rows.maps.flatten(1, 2)).view(*rows.action.shape, -1)
        chance = masked_policy(logits, rows.open, explore)
        index = rows.action[..., None]
        advantage = counterfactual_advantage(value, chance.detach(), value.gather(-1, index)[..., 0])
        log_prob = chance.clamp_min(1e-12).log()
        entropy = -(chance * log_prob).sum(-1)
        objective = advantage * log_prob.gather(-1, index)[..., 0] + self.config.entropy * entropy
        mean = -live_mean(rows, objective)
        metrics = {"advantage": live_mean(rows, advantage.abs()), "actor_loss": mean.detach()}
        return mean.sum(), {**metrics, "entropy": live_mean(rows, entropy.detach())}

    def _critic_step(self, rows: Samples) -> tuple[dict[str, Float[Tensor, " R"]], Float[Tensor, "R N A E"]]:
        """Take one step of the critic; return metrics and the values before the step."""
        critics, norm = self.critic(self._critic_loss, self.critic.parameter, Rows(rows, 1))
        value = critics.pop("value")
        return {**critics, "critic_norm": norm}, value.value if isinstance(value, Rows) else value

    def _both_steps(self, rows: Samples, explore: Tensor) -> dict[str, Float[Tensor, " R"]]:
        """Take one step of the critic, and one of the actor with the critic's values before its step."""
        critics, value = self._critic_step(rows)
        actors, actor_norm = self.actor(self._actor_loss, self.actor.parameter, Rows(rows, 1), Rows(value, 1), explore)
        return {**critics, **actors, "actor_norm": actor_norm}


def live_mean(rows: Samples, x: Float[Tensor, "R N A"]) -> Float[Tensor, " R"]:
    """Return the mean of each run over rows before the end of an agent's task."""
    return (rows.weight * x).mean((1, 2))


def networks(config: COMAConfig, spec: EnvSpec) -> tuple[StackedCNN, StackedCNN]:
    """Return actor and critic networks; the critic also observes the team's maps and the other agents' choices."""
    shape = (spec.side, config.width, config.kernels, config.hidden, spec.choices)
    return StackedCNN(spec.obs, *shape), StackedCNN(spec.obs + spec.team + 1, *shape)


def critic_maps(
    obs: Any, action: Int[Tensor, "*lead A"], centred_maps: bool = False
) -> Float[Tensor, "*lead A C+K+1 L L"]:
    """Stack the critic's input of each agent: its maps, the team's, and (e + 1) / E at others with choice e of E."""
    side, agents, choices = obs.maps.shape[-1], action.shape[-1], obs.legal.shape[-1]
    shade = (action + 1).to(obs.maps.dtype) / choices
    spots = torch.zeros(*action.shape, side * side, dtype=shade.dtype, device=shade.device)
    spots = spots.scatter(-1, obs.place[..., None], shade[..., None]).unflatten(-1, (side, side))
    others = spots.sum(-3, keepdim=True) - spots
    more = others[..., None, :, :]
    if obs.team is not None:
        team = obs.team[..., None, :, :, :].expand(*action.shape[:-1], agents, *obs.team.shape[-3:])
        more = torch.cat((team, more), -3)
    return torch.cat((obs.maps, centre_maps(more, obs.place) if centred_maps else more), -3)


def choose(
    net: StackedCNN,
    theta: Float[Tensor, "R P"],
    obs: Any,
    noise: Float[Tensor, "R W A"] | None,
    explore: Tensor | float,
    one_by_one: bool = False,
) -> Int[Tensor, "R W A"]:
    """Sample the moves of all agents in turn; without ``noise`` choose the most probable."""
    runs, worlds, agents = obs.place.shape
    if one_by_one:
        logits = torch.stack([net(theta, maps) for maps in obs.maps.unbind(2)], 2)
    else:
        logits = net(theta, obs.maps.flatten(1, 2)).view(runs, worlds, agents, -1)
    return sample_in_turn(logits, obs.legal, obs.target_cell, noise, explore)


def learner_bytes(config: Settings) -> int:
    """Return a lower bound of the learner's memory (bytes): networks, and the activations of one minibatch."""
    spec, hyper = config.env.spec, config.learner
    actor, critic = networks(hyper, spec)
    rows = -(-spec.horizon * config.source.worlds // hyper.minibatches) * spec.agents
    activations = rows * hyper.width * spec.side**2 * len(hyper.kernels)
    return 4 * config.run.runs * (4 * actor.count + 5 * critic.count + activations)


LEARNERS.register("coma", COMA)
