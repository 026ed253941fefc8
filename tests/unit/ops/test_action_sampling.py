"""Moves chosen in turn: against a plain loop, by frequency, and where nothing free is left."""

import pytest
import torch
from torch import Tensor

from uavlab.ops.action_sampling import ALMOST, chances, open_in_turn, pick, sample_in_turn, still_open


def drawn(worlds: int = 200, agents: int = 4, moves: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    logits = torch.randn(worlds, agents, moves, generator=dice)
    legal = torch.rand(worlds, agents, moves, generator=dice) < 0.6
    legal[..., 0] |= ~legal.any(-1)
    claims = torch.randint(6, (worlds, agents, moves), generator=dice)
    return logits, legal, claims, torch.rand(worlds, agents, generator=dice)


def slow_open(legal: list[bool], claims: list[int], taken: list[int]) -> list[bool]:
    free = [may and claim not in taken for may, claim in zip(legal, claims, strict=True)]
    return free if any(free) else legal


def test_equals_a_plain_loop() -> None:
    logits, legal, claims, noise = drawn()
    action = sample_in_turn(logits, legal, claims, noise, 0.3)
    open_ = open_in_turn(legal, claims, action)
    blocked = 0
    for world in range(len(logits)):
        taken: list[int] = []
        for agent in range(4):
            free = slow_open(legal[world, agent].tolist(), claims[world, agent].tolist(), taken)
            assert open_[world, agent].tolist() == free
            exponents = [torch.exp(x).item() if may else 0.0 for x, may in zip(logits[world, agent], free, strict=True)]
            chance = [0.7 * e / sum(exponents) + 0.3 * may / sum(free) for e, may in zip(exponents, free, strict=True)]
            edges = torch.tensor(chance, dtype=torch.float64).cumsum(0)
            move = int((edges <= noise[world, agent].item()).sum())
            assert int(action[world, agent]) == move
            taken.append(int(claims[world, agent, move]))
            blocked += free != legal[world, agent].tolist()
    assert blocked > 100


def test_a_forgotten_turn_is_caught() -> None:
    logits, legal, claims, noise = drawn()
    action = sample_in_turn(logits, legal, claims, noise)
    at_once = torch.stack(
        [sample_in_turn(logits[:, [i]], legal[:, [i]], claims[:, [i]], noise[:, [i]])[:, 0] for i in range(4)], 1
    )
    assert (action != at_once).any()
    assert torch.equal(action[:, 0], at_once[:, 0])


def test_without_noise_the_likeliest_open_move() -> None:
    logits = torch.tensor([[[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]]])
    legal, claims = torch.ones(1, 2, 3, dtype=torch.bool), torch.tensor([[[7, 8, 9], [7, 8, 9]]])
    assert sample_in_turn(logits, legal, claims, None).tolist() == [[1, 2]]


def test_where_all_is_taken_anything_legal_is_open() -> None:
    legal, claims = torch.tensor([[True, False]]), torch.tensor([[4, 5]])
    assert still_open(legal, claims, torch.tensor([[4]])).tolist() == [[True, False]]
    assert still_open(legal, claims, torch.tensor([[9]])).tolist() == [[True, False]]


def test_frequencies_are_the_chances() -> None:
    chance = torch.tensor([0.5, 0.0, 0.3, 0.2])
    noise = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    counts = pick(chance.expand(100_000, -1), noise).bincount(minlength=4) / 100_000
    assert counts.tolist() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=0.006)


@pytest.mark.parametrize("noise", [0.0, 0.5, ALMOST, 1 - 2**-24])
def test_no_closed_move_is_ever_drawn(noise: float) -> None:
    dice = torch.Generator().manual_seed(1)
    open_ = torch.rand(10_000, 6, generator=dice) < 0.4
    open_[:, 2] |= ~open_.any(-1)
    chance = chances(10 * torch.randn(10_000, 6, generator=dice), open_, 0.1)
    move = pick(chance, torch.full((10_000,), noise))
    assert open_.gather(-1, move[:, None]).all()


def test_exploration_spreads_over_open_moves() -> None:
    open_ = torch.tensor([True, True, False, True])
    even = chances(torch.tensor([5.0, 0.0, 9.0, -5.0]), open_, 1.0)
    assert even.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    own = chances(torch.log(torch.tensor([0.2, 0.2, 0.2, 0.4])), open_, 0.5)
    assert own.tolist() == pytest.approx([0.5 * 0.25 + 1 / 6, 0.5 * 0.25 + 1 / 6, 0, 0.5 * 0.5 + 1 / 6])


def test_chances_survive_hopeless_logits() -> None:
    """A softmax over all moves that is masked afterwards would be 0 / 0 here."""
    made = chances(torch.tensor([1000.0, 0.0, 0.0]), torch.tensor([False, True, True]), 0.0)
    assert made.tolist() == [0.0, 0.5, 0.5]
