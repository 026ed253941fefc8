"""MASAC of teams whose agents choose moves: own moves by expectation, moves of the others by samples.

Agent i's critics observe what all agents observe and the others' moves, or its own observation alone, and return a
value for each own move e. With them, the equations of ``base.py`` are (H the entropy, others' moves a_-i sampled from
their current policies):

* target      y_i = r_i + gamma (1 - d_i) (sum_e pi_i(e | o'_i) min_k Q'_ik(s', a'_-i, e) + alpha_i H(pi_i(. | o'_i)))
* critics     minimize the mean of (Q_ik(s, a_-i, e) - y_i)^2 at the move e = a_i that was taken
* actor       minimize the mean of -alpha_i H(pi_i) - sum_e pi_i(e | o_i) min_k Q_ik(s, a_-i, e)
* temperature minimize log alpha_i (H(pi_i) - target entropy)

These are the losses of ``batched.py`` and ``loop.py`` with the sum over e in the place of Q and with -H in the place of
log pi, so only values and entropies are here. Moves that are not legal have probability 0 and no gradient.

A group shares no critic here: the value of a move depends on which agent makes it and on the moves of all others, so
one evaluation could not serve two agents.

Source:
    Christodoulou 2019, "Soft Actor-Critic for Discrete Action Settings", eq. 10 to 12.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uavlab.core.types import ChoiceObs, Transition
from uavlab.learners.masac.base import MASACBase, evaluate_actors
from uavlab.learners.masac.batched import MASAC, MASACVmap, StackedMASAC
from uavlab.learners.masac.live import mask_actions
from uavlab.learners.masac.loop import RUNGS, Actions, MASACLoop, Network, evaluate, values
from uavlab.learners.masac.networks import Theta
from uavlab.ops.action_sampling import sample_categorical


class StackedChoices(StackedMASAC):
    """Values and entropies of networks that are evaluated together."""

    def data_values(self, critic: Theta, data: Transition) -> Float[Tensor, "R A 2 N"]:
        """Return the values of the moves that were taken."""
        obs = data.obs.features
        move = one_hot(data.action, self.spec.choices, obs.dtype)
        q = self.values(critic, obs, self._others(move))
        return (q * move.transpose(1, 2)[:, :, None]).sum(-1)

    def policy_values(
        self,
        actor: Theta,
        critic: Theta,
        obs: ChoiceObs,
        noise: Float[Tensor, "R N A"],
        own: bool,
        weight: Float[Tensor, "R A N"] | None = None,
    ) -> tuple[Float[Tensor, "R A N"], Float[Tensor, "R A N"]]:
        """Return the expected smaller value of each agent's moves, and minus the entropy of its policy."""
        logits = evaluate_actors(self.actor_net, actor, obs.features, self.networks)
        chance, log_chance = move_chances(logits, obs.legal)
        move = one_hot(sample_categorical(chance, noise), self.spec.choices, chance.dtype)
        move = mask_actions(move.transpose(1, 2), weight).transpose(1, 2)
        q = self.values(critic, obs.features, self._others(move)).amin(2)
        expected = (chance.transpose(1, 2) * q).sum(-1)
        return expected, (chance * log_chance).sum(-1).transpose(1, 2)

    def _others(self, move: Float[Tensor, "R N A E"]) -> Float[Tensor, "R A N J"]:
        """Return the moves that each agent's critics observe."""
        return moves_of_others(move) if self.central else move.transpose(1, 2)[..., :0]


class ChoiceMASAC(StackedChoices, MASAC):
    """Networks as rows of matrices."""


class ChoiceMASACVmap(StackedChoices, MASACVmap):
    """Networks stacked layer by layer."""


class ChoiceMASACLoop(MASACLoop):
    """Networks as lists of tensors, evaluated one after the other."""

    def _draw(self, net: Network, obs: ChoiceObs, noise: Float[Tensor, " N"], agent: int) -> tuple[Tensor, ...]:
        chance, log_chance = move_chances(evaluate(net, obs.features), obs.legal)
        return one_hot(sample_categorical(chance, noise), self.spec.choices, chance.dtype), chance, log_chance

    def _policy_values(
        self, pair: Network, obs: Float[Tensor, "N A O"], agent: int, actions: Actions
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        moves = [torch.zeros_like(move) if j == agent else move for j, (move, _, _) in enumerate(actions)]
        _, chance, log_chance = actions[agent]
        q = values(pair, *self._seen(obs, moves, agent)).amin(0)
        return (chance * q).sum(-1), (chance * log_chance).sum(-1)

    def _data_values(
        self, pair: Network, obs: Float[Tensor, "N A O"], agent: int, action: Int[Tensor, "N A"]
    ) -> Float[Tensor, "2 N"]:
        moves = list(one_hot(action, self.spec.choices, obs.dtype).unbind(1))
        own, moves[agent] = moves[agent], torch.zeros_like(moves[agent])
        return (values(pair, *self._seen(obs, moves, agent)) * own).sum(-1)

    def _seen(self, obs: Float[Tensor, "N A O"], actions: Sequence[Tensor], agent: int) -> tuple[Tensor, Any]:
        return (obs, actions) if self.central else (obs[:, agent : agent + 1], [])


CHOICE_FORMS: Mapping[str, type[MASACBase]] = {
    **dict.fromkeys(RUNGS, ChoiceMASACLoop),
    "vmap": ChoiceMASACVmap,
    "batched": ChoiceMASAC,
}


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
