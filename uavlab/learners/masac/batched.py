"""Multi-agent soft actor-critic, all agents, twin critics and runs in one batched product per layer.

Equations, in order of use (agent i, discount gamma, temperature alpha_i, joint observation s and action a):

* target      y_i = r_i + gamma (1 - d_i) (min_k Q'_ik(s', a') - alpha_i log pi_i(a'_i | o'_i))         ``targets``
* critics     minimize the mean of (Q_ik(s, a) - y_i)^2 over rows and both critics k                  ``critic_loss``
* actor       minimize the mean of alpha_i log pi_i(a_i | o_i) - min_k Q_ik(s, a), only a_i varying      ``actor_loss``
* temperature minimize -log alpha_i (log pi_i + target entropy)                                    ``temperature_loss``
* targets     theta' <- theta' + tau (theta - theta')                                               ``MASAC.update``

All losses are computed from the parameters at the start of their phase: all critics, then all actors and temperatures
against the updated critics. Other agents' actions in the actor loss are their current policy's, detached.

Source:
    Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"; joint critics as in Lowe et al. 2017,
    "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.core.protocols import CheckedTensors, Policy
from uavlab.core.registry import Resume
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Inputs, Transition, Update
from uavlab.learners.masac.networks import Theta, assign, each, initial_parameters, per_agent, tensors
from uavlab.nets.mlp import StackedMLP
from uavlab.ops.action_sampling import squashed_gaussian
from uavlab.runtime.compiled_step import CompiledStep
from uavlab.runtime.grad_step import MOMENTS, GradientStep, Rows
from uavlab.runtime.runtime import Runtime


@dataclass(frozen=True)
class MASACConfig:
    """Hyper-parameters.

    Attributes:
        hidden: Width of the hidden layers.
        gamma: Discount per step.
        tau: Share of the way that target critics move per update.
        lr: Adam's learning rate of the actors.
        critic_lr: Adam's learning rate of the critics.
        alpha_lr: Adam's learning rate of the log temperatures.
        alpha: First temperature.
        clip: Largest gradient norm of one agent's actor, and of its pair of critics.
        target_entropy: Entropy that the temperature steers the policy to (nats per agent).
        reward_scale: Factor on rewards in the target.
        log_std_low: Smallest log standard deviation of the Gaussian before squashing.
        log_std_high: Largest log standard deviation.
        share: Interchangeable agents share one actor; otherwise each has its own.
    """

    hidden: Annotated[int, Ge(1), Le(4096)] = 256
    gamma: Annotated[float, Ge(0), Le(1), Resume.YES] = 0.9
    tau: Annotated[float, Gt(0), Le(1), Resume.YES] = 0.01
    lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 1e-3
    critic_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 3e-3
    alpha_lr: Annotated[float, Gt(0), Le(1), Resume.YES] = 3e-4
    alpha: Annotated[float, Gt(0)] = 1.0
    clip: Annotated[float, Gt(0), Resume.YES] = 1.0
    target_entropy: Annotated[float, Resume.YES] = -2.0
    reward_scale: Annotated[float, Gt(0), Resume.YES] = 1.0
    log_std_low: Annotated[float, Ge(-20), Le(0)] = -5.0
    log_std_high: Annotated[float, Ge(0), Le(4)] = 2.0
    share: bool = True


@dataclass(frozen=True)
class UpdateNoise:
    """Standard normal noise of one update: for the next actions of the target, and for the actor loss."""

    next_action: Float[Tensor, "R N A D"]
    action: Float[Tensor, "R N A D"]


Step = GradientStep | CompiledStep

Evaluate = Callable[[Theta, Float[Tensor, "G N I"]], Float[Tensor, "G N out"]]
"""Network g of some on rows x[g]."""

Unpack = Callable[[Float[Tensor, "G P"]], list[Tensor]]
"""Rows of parameters to the tensors of their layers, each with the leading axis G."""

BY_NETWORK = ("actor", "temperature", "actor_norm", "alpha")  # rows of networks that agents may share


class MASAC:
    """Learner over R runs whose state is four matrices and three Adams.

    Subclasses make the same update with networks that are held, and evaluated, in another form.
    """

    def __init__(
        self,
        config: MASACConfig,
        spec: EnvSpec,
        inputs: Inputs,
        rng: Streams,
        rt: Runtime,
        acting: Literal["loop", "batched"] = "batched",
    ) -> None:
        """Draw first parameters from each run's own stream; ``acting`` is how the policy in training flies."""
        self.config, self.spec, self.runs, self.acting = config, spec, len(rng.seeds), acting
        self.networks = assign(spec, spec, config.share)
        self.count = len(set(self.networks))
        actor_net = StackedMLP(spec.obs, config.hidden, 2 * spec.action)
        critic_net = StackedMLP(spec.agents * (spec.obs + spec.action), config.hidden, 1)
        actor, critic = initial_parameters(actor_net, critic_net, self.networks, inputs, rng)
        alpha = actor.new_full((*actor.shape[:2], 1), config.alpha)
        self.actor_net, self.critic_net = self._evaluator(actor_net), self._evaluator(critic_net)
        self.actor, self.flown = self._hold(rt, actor, actor_net.unpack, config.lr, config.clip)
        self.critic, _ = self._hold(rt, critic, critic_net.unpack, config.critic_lr, config.clip)
        self.temperature, _ = self._hold(rt, alpha.log(), lambda rows: [rows], config.alpha_lr, None)
        self.target = each(lambda tensor: tensor.detach().clone(), self._theta(self.critic))
        self._act = rt.kernel(sample, "act")
        self._targets = rt.split_batch(rt.kernel(self.targets, "targets", part=True), "targets", 2)
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss", part=True)
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss", part=True)
        self._axes = {} if self.networks == tuple(range(spec.agents)) else dict.fromkeys(BY_NETWORK, "R K")
        self.update = rt.update(self._update, "masac")

    def policy(self, spec: EnvSpec, explore: bool = False) -> Policy:
        """Give the policy in training, for a team that may differ in size from the one trained; it always explores.

        Raises:
            ConfigError: The team has agents for which no network was trained, or other observations or actions.
        """
        networks = assign(self.spec, spec, self.config.share)

        def act(obs: Tensor, noise: Tensor | None, networks: tuple[int, ...]) -> Tensor:
            return self._act(self.actor_net, self.config, self.flown, obs, noise, networks)[0]

        @torch.no_grad()
        def at_once(obs: Tensor, noise: Tensor | None) -> Tensor:
            return act(obs, noise, networks)

        @torch.no_grad()
        def one_by_one(obs: Tensor, noise: Tensor | None) -> Tensor:
            drawn = [None] * spec.agents if noise is None else noise.split(1, 2)
            alone = zip(obs.split(1, 2), drawn, networks, strict=True)
            return torch.cat([act(seen, own, (network,)) for seen, own, network in alone], 2)

        return at_once if self.acting == "batched" else one_by_one

    def parameters(self) -> Float[Tensor, "R K P"]:
        """Copy the actors, run by run: what ``policy`` needs to fly again."""
        return self._table(tensors(self._theta(self.actor)), self.count).detach().clone()

    def update_noise(self, rng: Streams, rows: int) -> UpdateNoise:
        """Draw the noise of one update on ``rows`` rows per run."""
        shape = (rows, self.spec.agents, self.spec.action)
        return UpdateNoise(next_action=rng.normal("next_action", *shape), action=rng.normal("action", *shape))

    def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
        data: Transition = batch.data
        theta, rows = self._theta, Rows(data, 1)
        with torch.no_grad():
            target = self._targets(
                theta(self.actor), self.target, theta(self.temperature), rows, Rows(noise.next_action, 1)
            )
        critics, critic_norm = self.critic(
            self._critic_loss, theta(self.critic), rows, Rows(target, 2), Rows(batch.weight, 1)
        )
        critic, log_alpha = each(torch.detach, theta(self.critic)), each(torch.detach, theta(self.temperature))
        actors, actor_norm = self.actor(
            self._actor_loss, theta(self.actor), critic, log_alpha, rows, Rows(noise.action, 1)
        )
        self.temperature(self.temperature_loss, theta(self.temperature), actors["log_prob"])
        with torch.no_grad():
            for old, new in zip(tensors(self.target), tensors(theta(self.critic)), strict=True):
                old.lerp_(new, self.config.tau)
        td_error = critics.pop("td_error")
        metrics = {  # in the order of cause: the first that is not finite is to blame
            "target": target.mean(2),
            **critics,
            "critic_norm": critic_norm.view(self.runs, -1),
            "entropy": -actors.pop("log_prob"),
            **actors,
            "actor_norm": actor_norm.view(self.runs, -1),
            "alpha": self._table(tensors(theta(self.temperature)), self.count)[..., 0].detach().exp(),
        }
        return Update(metrics, td_error)

    def tensors_to_check(self, update: Update | None = None) -> CheckedTensors:
        """Name all parameters and moments, a row of each network, or all that ``update`` returned."""
        if update is None:
            given = {}
            for name, part in self._parts().items():
                state, count = part.state_dict(), self.spec.agents if name == "critic" else self.count
                for key in ("parameter", *MOMENTS[1:]):
                    held = [tensor for own, tensor in state.items() if own.split(".")[-1] == key]
                    given[f"{name}.{key}"] = self._table(held, count)
            given["target.parameter"] = self._table(tensors(self.target), self.spec.agents)
        else:
            given = update.metrics
        return {k: (v, self._axes.get(k.partition(".")[0], "R A")) for k, v in given.items()}

    def value(
        self, theta: Theta, obs: Float[Tensor, "R N A O"], action: Float[Tensor, "R _ N J"]
    ) -> Float[Tensor, "R A 2 N"]:
        """Evaluate both critics of every agent on joint actions (one per agent, or one for all)."""
        runs, rows, agents, _ = obs.shape
        joint = torch.cat((obs.flatten(2)[:, None].expand(-1, action.shape[1], -1, -1), action), -1)
        x = joint[:, :, None].expand(runs, agents, 2, rows, -1).reshape(runs * agents * 2, rows, -1)
        return self.critic_net(self._heads(theta), x).view(runs, agents, 2, rows)

    def targets(
        self, actor: Theta, target: Theta, log_alpha: Theta, data: Transition, noise: Float[Tensor, "R N A D"]
    ) -> Float[Tensor, "R A N"]:
        """Compute y_i; nothing is bootstrapped where an agent's task ended."""
        action, log_prob = self._sample(actor, data.next_obs, noise)
        q = self.value(target, data.next_obs, action.flatten(2)[:, None]).amin(2)
        soft = q - self._log_alpha(log_alpha).exp() * log_prob.transpose(1, 2)
        alive = (~data.terminated).to(q.dtype).transpose(1, 2)
        reward = self.config.reward_scale * data.reward.transpose(1, 2)
        return torch.addcmul(reward, alive, soft, value=self.config.gamma)

    def critic_loss(
        self, critic: Theta, data: Transition, target: Float[Tensor, "R A N"], weight: Float[Tensor, "R N"] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum over runs, agents and critics the mean squared error over rows, weighted if weights are given."""
        q = self.value(critic, data.obs, data.action.flatten(2)[:, None])
        error = q - target[:, :, None]
        square = error.square() if weight is None else error.square() * weight[:, None, None]
        mean = square.mean(3)
        td_error = error.detach().abs().mean(2).transpose(1, 2)  # R N A
        metrics = {"q": q.detach().mean((2, 3)), "critic_loss": mean.detach().sum(2), "td_error": Rows(td_error, 1)}
        return mean.sum(), metrics

    def actor_loss(
        self, actor: Theta, critic: Theta, log_alpha: Theta, data: Transition, noise: Float[Tensor, "R N A D"]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum over runs and agents of the soft value that each agent's own action loses."""
        action, log_prob = self._sample(actor, data.obs, noise)
        agents = action.shape[2]
        own = torch.eye(agents, dtype=torch.bool, device=action.device)[:, None, :, None]  # A 1 A 1
        joint = torch.where(own, action[:, None], action.detach()[:, None])  # R A N A D
        q = self.value(critic, data.obs, joint.flatten(3)).amin(2)
        log_prob = log_prob.transpose(1, 2)
        mean = (self._log_alpha(log_alpha).exp() * log_prob - q).mean(2)
        return mean.sum(), {"actor_loss": mean.detach(), "log_prob": log_prob.detach().mean(2)}

    def temperature_loss(self, log_alpha: Theta, log_prob: Float[Tensor, "R A"]) -> tuple[Tensor, dict[str, Any]]:
        """Steer each temperature so that its agents' entropy meets the target."""
        own = self._log_alpha(log_alpha)[..., 0]
        return -(own * (log_prob + self.config.target_entropy)).sum(), {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, target critics and Adams."""
        parts = self._parts().items()
        state = {f"{name}.{key}": value for name, part in parts for key, value in part.state_dict().items()}
        return state | self._target_state()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        for name, part in self._parts().items():
            part.load_state_dict({k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")})
        for name, tensor in self._target_state().items():
            tensor.copy_(state[name])

    def _parts(self) -> dict[str, Step]:
        return {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}

    def _target_state(self) -> dict[str, Tensor]:
        held = tensors(self.target)
        return {"target": held[0]} if len(held) == 1 else {f"target.{n}": tensor for n, tensor in enumerate(held)}

    def _evaluator(self, net: StackedMLP) -> Evaluate:
        """Give what evaluates all networks of a kind."""
        return net

    def _hold(self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None) -> tuple[Step, Theta]:
        """Hold networks, or pairs of them, that start as ``rows`` (R K ... P): for updates, and for ``sample``."""
        step = rt.grad(rows.flatten(2).flatten(0, 1), lr, clip)
        return step, step.parameter

    def _theta(self, step: Any) -> Theta:
        """Give the networks of ``step`` in the form that losses take."""
        return step.parameter

    def _heads(self, theta: Theta) -> Theta:
        """Give both critics of a pair as networks of their own."""
        return theta.view(2 * len(theta), -1)

    def _table(self, held: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        """Lay out tensors of all networks of a kind, ``count`` to a run, as a row for each."""
        return held[0].view(self.runs, count, -1)

    def _sample(self, theta: Theta, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return sample(self.actor_net, self.config, theta, obs, noise, self.networks)

    def _log_alpha(self, log_alpha: Theta) -> Float[Tensor, "R A 1"]:
        (rows,) = tensors(log_alpha)
        return per_agent(rows, self.runs, self.networks)


def sample(
    net: Evaluate,
    config: MASACConfig,
    theta: Theta,
    obs: Float[Tensor, "R N A O"],
    noise: Float[Tensor, "R N A D"] | None,
    networks: tuple[int, ...],
) -> tuple[Float[Tensor, "R N A D"], Float[Tensor, "R N A"]]:
    """Act from noise (or with the mean action), with log densities."""
    runs, rows, agents, features = obs.shape
    weights = each(lambda held: per_agent(held, runs, networks).flatten(0, 1), theta)
    flat = obs.transpose(1, 2).reshape(runs * agents, rows, features)
    return squash(config, net(weights, flat).view(runs, agents, rows, -1).transpose(1, 2), noise)


def squash(
    config: MASACConfig, out: Float[Tensor, "*lead E"], noise: Float[Tensor, "*lead D"] | None
) -> tuple[Float[Tensor, "*lead D"], Float[Tensor, "*lead"]]:
    """Turn what an actor gives, E = 2 D, into actions and log densities: the one definition of the policy."""
    mean, log_std = out.chunk(2, -1)
    if noise is None:
        return torch.tanh(mean), mean.new_zeros(mean.shape[:-1])
    return squashed_gaussian(mean, log_std.clamp(config.log_std_low, config.log_std_high), noise)


def load_policy(config: MASACConfig, trained: EnvSpec, flown: EnvSpec, parameters: Float[Tensor, "R K P"]) -> Policy:
    """Return the policy of trained actors, for a team that may differ in size from the one trained.

    Raises:
        ConfigError: The team has agents for which no network was trained, or other observations or actions.
    """
    networks = assign(trained, flown, config.share)
    net = StackedMLP(trained.obs, config.hidden, 2 * trained.action)

    @torch.no_grad()
    def act(obs: Tensor, noise: Tensor | None) -> Tensor:
        return sample(net, config, parameters.flatten(0, 1), obs, noise, networks)[0]

    return act
