"""Angles, distances and nearest points by hand; rotations against matrices and by hand."""

import math

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError
from uavlab.ops.geometry import (
    conjugate,
    constant,
    distance,
    from_rotation_vector,
    integrate,
    multiply,
    nearest_offsets,
    rotate,
    rotate_inverse,
    wrap_angle,
)

HALF = math.sqrt(0.5)
IDENTITY = [1.0, 0.0, 0.0, 0.0]
CPU = torch.device("cpu")


def test_a_constant_is_copied_once_for_each_device_and_type() -> None:
    rows = ((0, 1), (1, 0))
    whole, real = constant(rows, CPU, torch.int64), constant(rows, CPU, torch.float32)
    assert whole.tolist() == real.tolist() == [[0, 1], [1, 0]]
    assert (whole.dtype, real.dtype) == (torch.int64, torch.float32)
    assert constant(((0, 1), (1, 0)), CPU, torch.int64) is whole
    assert constant(((0.0, 1.0), (True, False)), CPU, torch.int64) is whole  # equal numbers


def test_more_constants_than_a_cache_usually_has_stay_where_they_are() -> None:
    first = constant((-1.0,), CPU, torch.float64)
    for number in range(2000):
        constant((-2.0, float(number)), CPU, torch.float64)
    assert constant((-1.0,), CPU, torch.float64) is first


@pytest.mark.parametrize("values", [[0, 1], 0, torch.zeros(2)], ids=["list", "number", "tensor"])
def test_a_constant_is_a_tuple(values: object) -> None:
    with pytest.raises(ConfigError, match=r"^constant\(\): values = .*; expected a tuple, of tuples"):
        constant(values, CPU, torch.float32)  # type: ignore[arg-type]


def test_wrap_angle() -> None:
    got = wrap_angle(torch.tensor([0.0, 1.0, -1.0, 2 * math.pi, 7.0, -13.0], dtype=torch.float64))
    expected = [0.0, 1.0, 2 * math.pi - 1, 0.0, 7 - 2 * math.pi, 6 * math.pi - 13]
    assert got.tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_negative_angle_is_not_rounded_to_a_whole_turn(dtype: torch.dtype) -> None:
    angle = -torch.logspace(-40, 2, 200, dtype=torch.float64).to(dtype)
    whole = torch.tensor(2 * math.pi, dtype=dtype)
    once = angle.remainder(2 * math.pi)
    assert (once == whole).any()  # one remainder is not enough
    wrapped = wrap_angle(angle)
    assert ((wrapped >= 0) & (wrapped < whole)).all()
    assert torch.equal(wrapped[once < whole], once[once < whole])


def test_distance_of_pythagorean_triangles_broadcasts() -> None:
    a = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert distance(a, torch.tensor([3.0, 4.0])).tolist() == pytest.approx([5.0, math.sqrt(13)])
    assert distance(a[:, None], a[None]).shape == (2, 2)


def test_distance_neither_overflows_nor_underflows() -> None:
    far = distance(torch.tensor([3e30, 4e30]), torch.zeros(2))
    close = distance(torch.tensor([3e-30, 4e-30]), torch.zeros(2))
    assert far.item() == pytest.approx(5e30)  # the square would be 2.5e61, beyond float32
    assert close.item() == pytest.approx(5e-30)


def test_nearest_offsets_come_nearest_first() -> None:
    pos = torch.tensor([[[0.0, 0.0], [10.0, 0.0]]])
    points = torch.tensor([[[3.0, 4.0], [0.0, 1.0], [9.0, 0.0]]])  # 5, 1, 9 px from the first; 8.06, 10.05, 1 px
    got = nearest_offsets(pos, points, 2)
    assert got.tolist() == [[[[0, 1], [3, 4]], [[-1, 0], [-7, 4]]]]


def test_nearest_keeps_worlds_apart() -> None:
    pos = torch.zeros(2, 1, 2)
    points = torch.tensor([[[1.0, 0.0], [5.0, 0.0]], [[7.0, 0.0], [2.0, 0.0]]])
    assert nearest_offsets(pos, points, 1).flatten(1).tolist() == [[1, 0], [2, 0]]


def test_nearest_of_too_few_points() -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        nearest_offsets(torch.zeros(1, 1, 2), torch.zeros(1, 2, 2), 3)


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
