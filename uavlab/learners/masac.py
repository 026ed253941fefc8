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

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Numbers, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Inputs, Transition, Update
from uavlab.nets.stacked import StackedMLP
from uavlab.ops.densities import squashed_gaussian
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
    gamma: Annotated[float, Ge(0), Le(1)] = 0.9
    tau: Annotated[float, Gt(0), Le(1)] = 0.01
    lr: Annotated[float, Gt(0), Le(1)] = 1e-3
    critic_lr: Annotated[float, Gt(0), Le(1)] = 3e-3
    alpha_lr: Annotated[float, Gt(0), Le(1)] = 3e-4
    alpha: Annotated[float, Gt(0)] = 1.0
    clip: Annotated[float, Gt(0)] = 1.0
    target_entropy: float = -2.0
    reward_scale: Annotated[float, Gt(0)] = 1.0
    log_std_low: Annotated[float, Ge(-20), Le(0)] = -5.0
    log_std_high: Annotated[float, Ge(0), Le(4)] = 2.0
    share: bool = True


@dataclass(frozen=True)
class UpdateNoise:
    """Standard normal noise of one update: for the next actions of the target, and for the actor loss."""

    next_action: Float[Tensor, "R N A D"]
    action: Float[Tensor, "R N A D"]


BY_NETWORK = ("actor", "temperature", "actor_norm", "alpha")  # rows of networks that agents may share


class MASAC:
    """Batched learner over R runs; its state is four matrices and three Adams."""

    def __init__(self, config: MASACConfig, spec: EnvSpec, inputs: Inputs, rng: Streams, rt: Runtime) -> None:
        """Draw first parameters from each run's own stream."""
        self.config, self.spec, self.runs = config, spec, len(rng.seeds)
        self.networks = assign(spec, spec, config.share)
        self.actor_net = StackedMLP(spec.obs, config.hidden, 2 * spec.action)
        self.critic_net = StackedMLP(spec.agents * (spec.obs + spec.action), config.hidden, 1)
        actor, critic = initial_parameters(self.actor_net, self.critic_net, self.networks, inputs, rng)
        self.actor = rt.grad(actor.flatten(0, 1), config.lr, config.clip)
        self.critic = rt.grad(critic.flatten(2).flatten(0, 1), config.critic_lr, config.clip)
        start = actor.new_full((actor.shape[0] * actor.shape[1], 1), config.alpha).log()
        self.temperature = rt.grad(start, config.alpha_lr, None)
        self.target = self.critic.parameter.detach().clone()
        self._act = rt.kernel(sample, "act")
        self._targets = rt.kernel(self.targets, "targets")
        self._critic_loss = rt.kernel(self.critic_loss, "critic_loss")
        self._actor_loss = rt.kernel(self.actor_loss, "actor_loss")
        self._axes = {} if self.networks == tuple(range(spec.agents)) else dict.fromkeys(BY_NETWORK, "R K")
        self.update = rt.update(self._update, "masac")

    def policy(self, spec: EnvSpec) -> Policy:
        """Give the policy in training, for a team that may differ in size from the one trained.

        Raises:
            ConfigError: The team has agents for which no network was trained, or other observations or actions.
        """
        networks = assign(self.spec, spec, self.config.share)

        @torch.no_grad()
        def act(obs: Tensor, noise: Tensor | None) -> Tensor:
            return self._act(self.actor_net, self.config, self.actor.parameter, obs, noise, networks)[0]

        return act

    def parameters(self) -> Float[Tensor, "R K P"]:
        """Copy the actors, run by run: what ``policy`` needs to fly again."""
        return self.actor.parameter.detach().clone().view(self.runs, -1, self.actor_net.count)

    def update_noise(self, rng: Streams, rows: int) -> UpdateNoise:
        """Draw the noise of one update on ``rows`` rows per run."""
        shape = (rows, self.spec.agents, self.spec.action)
        return UpdateNoise(next_action=rng.normal("next_action", *shape), action=rng.normal("action", *shape))

    def _update(self, batch: Batch, noise: UpdateNoise) -> Update:
        data: Transition = batch.data
        with torch.no_grad():
            target = self._targets(self.actor.parameter, self.target, self.temperature.parameter, data, noise)
        critics, critic_norm = self.critic(self._critic_loss, data, target, batch.weight)
        actors, actor_norm = self.actor(
            self._actor_loss, self.critic.parameter.detach(), self.temperature.parameter.detach(), data, noise
        )
        self.temperature(self.temperature_loss, actors["log_prob"])
        with torch.no_grad():
            self.target.lerp_(self.critic.parameter, self.config.tau)
        metrics = {  # in the order of cause: the first that is not finite is to blame
            "target": target.mean(2),
            **critics,
            "critic_norm": critic_norm.view(self.runs, -1),
            "entropy": -actors.pop("log_prob"),
            **actors,
            "actor_norm": actor_norm.view(self.runs, -1),
            "alpha": self.temperature.parameter.detach().exp().view(self.runs, -1),
        }
        return Update(metrics)

    def numbers(self, update: Update | None = None) -> Numbers:
        """Name all parameters and moments, or all that ``update`` returned."""
        if update is None:
            state = self.state_dict()
            state["target.parameter"] = state.pop("target")  # not to be taken for the targets of an update
            given = {k: v.view(self.runs, -1, v.shape[1]) for k, v in state.items() if v.dim() == 2}
        else:
            given = update.metrics
        return {k: (v, self._axes.get(k.partition(".")[0], "R A")) for k, v in given.items()}

    def value(
        self, theta: Float[Tensor, "G P2"], obs: Float[Tensor, "R N A O"], action: Float[Tensor, "R _ N J"]
    ) -> Float[Tensor, "R A 2 N"]:
        """Evaluate both critics of every agent on joint actions (one per agent, or one for all)."""
        runs, rows, agents, _ = obs.shape
        joint = torch.cat((obs.flatten(2)[:, None].expand(-1, action.shape[1], -1, -1), action), -1)
        x = joint[:, :, None].expand(runs, agents, 2, rows, -1).reshape(runs * agents * 2, rows, -1)
        return self.critic_net(theta.view(runs * agents * 2, -1), x).view(runs, agents, 2, rows)

    def targets(
        self, actor: Tensor, target: Tensor, log_alpha: Tensor, data: Transition, noise: UpdateNoise
    ) -> Float[Tensor, "R A N"]:
        """Compute y_i; nothing is bootstrapped where an agent's task ended."""
        action, log_prob = self._sample(actor, data.next_obs, noise.next_action)
        q = self.value(target, data.next_obs, action.flatten(2)[:, None]).amin(2)
        soft = q - self._alpha(log_alpha) * log_prob.transpose(1, 2)
        alive = (~data.terminated).to(q.dtype).transpose(1, 2)
        reward = self.config.reward_scale * data.reward.transpose(1, 2)
        return torch.addcmul(reward, alive, soft, value=self.config.gamma)

    def critic_loss(
        self, critic: Tensor, data: Transition, target: Float[Tensor, "R A N"], weight: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum over runs, agents and critics the mean squared error over rows, weighted if weights are given."""
        q = self.value(critic, data.obs, data.action.flatten(2)[:, None])
        error = (q - target[:, :, None]).square()
        if weight is not None:
            error = error * weight[:, None, None]
        each = error.mean(3)
        return each.sum(), {"q": q.detach().mean((2, 3)), "critic_loss": each.detach().sum(2)}

    def actor_loss(
        self, actor: Tensor, critic: Tensor, log_alpha: Tensor, data: Transition, noise: UpdateNoise
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum over runs and agents of the soft value that each agent's own action loses."""
        action, log_prob = self._sample(actor, data.obs, noise.action)
        agents = action.shape[2]
        own = torch.eye(agents, dtype=torch.bool, device=action.device)[:, None, :, None]  # A 1 A 1
        joint = torch.where(own, action[:, None], action.detach()[:, None])  # R A N A D
        q = self.value(critic, data.obs, joint.flatten(3)).amin(2)
        log_prob = log_prob.transpose(1, 2)
        each = (self._alpha(log_alpha) * log_prob - q).mean(2)
        return each.sum(), {"actor_loss": each.detach(), "log_prob": log_prob.detach().mean(2)}

    def temperature_loss(self, log_alpha: Tensor, log_prob: Float[Tensor, "R A"]) -> tuple[Tensor, dict[str, Tensor]]:
        """Steer each temperature so that its agents' entropy meets the target."""
        each = per_agent(log_alpha, self.runs, self.networks)[..., 0]
        return -(each * (log_prob + self.config.target_entropy)).sum(), {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, target critics and Adams."""
        parts = {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}
        state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
        return {**state, "target": self.target}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        parts = {"actor": self.actor, "critic": self.critic, "temperature": self.temperature}
        for name, part in parts.items():
            part.load_state_dict({k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")})
        self.target.copy_(state["target"])

    def _sample(self, theta: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return sample(self.actor_net, self.config, theta, obs, noise, self.networks)

    def _alpha(self, log_alpha: Tensor) -> Float[Tensor, "R A 1"]:
        return per_agent(log_alpha, self.runs, self.networks).exp()


def sample(
    net: StackedMLP,
    config: MASACConfig,
    theta: Float[Tensor, "G P"],
    obs: Float[Tensor, "R N A O"],
    noise: Float[Tensor, "R N A D"] | None,
    networks: tuple[int, ...],
) -> tuple[Float[Tensor, "R N A D"], Float[Tensor, "R N A"]]:
    """Act from noise (or with the mean action), with log densities: the one definition of the policy."""
    runs, rows, agents, features = obs.shape
    weights = per_agent(theta, runs, networks).flatten(0, 1)
    flat = obs.transpose(1, 2).reshape(runs * agents, rows, features)
    out = net(weights, flat).view(runs, agents, rows, -1).transpose(1, 2)
    mean, log_std = out.chunk(2, -1)
    if noise is None:
        return torch.tanh(mean), mean.new_zeros(runs, rows, agents)
    return squashed_gaussian(mean, log_std.clamp(config.log_std_low, config.log_std_high), noise)


def kept_policy(config: MASACConfig, trained: EnvSpec, flown: EnvSpec, parameters: Float[Tensor, "R K P"]) -> Policy:
    """Fly kept actors, for a team that may differ in size from the one trained.

    Raises:
        ConfigError: The team has agents for which no network was trained, or other observations or actions.
    """
    networks = assign(trained, flown, config.share)
    net = StackedMLP(trained.obs, config.hidden, 2 * trained.action)

    @torch.no_grad()
    def act(obs: Tensor, noise: Tensor | None) -> Tensor:
        return sample(net, config, parameters.flatten(0, 1), obs, noise, networks)[0]

    return act


def per_agent(rows: Float[Tensor, "G P"], runs: int, networks: tuple[int, ...]) -> Float[Tensor, "R A P"]:
    """Hand each agent its network's row."""
    table = rows.view(runs, -1, rows.shape[1])
    if networks == tuple(range(table.shape[1])):
        return table
    return torch.cat([table[:, n : n + 1] for n in networks], 1)


def assign(trained: EnvSpec, flown: EnvSpec, share: bool) -> tuple[int, ...]:
    """Assign each agent of ``flown`` the row of a network: its group's if networks are shared, else its own.

    A team of another size whose agents each had their own network flies the network of its groups' first agents.

    Raises:
        ConfigError: There is no network for some agent, or observations or actions differ.
    """
    if (flown.obs, flown.action) != (trained.obs, trained.action) or not set(flown.groups) <= set(trained.groups):
        raise ConfigError(
            f"policy: a team of groups {flown.groups} with {flown.obs} observations and {flown.action} actions cannot "
            f"fly networks of groups {trained.groups} with {trained.obs} and {trained.action}; expected agents of "
            "trained groups that see and do the same."
        )
    if not share and flown.agents == trained.agents:
        return tuple(range(flown.agents))
    rows = sorted(set(trained.groups)) if share else list(trained.groups)
    return tuple(rows.index(group) for group in flown.groups)


def initial_parameters(
    actor: StackedMLP, critic: StackedMLP, networks: tuple[int, ...], inputs: Inputs, rng: Streams
) -> tuple[Float[Tensor, "R K P"], Float[Tensor, "R A 2 Q"]]:
    """Draw the first actors (one per network) and pairs of critics (one per agent) of every run."""
    runs, agents, _ = inputs.center.shape
    first = [networks.index(network) for network in sorted(set(networks))]  # an agent that stands for its network
    actors = actor.initial(
        rng.uniform("actor", len(first), actor.count), inputs.center[:, first], inputs.scale[:, first]
    )
    still = inputs.center.new_zeros(runs, critic.inputs - inputs.center[0].numel())  # actions: centred, of unit scale
    center = torch.cat((inputs.center.flatten(1), still), 1)[:, None, None].expand(-1, agents, 2, -1)
    scale = torch.cat((inputs.scale.flatten(1), still + 1), 1)[:, None, None].expand(-1, agents, 2, -1)
    return actors, critic.initial(rng.uniform("critic", agents, 2, critic.count), center, scale)
