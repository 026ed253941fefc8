"""Policies without learning: rules by which a team is assigned."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from uavlab.envs.target_assignment.env import Assignment, State


def greedy(env: Assignment, state: State, noise: Float[Tensor, "B 1"]) -> Int[Tensor, "B 1"]:
    """Send each UAV in turn to the nearest target that it can give something, by the shortest sector.

    It is the turn of the UAV that has served the fewest targets so far, of those that have a legal move.
    """
    legal = state.legal
    length = state.way.masked_fill(~legal, torch.inf).flatten(2)  # B N M*S
    able = legal.any((2, 3))
    turn = state.served.sum(2).masked_fill(~able, env.columns + 1).argmin(1, keepdim=True)  # the first of several
    move = length.argmin(2).gather(1, turn)
    return turn * env.columns * env.sectors + move


def nearest(env: Assignment, state: State, noise: Float[Tensor, "B 1"]) -> Int[Tensor, "B 1"]:
    """Take the shortest legal way of all UAVs to all targets."""
    return state.way.masked_fill(~state.legal, torch.inf).flatten(1).argmin(1, keepdim=True)
