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
    """Compute lambda returns G_t = r_t + gamma ((1 - lam) V_t+1 + lam G_t+1), and G_t = r_t where the task ended.

    ``value`` holds V_t+1, the values of the states after each step; after the last step it also stands for G_t+1.
    ``lam`` = 0 gives one-step returns, ``lam`` = 1 Monte Carlo returns.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 12.1, in its recursive form.
    """
    discount = gamma * (~terminated).to(reward.dtype)
    result, later = [], value[-1]
    for step in reversed(range(len(reward))):
        later = reward[step] + discount[step] * torch.lerp(value[step], later, lam)
        result.append(later)
    return torch.stack(result[::-1])


def generalized_advantages(
    reward: Float[Tensor, "T ..."],
    value: Float[Tensor, "T ..."],
    next_value: Float[Tensor, "T ..."],
    terminated: Bool[Tensor, "T ..."],
    ended: Bool[Tensor, "T ..."],
    gamma: float,
    lam: float,
) -> Float[Tensor, "T ..."]:
    """Compute A_t = delta_t + gamma lam A_t+1 with delta_t = r_t + gamma V'_t - V_t.

    ``next_value`` holds V'_t, the values of the states after each step, before any replacement; they count as 0 where
    the task ``terminated``. Where the episode ``ended``, and after the last step, A_t+1 counts as 0.

    Source:
        Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", eq. 16.
    """
    delta = reward + gamma * next_value * (~terminated).to(reward.dtype) - value
    decay = gamma * lam * (~ended).to(reward.dtype)
    result, later = [], torch.zeros_like(value[0])
    for step in reversed(range(len(reward))):
        later = torch.addcmul(delta[step], decay[step], later)
        result.append(later)
    return torch.stack(result[::-1])


def counterfactual_advantage(
    value: Float[Tensor, "*lead E"], chance: Float[Tensor, "*lead E"], chosen: Float[Tensor, "*lead"]
) -> Float[Tensor, "*lead"]:
    """Return A = Q[chosen] - sum over e of pi(e) Q[e], with the other agents' moves fixed.

    ``value`` holds Q of an agent's moves, ``chance`` their probabilities pi (0 if not open), ``chosen`` Q[chosen].

    Source:
        Foerster et al. 2018, "Counterfactual Multi-Agent Policy Gradients", eq. 4.
    """
    return chosen - (chance * value).sum(-1)
