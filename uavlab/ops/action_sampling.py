"""Sampling of actions from noise: squashed Gaussians, and choices among E moves, made at once or in turn.

``legal`` marks an agent's legal moves. Where agents choose in turn, ``target_cell`` is the number of the cell that each
move leads to. Moves to cells that earlier agents chose in the same step are closed, unless no legal move would be left.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
INSIDE = 1 - 1e-6  # largest action whose density is evaluated
ALMOST = 1 - 2**-20  # upper limit of uniform noise, so that rounding never selects a move beyond the last open one


def without_padding(x: Float[Tensor, "*lead D"], padding: Bool[Tensor, "*#lead D"] | None) -> Float[Tensor, "*lead D"]:
    """Set numbers of action dimensions that are padding (``core.types.padded_actions``) and their gradients to 0."""
    return x if padding is None else x.masked_fill(padding, 0.0)


def squashed_gaussian(
    mean: Float[Tensor, "*lead D"],
    log_std: Float[Tensor, "*lead D"],
    noise: Float[Tensor, "*lead D"],
    padding: Bool[Tensor, "*#lead D"] | None = None,
) -> tuple[Float[Tensor, "*lead D"], Float[Tensor, "*lead"]]:
    """Turn standard normal noise into an action in (-1, 1) and its log density; padding is 0 and has no density.

    The correction log(1 - tanh(u)^2) is evaluated as 2 (log 2 - u - softplus(-2 u)), which keeps its digits where
    1 - tanh(u)^2 rounds to zero.

    Source:
        Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", appendix C, eq. 26.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI - 2 * (math.log(2) - u - F.softplus(-2 * u))
    return without_padding(torch.tanh(u), padding), without_padding(log_prob, padding).sum(-1)


def squashed_log_prob(
    mean: Float[Tensor, "*lead D"],
    log_std: Float[Tensor, "*lead D"],
    action: Float[Tensor, "*lead D"],
    padding: Bool[Tensor, "*#lead D"] | None = None,
) -> Float[Tensor, "*lead"]:
    """Return the log density of an action of ``squashed_gaussian``, which rounding may have put on the border.

    Actions are moved into [-1 + 1e-6, 1 - 1e-6], where the Gaussian's sample atanh(action) is at most 7.3.
    """
    action = action.clamp(-INSIDE, INSIDE)
    u = torch.atanh(action)
    normal = -0.5 * ((u - mean) * (-log_std).exp()).square() - log_std - HALF_LOG_2PI
    return without_padding(normal - torch.log1p(-action.square()), padding).sum(-1)


def open_moves(
    legal: Bool[Tensor, "*lead E"], target_cell: Int[Tensor, "*lead E"], occupied: Int[Tensor, "*#lead J"]
) -> Bool[Tensor, "*lead E"]:
    """Mark the moves that remain when others occupy cells; all legal moves where none would remain."""
    free = legal & (target_cell[..., None] != occupied[..., None, :]).all(-1)
    return free | (legal & ~free.any(-1, keepdim=True))


def open_moves_in_turn(
    legal: Bool[Tensor, "*lead A E"], target_cell: Int[Tensor, "*lead A E"], action: Int[Tensor, "*lead A"]
) -> Bool[Tensor, "*lead A E"]:
    """Mark the moves that were open to each agent in its turn, given the choices of all agents."""
    cells = target_cell.gather(-1, action[..., None])[..., 0]
    agents = range(action.shape[-1])
    return torch.stack([open_moves(legal[..., i, :], target_cell[..., i, :], cells[..., :i]) for i in agents], -2)


def masked_policy(
    logits: Float[Tensor, "*lead E"], open_: Bool[Tensor, "*lead E"], explore: Float[Tensor, ""] | float
) -> Float[Tensor, "*lead E"]:
    """Return (1 - explore) softmax(logits) + explore uniform, both over the open moves alone."""
    own = logits.masked_fill(~open_, -torch.inf).softmax(-1)
    even = open_.to(own.dtype) / open_.sum(-1, keepdim=True)
    return own + explore * (even - own)


def sample_in_turn(
    logits: Float[Tensor, "*lead A E"],
    legal: Bool[Tensor, "*lead A E"],
    target_cell: Int[Tensor, "*lead A E"],
    noise: Float[Tensor, "*lead A"] | None,
    explore: Float[Tensor, ""] | float = 0.0,
) -> Int[Tensor, "*lead A"]:
    """Sample a move for each agent in turn from uniform noise in [0, 1); without noise take the likeliest open move."""
    occupied = target_cell[..., 0, :0]
    actions = []
    for agent in range(legal.shape[-2]):
        free = open_moves(legal[..., agent, :], target_cell[..., agent, :], occupied)
        probability = masked_policy(logits[..., agent, :], free, explore)
        action = probability.argmax(-1) if noise is None else sample_categorical(probability, noise[..., agent])
        occupied = torch.cat((occupied, target_cell[..., agent, :].gather(-1, action[..., None])), -1)
        actions.append(action)
    return torch.stack(actions, -1)


def sample_moves(
    logits: Float[Tensor, "*lead A E"], obs: Any, noise: Float[Tensor, "*lead A"] | None
) -> Int[Tensor, "*lead A"]:
    """Sample a legal move for each agent: in turn on maps (``MapObs``), otherwise at once (``ChoiceObs``)."""
    if (cells := getattr(obs, "target_cell", None)) is not None:
        return sample_in_turn(logits, obs.legal, cells, noise)
    probability = masked_policy(logits, obs.legal, 0.0)
    return probability.argmax(-1) if noise is None else sample_categorical(probability, noise)


def random_moves(obs: Any, noise: Float[Tensor, "*lead A"]) -> Int[Tensor, "*lead A"]:
    """Sample each legal move with the same probability."""
    cells, legal = getattr(obs, "target_cell", None), obs.legal.to(noise.dtype)
    if cells is None:
        return sample_categorical(legal, noise)
    return sample_in_turn(torch.zeros_like(legal), obs.legal, cells, noise)


def open_moves_of(obs: Any, action: Int[Tensor, "*lead A"]) -> Bool[Tensor, "*lead A E"]:
    """Mark the moves among which each agent chose its action."""
    cells = getattr(obs, "target_cell", None)
    return obs.legal if cells is None else open_moves_in_turn(obs.legal, cells, action)


def sample_categorical(probability: Float[Tensor, "*lead E"], noise: Float[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
    """Draw from probabilities, which need not add up to 1, by inversion."""
    below = probability.cumsum(-1)
    return (below > noise.clamp_max(ALMOST)[..., None] * below[..., -1:]).to(torch.uint8).argmax(-1)
