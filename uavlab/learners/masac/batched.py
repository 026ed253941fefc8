"""MASAC with all agents, twin critics and runs evaluated together.

``MASAC`` computes a layer of all networks as one batched product; ``MASACVmap`` applies ``torch.func.vmap`` to the
function of one network, over the stacked tensors of all.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from uavlab.core.types import Transition
from uavlab.learners.masac.base import Evaluate, MASACBase, Step, Unpack, evaluate_actors, squash
from uavlab.learners.masac.live import mask_actions, row_mean, weights, weights_ahead
from uavlab.learners.masac.loop import evaluate
from uavlab.learners.masac.networks import Theta, list_tensors
from uavlab.nets.assignment import by_network, of_agents, per_agent
from uavlab.nets.mlp import StackedMLP
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.runtime import Runtime


class StackedMASAC(MASACBase):
    """Base with the losses of networks that are evaluated together."""

    @abstractmethod
    def _heads(self, theta: Theta) -> Theta:
        """Return the critics of all pairs as separate networks."""

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
        """Return the values of the actions that were taken."""
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

        Agents without weight in a row act with zeros. With ``own`` the sum of the values of all agents, weighted by
        ``weight``, has the gradient of agent i's own value for its action.
        """
        out = evaluate_actors(self.actor_net, actor, obs, self.networks)
        action, log_prob = squash(self.config, out, noise, self.padding)
        action = mask_actions(action.transpose(1, 2), weight).transpose(1, 2)
        if own and self.config.critic == "shared":
            joint = actions_of_groups(action, self.critics, weight).flatten(3)
        elif own and self.central:
            each = torch.eye(action.shape[2], dtype=torch.bool, device=action.device)[:, None, :, None]  # A 1 A 1
            joint = torch.where(each, action[:, None], action.detach()[:, None]).flatten(3)
        else:
            joint = action.flatten(2)[:, None] if self.central else action.transpose(1, 2)
        q = self.values(critic, obs, joint).squeeze(-1).amin(2)
        return of_agents(q, self.critics), log_prob.transpose(1, 2)

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
        """Sum the mean squared errors (importance-weighted if ``weight`` is given) over runs, pairs and critics.

        The errors of a pair that agents share are means over them.
        """
        q = self.data_values(critic, data)
        error = q - target[:, :, None]
        square = error.square() if weight is None else error.square() * weight[:, None, None]
        own = weights(data)
        each = None if own is None else own[:, :, None]
        mean = by_network(torch.mean, row_mean(square, each), self.critics)
        td_error = error.detach().abs().mean(2)
        if own is not None:
            td_error = td_error.masked_fill(own == 0, 0.0)
        q_mean = q.detach().mean((2, 3)) if own is None else row_mean(q.detach(), each).mean(2)
        q_mean = by_network(torch.mean, q_mean, self.critics)
        metrics = {"q": q_mean, "critic_loss": mean.detach().sum(2), "td_error": Rows(td_error.transpose(1, 2), 1)}
        return mean.sum(), metrics

    def actor_loss(
        self, actor: Theta, critic: Theta, log_alpha: Theta, data: Transition, noise: Float[Tensor, "R N A ..."]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the means of alpha_i log pi_i - min_k Q_ik over runs and agents."""
        own = weights(data)
        q, log_prob = self.policy_values(actor, critic, data.obs, noise, own=True, weight=own)
        mean = row_mean(self._log_alpha(log_alpha).exp() * log_prob - q, own)
        return mean.sum(), {"actor_loss": mean.detach(), "log_prob": row_mean(log_prob.detach(), own)}

    def temperature_loss(self, log_alpha: Theta, excess: Float[Tensor, "R A"]) -> tuple[Tensor, dict[str, Any]]:
        """Sum -log alpha_i (log pi_i + target entropy) over runs and agents; ``excess`` is the bracket."""
        return -(self._log_alpha(log_alpha)[..., 0] * excess).sum(), {}

    def _log_alpha(self, log_alpha: Theta) -> Float[Tensor, "R A 1"]:
        (rows,) = list_tensors(log_alpha)
        return per_agent(rows, self.runs, self.networks)


class MASAC(StackedMASAC):
    """Networks as rows of matrices: the state is four matrices and three Adams."""

    def _hold(self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None) -> tuple[Step, Theta]:
        step = rt.grad(rows.flatten(2).flatten(0, 1), lr, clip)
        return step, step.parameter

    def _theta(self, step: Any) -> Theta:
        return step.parameter

    def _heads(self, theta: Theta) -> Theta:
        return theta.view(2 * len(theta), -1)

    def _table(self, tensors: Sequence[Tensor], count: int) -> Float[Tensor, "R count P"]:
        return tensors[0].view(self.runs, count, -1)


class MASACVmap(StackedMASAC):
    """Networks stacked layer by layer."""

    def _evaluator(self, net: StackedMLP) -> Evaluate:
        return torch.func.vmap(evaluate)

    def _hold(self, rt: Runtime, rows: Tensor, unpack: Unpack, lr: float, clip: float | None) -> tuple[Step, Theta]:
        # both critics of a pair share an entry of the leading axis, and thus a gradient norm
        lead = (rows.shape[0] * rows.shape[1], *rows.shape[2:-1])
        layers = [layer.detach().reshape(*lead, *layer.shape[1:]).clone() for layer in unpack(rows.flatten(0, -2))]
        step = rt.grad([[layer.requires_grad_() for layer in layers]], lr, clip, stacked=True)
        return step, layers

    def _theta(self, step: GradientStep) -> list[Tensor]:
        return step.parameters

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
