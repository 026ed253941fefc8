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
from uavlab.learners.masac.live import row_mean, weights
from uavlab.learners.masac.loop import evaluate
from uavlab.learners.masac.networks import Theta, list_tensors, per_agent
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
    ) -> Float[Tensor, "R A 2 N out"]:
        """Evaluate both critics of every agent on the actions that they observe (per agent, or the same for all)."""
        runs, rows, agents, _ = obs.shape
        seen = obs.flatten(2)[:, None].expand(-1, action.shape[1], -1, -1) if self.central else obs.transpose(1, 2)
        joint = torch.cat((seen, action), -1)
        x = joint[:, :, None].expand(runs, agents, 2, rows, -1).reshape(runs * agents * 2, rows, -1)
        return self.critic_net(self._heads(theta), x).view(runs, agents, 2, rows, -1)

    def data_values(self, critic: Theta, data: Transition) -> Float[Tensor, "R A 2 N"]:
        """Return the values of the actions that were taken."""
        action = data.action.flatten(2)[:, None] if self.central else data.action.transpose(1, 2)
        return self.values(critic, data.obs, action)[..., 0]

    def policy_values(
        self, actor: Theta, critic: Theta, obs: Any, noise: Float[Tensor, "R N A ..."], own: bool
    ) -> tuple[Float[Tensor, "R A N"], Float[Tensor, "R A N"]]:
        """Return the smaller value of each agent, and log pi_i, for actions of the current policies.

        With ``own`` the value of agent i has a gradient for its own action alone.
        """
        out = evaluate_actors(self.actor_net, actor, obs, self.networks)
        action, log_prob = squash(self.config, out, noise, self.padding)
        joint = action.flatten(2)[:, None] if self.central else action.transpose(1, 2)
        if own and self.central:
            each = torch.eye(action.shape[2], dtype=torch.bool, device=action.device)[:, None, :, None]  # A 1 A 1
            joint = torch.where(each, action[:, None], action.detach()[:, None]).flatten(3)
        return self.values(critic, obs, joint).amin(2)[..., 0], log_prob.transpose(1, 2)

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
        q, log_prob = self.policy_values(actor, target, data.next_obs, noise, own=False)
        soft = q - self._log_alpha(log_alpha).exp() * log_prob
        alive = (~data.terminated).to(q.dtype).transpose(1, 2)
        reward = self.reward_factor * data.reward.transpose(1, 2)
        if discount is not None:
            return torch.addcmul(reward, alive, soft * discount[:, None])
        return torch.addcmul(reward, alive, soft, value=self.config.gamma)

    def critic_loss(
        self, critic: Theta, data: Transition, target: Float[Tensor, "R A N"], weight: Float[Tensor, "R N"] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the mean squared errors (importance-weighted if ``weight`` is given) over runs, agents and critics."""
        q = self.data_values(critic, data)
        error = q - target[:, :, None]
        square = error.square() if weight is None else error.square() * weight[:, None, None]
        own = weights(data)
        each = None if own is None else own[:, :, None]
        mean = row_mean(square, each)
        td_error = error.detach().abs().mean(2)
        if own is not None:
            td_error = td_error.masked_fill(own == 0, 0.0)
        q_mean = q.detach().mean((2, 3)) if own is None else row_mean(q.detach(), each).mean(2)
        metrics = {"q": q_mean, "critic_loss": mean.detach().sum(2), "td_error": Rows(td_error.transpose(1, 2), 1)}
        return mean.sum(), metrics

    def actor_loss(
        self, actor: Theta, critic: Theta, log_alpha: Theta, data: Transition, noise: Float[Tensor, "R N A ..."]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum the means of alpha_i log pi_i - min_k Q_ik over runs and agents."""
        q, log_prob = self.policy_values(actor, critic, data.obs, noise, own=True)
        own = weights(data)
        mean = row_mean(self._log_alpha(log_alpha).exp() * log_prob - q, own)
        return mean.sum(), {"actor_loss": mean.detach(), "log_prob": row_mean(log_prob.detach(), own)}

    def temperature_loss(
        self, log_alpha: Theta, log_prob: Float[Tensor, "R A"], there: Float[Tensor, "R A"] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sum -log alpha_i (log pi_i + target entropy) over runs, and agents but those without a live row."""
        own, excess = self._log_alpha(log_alpha)[..., 0], log_prob + self.target_entropy
        return -(own * (excess if there is None else excess * there)).sum(), {}

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
