"""Returns against numbers by hand and against the weighted sum of all n-step returns."""

import pytest
import torch

from uavlab.ops.returns import counterfactual_advantage, generalized_advantages, lambda_returns

REWARD = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
VALUE = torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)  # of the successors
GOES_ON = torch.tensor([False, False, False])


def test_by_hand() -> None:
    # last: 4 + 0.5 x 40 = 24; before: 2 + 0.5 (0.25 x 20 + 0.75 x 24) = 13.5; first: 1 + 0.5 (2.5 + 0.75 x 13.5)
    returns = lambda_returns(REWARD, VALUE, GOES_ON, gamma=0.5, lam=0.75)
    assert returns.tolist() == [7.3125, 13.5, 24.0]


def test_the_return_of_an_ending_step_is_its_reward() -> None:
    """The published program paid (1 - lambda) r there, and so a fifth of it."""
    ended = torch.tensor([False, True, True])
    returns = lambda_returns(REWARD, VALUE, ended, gamma=0.5, lam=0.75)
    assert returns.tolist() == [1 + 0.5 * (2.5 + 0.75 * 2.0), 2.0, 4.0]


@pytest.mark.parametrize(("lam", "expected"), [(0.0, [6.0, 12.0, 24.0]), (1.0, [8.0, 14.0, 24.0])])
def test_the_ends_of_the_range(lam: float, expected: list[float]) -> None:
    assert lambda_returns(REWARD, VALUE, GOES_ON, 0.5, lam).tolist() == expected


def slow(reward: torch.Tensor, value: torch.Tensor, ended: torch.Tensor, gamma: float, lam: float) -> list[float]:
    """Average the n-step returns of all lengths, each written out; the weights are those of Sutton and Barto."""
    steps, returns = len(reward), []
    for t in range(steps):
        total, weight = 0.0, 1.0
        for n in range(1, steps - t + 1):
            alive, g = 1.0, 0.0
            for k in range(n):
                g += alive * gamma**k * float(reward[t + k])
                alive *= 1.0 - float(ended[t + k])
            g += alive * gamma**n * float(value[t + n - 1])
            last = n == steps - t
            total += (weight if last else (1 - lam) * weight) * g
            weight *= lam
        returns.append(total)
    return returns


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_average_of_all_lengths(seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    reward, value = torch.randn(2, 9, 4, generator=dice, dtype=torch.float64)
    ended = torch.rand(9, 4, generator=dice) < 0.2
    returns = lambda_returns(reward, value, ended, 0.9, 0.6)
    for lane in range(4):
        expected = slow(reward[:, lane], value[:, lane], ended[:, lane], 0.9, 0.6)
        assert returns[:, lane].tolist() == pytest.approx(expected, abs=1e-12)
    missing_tail = returns - 0.6 * returns.roll(-1, 0)
    assert (missing_tail - returns).abs().max() > 0.1  # a broken variant that the comparison tells apart


def test_counterfactual_by_hand() -> None:
    value, chance = torch.tensor([[4.0, 8.0, 100.0]]), torch.tensor([[0.25, 0.75, 0.0]])
    assert counterfactual_advantage(value, chance, value[:, 0]).tolist() == [4 - 7]
    assert counterfactual_advantage(value, chance, value[:, 1]).tolist() == [8 - 7]


def advantages(terminated: list[bool], ended: list[bool], lam: float = 0.5) -> list[float]:
    """Compute the advantages of REWARD, where each state has half the value of its successor."""
    marks = (torch.tensor(each) for each in (terminated, ended))
    return generalized_advantages(REWARD, VALUE / 2, VALUE, *marks, gamma=0.5, lam=lam).tolist()


def test_advantages_by_hand() -> None:
    # errors: 1 + 5 - 5 = 1, 2 + 10 - 10 = 2, 4 + 20 - 20 = 4; each with a quarter of the next advantage
    assert advantages([False] * 3, [False] * 3) == [1 + 0.25 * 3.0, 3.0, 4.0]
    assert advantages([False] * 3, [False] * 3, lam=0.0) == [1.0, 2.0, 4.0]


def test_an_end_cuts_advantages_and_only_the_task_s_own_end_the_value() -> None:
    assert advantages([False] * 3, [False, True, False]) == [1 + 0.25 * 2.0, 2.0, 4.0]
    assert advantages([False, True, False], [False, True, False]) == [1 + 0.25 * -8.0, -8.0, 4.0]


def test_advantages_are_returns_less_values() -> None:
    ends = torch.tensor([False, True, False])
    returns = lambda_returns(REWARD, VALUE, ends, gamma=0.9, lam=0.7)
    own = torch.tensor([7.0, 10.0, 20.0], dtype=torch.float64)  # of the states; V_t+1 is VALUE
    own[1:] = VALUE[:-1]
    advantage = generalized_advantages(REWARD, own, VALUE, ends, ends, gamma=0.9, lam=0.7)
    torch.testing.assert_close(advantage + own, returns)
