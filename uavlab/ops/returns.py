"""Returns: what actions turned out to be worth."""

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

    Args:
        reward: Rewards r_t of T steps in a row.
        value: What the successor of each step is held to be worth, V_t+1; after the last step it stands for G, too.
        terminated: Steps after which nothing is earned any more.
        gamma: Discount per step.
        lam: 0 trusts values, 1 trusts what was earned.

    Source:
        Sutton and Barto 2018, "Reinforcement Learning: An Introduction", section 12.1, in its recursive form.
    """
    discount = gamma * (~terminated).to(reward.dtype)
    result, later = [], value[-1]
    for step in reversed(range(len(reward))):
        later = reward[step] + discount[step] * torch.lerp(value[step], later, lam)
        result.append(later)
    return torch.stack(result[::-1])


def counterfactual(
    value: Float[Tensor, "*lead E"], chance: Float[Tensor, "*lead E"], chosen: Float[Tensor, "*lead"]
) -> Float[Tensor, "*lead"]:
    """Tell how much better the chosen move was than the policy's own mixture, all else being equal.

    Args:
        value: What each move of an agent is worth, given what the others did.
        chance: With which chance the policy takes it; 0 where it is not open.
        chosen: What the chosen one is worth.

    Source:
        Foerster et al. 2018, "Counterfactual Multi-Agent Policy Gradients", eq. 4.
    """
    return chosen - (chance * value).sum(-1)
