"""The first bad number in the given order is named by what its axes count; good ones, however large, pass."""

import math

import pytest
import torch
from torch import Tensor

from uavlab.core.errors import DivergedError
from uavlab.core.protocols import CheckedTensors
from uavlab.runtime.finite_check import LARGEST, require_finite


def finding(numbers: CheckedTensors) -> DivergedError:
    with pytest.raises(DivergedError) as refusal:
        require_finite(numbers)
    return refusal.value


def spoilt(shape: tuple[int, ...], index: tuple[int, ...], value: float = math.nan) -> Tensor:
    tensor = torch.zeros(shape)
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(
    ("axes", "place"),
    [
        ("R A", {"run": 1, "agent": 2}),
        ("R K P", {"run": 1, "network": 2}),
        ("R W A O", {"run": 1, "world": 2, "agent": 0, "feature": 3}),
        ("R W A D", {"run": 1, "world": 2, "agent": 0, "dimension": 3}),
        ("depth R W", {"run": 2, "world": 0}),
        ("R N A", {"run": 1, "row": 2, "agent": 0}),
        ("", {}),
    ],
)
def test_axes_tell_where_it_stands(axes: str, place: dict[str, int]) -> None:
    error = finding({"x": (spoilt((2, 3, 1, 4), (1, 2, 0, 3)), axes)})
    assert error.record == {
        "tensor": "x",
        "value": "nan",
        "expected": "a finite number of at most 1e+18 in size",
        "kind": "learner",
        **place,
    }


@pytest.mark.parametrize(
    ("value", "text"), [(math.inf, "inf"), (-math.inf, "-inf"), (1e38, "1e+38"), (-1e38, "-1e+38"), (2e18, "2e+18")]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_bad_number_is_refused(value: float, text: str, dtype: torch.dtype) -> None:
    tensor = spoilt((3,), (1,), value).to(dtype)
    assert finding({"x": (tensor, "R")}).record["value"] == text


def test_the_first_tensor_in_the_given_order_is_to_blame() -> None:
    bad = spoilt((2,), (1,))
    for names in (("cause", "consequence"), ("consequence", "cause")):
        numbers = {"fine": (torch.ones(5), "R"), **dict.fromkeys(names, (bad, "R"))}
        assert finding(numbers).record["tensor"] == names[0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("obs", "environment"),
        ("next_obs", "environment"),
        ("reward", "environment"),
        ("worlds.state.pos", "environment"),
        ("pool.obs", "environment"),
        ("action", "learner"),
        ("target", "learner"),
        ("actor.parameter", "learner"),
    ],
)
def test_the_name_tells_who_made_it(name: str, kind: str) -> None:
    assert finding({name: (spoilt((1,), (0,)), "R")}).record["kind"] == kind


def test_what_is_good_passes() -> None:
    require_finite({})
    require_finite(
        {
            "empty": (torch.zeros(2, 0), "R A"),
            "scalar": (torch.tensor(-LARGEST, dtype=torch.float64), ""),
            "doubles": (torch.full((3,), LARGEST, dtype=torch.float64), "R"),  # their norm is larger than any of them
            "many": (torch.full((100, 100), 0.99e18), "R A"),
            "half": (torch.full((100,), 1e3, dtype=torch.float16), "R"),
            "learned": (torch.ones(2, requires_grad=True), "R"),
            "view": (torch.ones(4, 6).t()[::2], "R A"),
        }
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_asked_once_and_answers_alike() -> None:
    fine = {name: (torch.ones(2, 3, device="cuda", dtype=dtype), "R A") for name, dtype in DTYPES.items()}
    require_finite(fine)
    for value in (math.nan, math.inf, -math.inf, 1e38):
        bad = spoilt((2, 3), (1, 2), value).cuda()
        assert finding({**fine, "x": (bad, "R A")}).record["agent"] == 2


DTYPES = {"single": torch.float32, "double": torch.float64}  # stacked into one tensor before it is read
