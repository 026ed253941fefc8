"""Choosing among moves, agent after agent: what one took, the next may not take again.

E moves per agent. ``legal`` says which of them an agent may choose at all; ``claims`` what each of them would take, as
a number. Where all that is legal was taken, anything legal is open: somebody always has a move.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ALMOST = 1 - 2**-20  # uniform noise below it never lands beyond the last open move, whatever rounding does


def still_open(
    legal: Bool[Tensor, "*lead E"], claims: Int[Tensor, "*lead E"], taken: Int[Tensor, "*#lead J"]
) -> Bool[Tensor, "*lead E"]:
    """Tell which moves are open after others took ``taken``."""
    free = legal & (claims[..., None] != taken[..., None, :]).all(-1)
    return torch.where(free.any(-1, keepdim=True), free, legal)


def open_in_turn(
    legal: Bool[Tensor, "*lead A E"], claims: Int[Tensor, "*lead A E"], action: Int[Tensor, "*lead A"]
) -> Bool[Tensor, "*lead A E"]:
    """Tell what was open to each agent when its turn came, given what all chose."""
    taken = claims.gather(-1, action[..., None])[..., 0]
    agents = range(action.shape[-1])
    return torch.stack([still_open(legal[..., i, :], claims[..., i, :], taken[..., :i]) for i in agents], -2)


def chances(
    logits: Float[Tensor, "*lead E"], open_: Bool[Tensor, "*lead E"], explore: Float[Tensor, ""] | float
) -> Float[Tensor, "*lead E"]:
    """Turn logits into a policy over open moves, with a share ``explore`` of it spread evenly over them."""
    own = logits.masked_fill(~open_, -torch.inf).softmax(-1)
    even = open_.to(own.dtype) / open_.sum(-1, keepdim=True)
    return own + explore * (even - own)


def sample_in_turn(
    logits: Float[Tensor, "*lead A E"],
    legal: Bool[Tensor, "*lead A E"],
    claims: Int[Tensor, "*lead A E"],
    noise: Float[Tensor, "*lead A"] | None,
    explore: Float[Tensor, ""] | float = 0.0,
) -> Int[Tensor, "*lead A"]:
    """Let each agent choose in its turn, by uniform noise in [0, 1), or without noise the likeliest open move."""
    taken = claims[..., 0, :0]
    actions = []
    for agent in range(legal.shape[-2]):
        free = still_open(legal[..., agent, :], claims[..., agent, :], taken)
        chance = chances(logits[..., agent, :], free, explore)
        action = chance.argmax(-1) if noise is None else pick(chance, noise[..., agent])
        taken = torch.cat((taken, claims[..., agent, :].gather(-1, action[..., None])), -1)
        actions.append(action)
    return torch.stack(actions, -1)


def pick(chance: Float[Tensor, "*lead E"], noise: Float[Tensor, "*lead"]) -> Int[Tensor, "*lead"]:
    """Draw from chances, which need not add up to 1, by inversion."""
    below = chance.cumsum(-1)
    return (below > noise.clamp_max(ALMOST)[..., None] * below[..., -1:]).to(torch.uint8).argmax(-1)
