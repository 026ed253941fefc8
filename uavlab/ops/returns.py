"""Returns and advantages of actions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def lambda_returns(
    reward: Float[Tensor, "T ..."],
    value: Float[Tensor, "T ..."],
    terminated: Bool[Tensor, "T ..."],
    gamma: float,
    lam: float,
) -> Float[Tensor, "T ..."]:
    """Mix returns of all lengths: G_t = r_t + gamma ((1 - lam) V_t+1 + lam G_t+1), and r_t where the task ended.

    ``value`` is that of each step's successor, V_t+1; after the last step it also replaces G. ``lam`` of 0 uses values
    alone (one-step returns), 1 rewards alone (Monte Carlo returns).

    Source:
        Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 12.1, in its recursive form.
    """
    discount = gamma * (~terminated).to(reward.dtype)
    result, later = [], value[-1]
    for step in reversed(range(len(reward))):
        later = reward[step] + discount[step] * torch.lerp(value[step], later, lam)
        result.append(later)
    return torch.stack(result[::-1])


def counterfactual_advantage(
    value: Float[Tensor, "*lead E"], chance: Float[Tensor, "*lead E"], chosen: Float[Tensor, "*lead"]
) -> Float[Tensor, "*lead"]:
    """Return the advantage of the chosen move over the policy's expectation, the other agents' moves being fixed.

    ``value`` holds the values of an agent's moves, ``chance`` their probabilities, 0 where a move is not open.

    Source:
        Foerster et al. 2018, "Counterfactual Multi-Agent Policy Gradients", eq. 4.
    """
    return chosen - (chance * value).sum(-1)
