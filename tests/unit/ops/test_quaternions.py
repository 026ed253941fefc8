"""Rotations by hand, and against matrices and matrix exponentials."""

import math

import pytest
import torch
from torch import Tensor

from uavlab.ops.quaternions import (
    conjugate,
    from_rotation_vector,
    integrate,
    multiply,
    rotate,
    rotate_inverse,
)

HALF = math.sqrt(0.5)
IDENTITY = [1.0, 0.0, 0.0, 0.0]


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*lead: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(some(*lead, 4, seed=seed), dim=-1)


def cross_matrix(vector: Tensor) -> Tensor:
    x, y, z = vector.tolist()
    return torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("q", "before", "after"),
    [
        (IDENTITY, [1, 2, 3], [1, 2, 3]),
        ([HALF, 0, 0, HALF], [1, 2, 3], [-2, 1, 3]),  # a quarter turn about down: forward becomes right
        ([HALF, HALF, 0, 0], [1, 2, 3], [1, -3, 2]),  # about forward: right becomes down
        ([HALF, 0, HALF, 0], [1, 2, 3], [3, 2, -1]),  # about right: down becomes forward
        ([0, 0, 0, 1], [1, 2, 3], [-1, -2, 3]),  # half a turn about down
        ([0.5, 0.5, 0.5, 0.5], [1, 2, 3], [3, 1, 2]),  # a third about the diagonal
    ],
)
def test_rotations_by_hand(q: list[float], before: list[float], after: list[float]) -> None:
    q_, before_, after_ = (torch.tensor(each, dtype=torch.float64) for each in (q, before, after))
    assert rotate(q_, before_).tolist() == pytest.approx(after, abs=1e-12)
    assert rotate_inverse(q_, after_).tolist() == pytest.approx(before, abs=1e-12)


def test_a_rotation_equals_its_matrix() -> None:
    """Exponentials of cross products are rotation matrices."""
    vectors, turns = some(20, 3, seed=1), 2 * some(20, 3, seed=2)
    for vector, about in zip(vectors, turns, strict=True):
        matrix = torch.linalg.matrix_exp(cross_matrix(about))
        torch.testing.assert_close(rotate(from_rotation_vector(about), vector), matrix @ vector, rtol=1e-10, atol=1e-10)


def test_products_turn_one_after_the_other() -> None:
    a, b, v = unit(2, 5), unit(2, 5, seed=1), some(2, 5, 3, seed=2)
    both = rotate(multiply(a, b), v)
    torch.testing.assert_close(both, rotate(a, rotate(b, v)), rtol=1e-12, atol=1e-12)
    assert (both - rotate(b, rotate(a, v))).abs().max() > 0.1


@pytest.mark.parametrize(("a", "b", "ab"), [(1, 2, 3), (2, 3, 1), (3, 1, 2)])
def test_products_of_units_by_hand(a: int, b: int, ab: int) -> None:
    """Hamilton's rule: i j = k, and j i = -k."""
    units = torch.eye(4)
    assert torch.equal(multiply(units[a], units[b]), units[ab])
    assert torch.equal(multiply(units[b], units[a]), -units[ab])
    assert torch.equal(multiply(units[a], units[a]), -units[0])


def test_a_conjugate_undoes() -> None:
    q = unit(6)
    torch.testing.assert_close(multiply(conjugate(q), q), torch.tensor(IDENTITY).double().expand(6, 4))


def test_turns_by_hand() -> None:
    quarter = from_rotation_vector(torch.tensor([0.0, 0.0, math.pi / 2], dtype=torch.float64))
    assert quarter.tolist() == pytest.approx([HALF, 0, 0, HALF])
    third = from_rotation_vector(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64) * (2 * math.pi / 3 / math.sqrt(3)))
    assert third.tolist() == pytest.approx([0.5] * 4)


def test_no_turn_is_the_identity_and_can_be_learned_from() -> None:
    vector = torch.zeros(3, requires_grad=True)
    q = from_rotation_vector(vector)
    assert q.tolist() == IDENTITY
    (gradient,) = torch.autograd.grad(q.sum(), vector)
    assert gradient.tolist() == [0.5, 0.5, 0.5]  # half the angle


def test_rates_are_in_body_axes() -> None:
    """Nose to the east, a quarter turn about the nose rolls about east: right, once south, becomes down."""
    q = torch.tensor([HALF, 0, 0, HALF], dtype=torch.float64)
    rate = torch.tensor([math.pi, 0.0, 0.0], dtype=torch.float64)
    rolled = integrate(q, rate, 0.5)
    right = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert rotate(q, right).tolist() == pytest.approx([-1, 0, 0], abs=1e-12)
    assert rotate(rolled, right).tolist() == pytest.approx([0, 0, 1], abs=1e-12)


def test_many_small_turns_are_one() -> None:
    q, rate = unit(4), some(4, 3, seed=1)
    once, often = integrate(q, rate, 1.0), q
    for _ in range(100):
        often = integrate(often, rate, 0.01)
    torch.testing.assert_close(often, once, rtol=1e-10, atol=1e-10)


def test_lengths_stay_one() -> None:
    q = unit(4).float()
    for _ in range(1000):
        q = integrate(q, torch.tensor([3.0, -20.0, 7.0]).expand(4, 3), 0.01)
    torch.testing.assert_close(q.norm(dim=-1), torch.ones(4), rtol=1e-6, atol=0)
