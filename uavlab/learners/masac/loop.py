"""MASAC as a loop over agents: the plain reference of the batched update, and two faster rungs of the update ladder.

Runs and agents are Python loops; each network is a list of six tensors with its own gradient norm. Results equal those
of the batched update up to rounding. As in the usual description of the method, the rung ``loop`` evaluates all A
actors again for each agent in both phases (2 A^2 evaluations where 2 A suffice), with backward passes for each agent.
Apart from that the reference is efficient, because a slow one would inflate measured speed-ups. With ``critic=shared``
policies are valued agent by agent, too, each with a gradient for its own action alone.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.rng import Streams
from uavlab.core.types import EnvSpec, Scale, Transition, features_of, tree_map
from uavlab.learners.masac.masac import (
    FORMS,
    MASAC,
    MASACConfig,
    Network,
    Theta,
    Unpack,
    evaluate,
    mask_actions,
    move_chances,
    one_hot,
    row_mean,
    squash,
    weights,
    weights_ahead,
)
from uavlab.ops.action_sampling import sample_categorical
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.runtime import Runtime

Networks = list[Network]

Actions = Sequence[tuple[Tensor, ...]]
"""Action (N D) and log density (N) of each agent; where agents choose, the same for moves."""


class _SeparateBackward(torch.autograd.Function):
    """Sum of losses with a backward pass for each; loss i depends only on the parameters of owner i."""

    @staticmethod
    def forward(ctx: Any, losses: Sequence[Tensor], owners: Sequence[Network], *parameters: Tensor) -> Tensor:
        ctx.losses, ctx.owners = losses, owners
        return torch.stack([loss.detach() for loss in losses]).sum()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        each = zip(ctx.losses, ctx.owners, strict=True)
        return None, None, *chain.from_iterable(torch.autograd.grad(loss, owner, slope) for loss, owner in each)


def sum_separately(losses: Sequence[Tensor], owners: Sequence[Network]) -> Tensor:
    """Sum losses that share no parameters, with a backward pass for each."""
    return _SeparateBackward.apply(losses, owners, *chain.from_iterable(owners))


def sum_together(losses: Sequence[Tensor], owners: Sequence[Network]) -> Tensor:
    return torch.stack(list(losses)).sum()


class Rung(NamedTuple):
    """Whether a phase evaluates all actors once or for each agent, and the function that sums the losses of owners."""

    once: bool
    total: Callable[[Sequence[Tensor], Sequence[Network]], Tensor]


RUNGS = {
    "loop": Rung(once=False, total=sum_separately),
    "cached": Rung(once=True, total=sum_separately),
    "merged": Rung(once=True, total=sum_together),
}


class MASACLoop(MASAC):
    """Networks as lists of tensors, evaluated one after the other."""

    def __init__(self, config: MASACConfig, spec: EnvSpec, inputs: Scale, rng: Streams, rt: Runtime) -> None:
        super().__init__(config, spec, inputs, rng, rt)
        self.rung = RUNGS[rt.toggles.update]
        self.owner = [run * self.count + network for run in range(self.runs) for network in self.networks]
        self.pair = [run * self.pairs + critic for run in range(self.runs) for critic in self.critics]

    def targets(
        self,
        actor: Networks,
        target: Networks,
        log_alpha: Networks,
        data: Transition,
        noise: Float[Tensor, "R N A ..."],
        discount: Float[Tensor, "R N"] | None = None,
    ) -> Float[Tensor, "R A N"]:
        goals = []
        samples = self._sample_actions(actor, data.next_obs, noise, weights_ahead(data))
        for pair, owner, (run, agent, actions) in zip(self.pair, self.owner, samples, strict=True):
            q, log_prob = self._policy_values(target[pair], features_of(data.next_obs)[run], agent, actions)
            soft = q - log_alpha[owner][0].exp() * log_prob
            alive = (~data.terminated[run, :, agent]).to(q.dtype)
            reward = self.reward_factor * data.reward[run, :, agent]
            if discount is None:
                goals.append(torch.addcmul(reward, alive, soft, value=self.config.gamma))
            else:
                goals.append(torch.addcmul(reward, alive, soft * discount[run]))
        return self._by_agent(goals)

    def critic_loss(
        self, critic: Networks, data: Transition, target: Float[Tensor, "R A N"], weight: Float[Tensor, "R N"] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        live, td_errors = weights(data), []
        parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in critic]  # loss and mean value, by agent
        q_values = [self._pair_values(pair, unit, data) for unit, pair in enumerate(critic)]
        for unit, pair in enumerate(self.pair):
            run, agent = divmod(unit, self.spec.agents)
            q = q_values[pair]
            error = q - target[run, agent]
            square = error.square() if weight is None else error.square() * weight[run]
            own = None if live is None else live[run, agent]
            q_mean = q.detach().mean() if own is None else row_mean(q.detach(), own).mean()
            parts[pair].append((row_mean(square, own).sum(), q_mean))
            td_error = error.detach().abs().mean(0)
            td_errors.append(td_error if own is None else td_error.masked_fill(own == 0, 0.0))
        losses, q_means = ([mean_of([each[k] for each in part]) for part in parts] for k in range(2))
        errors = Rows(self._by_agent(td_errors).transpose(1, 2), 1)
        metrics = {"q": self._by_agent(q_means), "critic_loss": self._by_agent(losses).detach(), "td_error": errors}
        return self.rung.total(losses, critic), metrics

    def actor_loss(
        self,
        actor: Networks,
        critic: Networks,
        log_alpha: Networks,
        data: Transition,
        noise: Float[Tensor, "R N A ..."],
    ) -> tuple[Tensor, dict[str, Any]]:
        losses, log_probs, live = [], [], weights(data)
        samples = self._sample_actions(actor, data.obs, noise, live)
        for pair, owner, (run, agent, actions) in zip(self.pair, self.owner, samples, strict=True):
            q, log_prob = self._policy_values(critic[pair], features_of(data.obs)[run], agent, actions)
            own = None if live is None else live[run, agent]
            losses.append(row_mean(log_alpha[owner][0].exp() * log_prob - q, own))
            log_probs.append(row_mean(log_prob.detach(), own))
        metrics = {"actor_loss": self._by_agent(losses).detach(), "log_prob": self._by_agent(log_probs)}
        return self.rung.total(self._by_owner(losses), actor), metrics

    def temperature_loss(self, log_alpha: Networks, excess: Float[Tensor, "R A"]) -> tuple[Tensor, dict[str, Any]]:
        excess = excess.view(-1)
        losses = [-(log_alpha[owner][0] * excess[unit]).sum() for unit, owner in enumerate(self.owner)]
        return self.rung.total(self._by_owner(losses), log_alpha), {}

    def _sample_actions(
        self, actor: Networks, obs: Any, noise: Float[Tensor, "R N A ..."], weight: Float[Tensor, "R A N"] | None
    ) -> Iterator[tuple[int, int, Actions]]:
        """Yield run, agent and the actions of all agents; those without weight in a row act with zeros."""
        agents = range(self.spec.agents)

        def draw(run: int, agent: int) -> tuple[Tensor, ...]:
            own = tree_map(lambda leaf: leaf[run, :, agent], obs)
            net = actor[self.owner[run * len(agents) + agent]]
            action, *rest = self._draw(net, own, noise[run, :, agent], agent)
            return mask_actions(action, None if weight is None else weight[run, agent]), *rest

        for run in range(self.runs):
            actions = [draw(run, j) for j in agents] if self.rung.once else None
            for agent in agents:
                yield run, agent, actions or [draw(run, j) for j in agents]

    def _draw(self, net: Network, obs: Any, noise: Float[Tensor, "N ..."], agent: int) -> tuple[Tensor, ...]:
        if self.spec.choices:
            chance, log_chance = move_chances(evaluate(net, obs.features), obs.legal)
            return one_hot(sample_categorical(chance, noise), self.spec.choices, chance.dtype), chance, log_chance
        padding = None if self.padding is None else self.padding[agent]
        return squash(self.config, evaluate(net, obs), noise, padding)

    def _policy_values(
        self, pair: Network, obs: Float[Tensor, "N A O"], agent: int, actions: Actions
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return the smaller value of an agent, with a gradient for its own action alone, and log pi_i."""
        if self.spec.choices:
            moves = [torch.zeros_like(move) if j == agent else move for j, (move, _, _) in enumerate(actions)]
            _, chance, log_chance = actions[agent]
            q = values(pair, *self._seen(obs, moves, agent)).amin(0)
            return (chance * q).sum(-1), (chance * log_chance).sum(-1)
        joint = [action if j == agent else action.detach() for j, (action, _) in enumerate(actions)]
        q = values(pair, *self._seen(obs, joint, agent))
        return q.amin(0)[:, 0], actions[agent][1]

    def _pair_values(self, pair: Network, unit: int, data: Transition) -> Float[Tensor, "2 N"]:
        """Return the values of the actions that were taken, by a pair of critics of all runs."""
        run, index = divmod(unit, self.pairs)
        obs, agent, action = features_of(data.obs)[run], self.critics.index(index), data.action[run]
        if self.spec.choices:
            moves = list(one_hot(action, self.spec.choices, obs.dtype).unbind(1))
            own, moves[agent] = moves[agent], torch.zeros_like(moves[agent])
            return (values(pair, *self._seen(obs, moves, agent)) * own).sum(-1)
        return values(pair, *self._seen(obs, action.unbind(1), agent))[..., 0]

    def _seen(self, obs: Float[Tensor, "N A O"], actions: Sequence[Tensor], agent: int) -> tuple[Tensor, Any]:
        """Return the observations and actions that an agent's critics observe; of moves, those of others alone."""
        if self.central:
            return obs, actions
        return obs[:, agent : agent + 1], [] if self.spec.choices else actions[agent : agent + 1]

    def _by_agent(self, values: list[Tensor]) -> Float[Tensor, "R _ ..."]:
        return torch.stack(values).unflatten(0, (self.runs, -1))

    def _by_owner(self, losses: list[Tensor]) -> list[Tensor]:
        shares: list[list[Tensor]] = [[] for _ in range(self.runs * self.count)]
        for owner, loss in zip(self.owner, losses, strict=True):
            shares[owner].append(loss)
        return [reduce(torch.add, share) for share in shares]

    def _hold(
        self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None
    ) -> tuple[GradientStep, Theta, Theta]:
        # tensors are views of one matrix, which ``act`` takes to evaluate all actors at once
        matrix = rows.detach().flatten(0, 1).clone()
        layers = [unpack(row.view(-1, row.shape[-1])) for row in matrix]
        owners = [[piece[k].requires_grad_() for k in range(len(own[0])) for piece in own] for own in layers]
        step = rt.grad(owners, lr, clip)
        return step, step.owners, matrix

    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        return torch.cat([tensor.detach().flatten() for tensor in tensors]).view(self.runs, count, -1)


def mean_of(numbers: Sequence[Tensor]) -> Tensor:
    return numbers[0] if len(numbers) == 1 else torch.stack(list(numbers)).mean(0)


def values(pair: Network, obs: Float[Tensor, "N A O"], actions: Sequence[Tensor]) -> Float[Tensor, "2 N out"]:
    joint, layers = torch.cat([obs.flatten(1), *actions], -1), len(pair) // 2
    return torch.stack([evaluate(head, joint) for head in (pair[:layers], pair[layers:])])


FORMS.update(dict.fromkeys(RUNGS, MASACLoop))
