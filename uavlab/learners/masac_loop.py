"""The plain reference of ``masac``: one network, one optimizer and one loss per agent, one agent after the other.

It computes the same numbers with the same equations. As in the method's usual description every agent evaluates all
actors again in both phases, 2 N^2 evaluations where 2 N are needed; otherwise it wastes nothing, because a slow
reference would flatter every ratio.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from uavlab.core.errors import ConfigError
from uavlab.core.protocols import Numbers, Policy
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, EnvSpec, Inputs, Transition, Update
from uavlab.learners.masac import MASACConfig, UpdateNoise, assign, initial_parameters, kept_policy
from uavlab.nets.stacked import StackedMLP
from uavlab.ops.densities import squashed_gaussian
from uavlab.runtime.grad import ADAM_EPS, MOMENTS
from uavlab.runtime.runtime import Runtime


class MASACLoop:
    """One run, one network per agent."""

    def __init__(self, config: MASACConfig, spec: EnvSpec, inputs: Inputs, rng: Streams, rt: Runtime) -> None:
        """Draw the same first parameters as the batched learner does from the same seed.

        Raises:
            ConfigError: More than one run, or agents that share a network.
        """
        if len(rng.seeds) != 1 or (config.share and len(set(spec.groups)) < spec.agents):
            raise ConfigError(
                f"MASACLoop: got {len(rng.seeds)} runs and share={config.share} for groups {spec.groups}; the loop "
                "holds one run and one network per agent. Use --runs 1 and share=false, or the batched learner."
            )
        self.config, self.spec = config, spec
        actor = StackedMLP(spec.obs, config.hidden, 2 * spec.action)
        critic = StackedMLP(spec.agents * (spec.obs + spec.action), config.hidden, 1)
        drawn = initial_parameters(actor, critic, tuple(range(spec.agents)), inputs, rng)
        actor_rows, critic_rows = drawn[0][0], drawn[1][0]
        self.actors = [network(actor, row) for row in actor_rows]
        self.critics = [nn.ModuleList(network(critic, row) for row in pair) for pair in critic_rows]
        self.targets = [nn.ModuleList(network(critic, row) for row in pair) for pair in critic_rows]
        start = actor_rows.new_full((1,), config.alpha).log()
        self.log_alphas = [nn.Parameter(start.clone()) for _ in range(spec.agents)]
        self.actor_adams = [adam(net.parameters(), config.lr) for net in self.actors]
        self.critic_adams = [adam(net.parameters(), config.critic_lr) for net in self.critics]
        self.alpha_adams = [adam([log_alpha], config.alpha_lr) for log_alpha in self.log_alphas]

    def policy(self, spec: EnvSpec) -> Policy:
        """Give the policy in training, agent by agent; a team of another size flies it as it is now.

        Raises:
            ConfigError: The team has agents for which no network was trained, or other observations or actions.
        """
        if spec.agents != self.spec.agents:
            return kept_policy(self.config, self.spec, spec, self.parameters())
        assign(self.spec, spec, self.config.share)

        @torch.no_grad()
        def act(obs: Tensor, noise: Tensor | None) -> Tensor:
            each = [self._sample(i, obs[0], None if noise is None else noise[0])[0] for i in range(spec.agents)]
            return torch.stack(each, 1)[None]

        return act

    def parameters(self) -> Float[Tensor, "1 A P"]:
        """Copy the actors in the batched learner's layout."""
        return torch.stack([row(net) for net in self.actors])[None]

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, targets and Adams."""
        state = {name: parameter.detach() for name, parameter in self._named()}
        for name, adam in self._adams():
            for i, moments in enumerate(adam.state.values()):
                state |= {f"{name}.{i}.{key}": value for key, value in moments.items()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where ``state_dict`` was taken."""
        with torch.no_grad():
            for name, parameter in self._named():
                parameter.copy_(state[name])
        for name, adam in self._adams():
            for i, parameter in enumerate(adam.param_groups[0]["params"]):
                own = {
                    k: state[f"{name}.{i}.{k}"].to(parameter.device).clone()
                    for k in MOMENTS
                    if f"{name}.{i}.{k}" in state
                }
                adam.state.pop(parameter, None)
                if own:
                    adam.state[parameter] = own

    def update_noise(self, rng: Streams, rows: int) -> UpdateNoise:
        """Draw the same noise as the batched learner."""
        shape = (rows, self.spec.agents, self.spec.action)
        return UpdateNoise(next_action=rng.normal("next_action", *shape), action=rng.normal("action", *shape))

    def update(self, batch: Batch, noise: UpdateNoise) -> Update:
        """Update every critic, then every actor and temperature, then every target."""
        data: Transition = batch.data
        goals = [self._target(i, data, noise.next_action[0]) for i in range(self.spec.agents)]
        critics = [(goal.mean(), *self._critic_step(i, data, goal)) for i, goal in enumerate(goals)]
        losses = [self._actor_loss(i, data, noise.action[0]) for i in range(self.spec.agents)]
        actors = [self._actor_step(i, loss, log_prob) for i, (loss, log_prob) in enumerate(losses)]
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.lerp_(new, self.config.tau)
        names = ("target", "critic_loss", "critic_norm", "entropy", "actor_loss", "actor_norm")
        columns = [*zip(*critics, strict=True), *zip(*actors, strict=True)]
        return Update({name: torch.stack(each)[None] for name, each in zip(names, columns, strict=True)})

    def numbers(self, update: Update | None = None) -> Numbers:
        """Name all parameters and moments, agent by agent, or all that ``update`` returned."""
        if update is not None:
            return {name: (value, "R A") for name, value in update.metrics.items()}
        tables = {"target.parameter": [flat(pair.parameters()) for pair in self.targets]}
        kinds = {"actor": self.actor_adams, "critic": self.critic_adams, "temperature": self.alpha_adams}
        for kind, adams in kinds.items():
            tables[f"{kind}.parameter"] = [flat(adam.param_groups[0]["params"]) for adam in adams]
            for key in MOMENTS[1:] if adams[0].state else ():
                tables[f"{kind}.{key}"] = [flat(moments[key] for moments in adam.state.values()) for adam in adams]
        return {name: (torch.stack(rows)[None], "R A") for name, rows in tables.items()}

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for kind, nets in (("actor", self.actors), ("critic", self.critics), ("target", self.targets)):
            for agent, net in enumerate(nets):
                yield from ((f"{kind}{agent}.{name}", parameter) for name, parameter in net.named_parameters())
        yield from ((f"log_alpha{agent}", value) for agent, value in enumerate(self.log_alphas))

    def _adams(self) -> Iterator[tuple[str, torch.optim.Adam]]:
        for kind, adams in (("actor", self.actor_adams), ("critic", self.critic_adams), ("alpha", self.alpha_adams)):
            yield from ((f"{kind}_adam{agent}", adam) for agent, adam in enumerate(adams))

    def _sample(self, agent: int, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actors[agent](obs[:, agent]).chunk(2, -1)
        if noise is None:
            return torch.tanh(mean), mean[:, 0]
        log_std = log_std.clamp(self.config.log_std_low, self.config.log_std_high)
        return squashed_gaussian(mean, log_std, noise[:, agent])

    def _target(self, agent: int, data: Transition, noise: Tensor) -> Float[Tensor, " N"]:
        with torch.no_grad():
            drawn = [self._sample(j, data.next_obs[0], noise) for j in range(self.spec.agents)]
            q = self._value(self.targets[agent], data.next_obs[0], [action for action, _ in drawn])
            soft = q.amin(0) - self.log_alphas[agent].exp() * drawn[agent][1]
            alive = (~data.terminated[0, :, agent]).to(soft.dtype)
            reward = self.config.reward_scale * data.reward[0, :, agent]
            return torch.addcmul(reward, alive, soft, value=self.config.gamma)

    def _critic_step(self, agent: int, data: Transition, goal: Tensor) -> tuple[Tensor, Tensor]:
        q = self._value(self.critics[agent], data.obs[0], [data.action[0].flatten(1)])
        loss = (q - goal).square().mean(1).sum()
        norm = descend(loss, self.critics[agent].parameters(), self.critic_adams[agent], self.config.clip)
        return loss.detach(), norm

    def _actor_loss(self, agent: int, data: Transition, noise: Tensor) -> tuple[Tensor, Tensor]:
        drawn = [self._sample(j, data.obs[0], noise) for j in range(self.spec.agents)]
        joint = [action if j == agent else action.detach() for j, (action, _) in enumerate(drawn)]
        self.critics[agent].requires_grad_(False)
        q = self._value(self.critics[agent], data.obs[0], joint).amin(0)
        self.critics[agent].requires_grad_(True)
        log_prob = drawn[agent][1]
        return (self.log_alphas[agent].detach().exp() * log_prob - q).mean(), log_prob.detach().mean()

    def _actor_step(self, agent: int, loss: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        norm = descend(loss, self.actors[agent].parameters(), self.actor_adams[agent], self.config.clip)
        alpha_loss = -(self.log_alphas[agent] * (log_prob + self.config.target_entropy)).sum()
        (self.log_alphas[agent].grad,) = torch.autograd.grad(alpha_loss, [self.log_alphas[agent]])
        self.alpha_adams[agent].step()
        return -log_prob, loss.detach(), norm

    def _value(self, critic: nn.Module, obs: Tensor, actions: list[Tensor]) -> Float[Tensor, "2 N"]:
        joint = torch.cat([obs.flatten(1), *actions], -1)
        return torch.stack([head(joint).squeeze(-1) for head in critic.children()])


def network(shape: StackedMLP, row: Float[Tensor, " P"]) -> nn.Sequential:
    """Build one network of ordinary layers from one row of stacked parameters."""
    w1, b1, w2, b2, w3, b3 = (piece[0] for piece in shape.unpack(row[None]))
    layers: list[nn.Module] = []
    for weight, bias in ((w1, b1), (w2, b2), (w3, b3)):
        linear = nn.Linear(weight.shape[0], weight.shape[1], dtype=row.dtype, device=row.device)
        linear.load_state_dict({"weight": weight.T, "bias": bias[0]})
        layers += [linear, nn.LayerNorm(shape.hidden, elementwise_affine=False), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def row(net: nn.Module) -> Float[Tensor, " P"]:
    """Lay a network's parameters out as one row of stacked parameters, the inverse of ``network``."""
    return torch.cat([p.detach().T.reshape(-1) if p.dim() == 2 else p.detach() for p in net.parameters()])


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Adam:
    """Build one agent's optimizer, of the same kind as the batched learner's."""
    return torch.optim.Adam(parameters, lr=lr, eps=ADAM_EPS, fused=True)


def flat(tensors: Iterable[Tensor]) -> Float[Tensor, " P"]:
    """Lay tensors out one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def descend(loss: Tensor, parameters: Iterable[nn.Parameter], adam: torch.optim.Adam, clip: float) -> Tensor:
    """Take one clipped gradient step; return the gradient's norm before clipping."""
    owned = list(parameters)
    gradients = torch.autograd.grad(loss, owned)
    for parameter, gradient in zip(owned, gradients, strict=True):
        parameter.grad = gradient
    norm = nn.utils.clip_grad_norm_(owned, clip)
    adam.step()
    return norm
