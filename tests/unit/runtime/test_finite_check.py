"""The error names the first bad number by its axes, at once or deferred; good numbers of any size pass."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.devices import DEVICES
from uavlab.core.errors import DivergedError
from uavlab.core.protocols import CheckedTensors
from uavlab.runtime.finite_check import LARGEST, DeferredCheck, require_finite

CPU = torch.device("cpu")


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
def test_the_name_decides_between_environment_and_learner(name: str, kind: str) -> None:
    assert finding({name: (spoilt((1,), (0,)), "R")}).record["kind"] == kind


def test_what_is_good_passes() -> None:
    """At once, and deferred; the same tensors with one bad number do not."""
    good = {
        "empty": (torch.zeros(2, 0), "R A"),
        "scalar": (torch.tensor(-LARGEST, dtype=torch.float64), ""),
        "doubles": (torch.full((3,), LARGEST, dtype=torch.float64), "R"),  # their norm is larger than any of them
        "many": (torch.full((100, 100), 0.99e18), "R A"),
        "half": (torch.full((100,), 1e3, dtype=torch.float16), "R"),
        "learned": (torch.ones(2, requires_grad=True), "R"),
        "view": (torch.ones(4, 6).t()[::2], "R A"),
    }
    check = DeferredCheck(CPU)
    for numbers in ({}, good):
        require_finite(numbers)
        check.next_update()
        check.record(numbers)
        check.read(1)
    bad = {**good, "learned": (torch.tensor([1.0, torch.nan]), "R")}
    check.record(bad)
    for read in (lambda: require_finite(bad), lambda: check.read(2)):
        with pytest.raises(DivergedError, match="learned"):
            read()


def numbers(**values: Any) -> CheckedTensors:
    return {name: (torch.tensor(value), "R") for name, value in values.items()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * LARGEST, -2 * LARGEST, LARGEST, -LARGEST, 0.0])
def test_a_deferred_check_refuses_what_the_direct_one_refuses(value: float) -> None:
    for place in range(4):
        values = [0.5] * 4
        values[place] = value
        tensors = numbers(alpha=values[:3], next_obs=values[3:], late=[math.nan])
        del tensors["late" if abs(value) <= LARGEST else "alpha" if place == 3 else "next_obs"]
        findings = []
        for check in (require_finite, lambda tensors: deferred([tensors])):
            try:
                check(tensors)
                findings.append(None)
            except DivergedError as error:
                findings.append((error.record["tensor"], error.record["kind"], error.advice))
        assert findings[0] == findings[1]
        assert (findings[0] is None) == (abs(value) <= LARGEST)


def deferred(updates: list[CheckedTensors], number: int = 1, kind: type[DeferredCheck] = DeferredCheck) -> None:
    check = kind(CPU)
    for tensors in updates:
        check.next_update()
        for name, value in tensors.items():
            check.record({name: value})
    check.read(number)


GOOD = {"obs": [1.0, 2.0], "loss": [3.0]}
HISTORY = [GOOD, {"obs": [1.0, 2.0], "loss": [math.inf]}, {"obs": [math.nan, 1.0], "loss": [math.nan]}, GOOD]


class Latest(DeferredCheck):
    """A mutant that keeps the last finding, not the first."""

    def record(self, numbers: CheckedTensors) -> None:
        self._first.fill_(2**62)
        super().record(numbers)


class Timeless(DeferredCheck):
    """A mutant that does not count updates."""

    def next_update(self) -> None:
        self._count = 0


def cause(kind: type[DeferredCheck]) -> tuple[Any, ...]:
    try:
        deferred([numbers(**values) for values in HISTORY], 14, kind)
    except DivergedError as error:
        return tuple(error.record[key] for key in ("tensor", "kind", "update", "checked"))
    return ()


def test_a_late_reading_names_the_cause_and_its_update() -> None:
    assert cause(DeferredCheck) == ("loss", "learner", 12, 14)
    assert cause(Latest) == ()
    assert cause(Timeless) == ("obs", "environment", 14, 14)
    with pytest.raises(DivergedError, match=r"^training: loss is .* \(checked 2 updates later\) at update 12;"):
        deferred([numbers(**values) for values in HISTORY], 14)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [(("metric", "moment", "state"), "state"), (("metric", "moment"), "moment"), (("metric",), "metric")],
)
def test_within_an_update_what_is_checked_first_comes_first(bad: tuple[str, ...], cause: str) -> None:
    check = DeferredCheck(CPU)
    check.record(numbers(metric=[1.0]))  # before the first update, whatever comes first in one
    for names in (("state",), ("state", "moment")):  # the second is there once an update was made
        check.next_update()
        spoiled = bad if "moment" in names else ()
        check.record(numbers(**{name: [math.nan if name in spoiled else 1.0] for name in names}))
        check.record(numbers(metric=[math.nan if "metric" in spoiled else 1.0]))
    with pytest.raises(DivergedError, match=f"training: {cause} is not finite"):
        check.read(2)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_answers_alike(device: str) -> None:
    fine = {name: (torch.ones(2, 3, device=device, dtype=dtype), "R A") for name, dtype in DTYPES.items()}
    require_finite(fine)
    for value in (math.nan, math.inf, -math.inf, 1e38):
        bad = spoilt((2, 3), (1, 2), value).to(device)
        assert finding({**fine, "x": (bad, "R A")}).record["agent"] == 2


DTYPES = {"single": torch.float32, "double": torch.float64}  # stacked into one tensor before it is read


@pytest.mark.parametrize("value", [1.01e9, -2e9, 1e17, math.nan, math.inf])
def test_a_reward_whose_square_is_no_loss_is_the_cause(value: float) -> None:
    numbers = {
        "next_obs": (torch.full((1, 2, 1), 1e9), "R W A"),
        "reward": (spoilt((1, 2, 1), (0, 1, 0), value), "R W A"),
    }
    error = finding(numbers)
    assert (error.record["tensor"], error.record["world"], error.record["kind"]) == ("reward", 1, "environment")
    assert error.record["expected"] == "a finite number of at most 1e+09 in size"
    check = DeferredCheck(CPU)
    check.next_update()
    check.record(numbers)
    with pytest.raises(DivergedError, match=r"reward is not finite or too large .* at most 1e\+09 in size"):
        check.read(1)


def test_a_loss_of_the_largest_reward_passes() -> None:
    reward = torch.tensor([[1e9, -1e9]])
    numbers = {"reward": (reward, "R W"), "critic_loss": (reward.square(), "R W")}
    require_finite(numbers)
    check = DeferredCheck(CPU)
    check.next_update()
    check.record(numbers)
    check.read(1)
    assert finding({"critic_loss": (1.1 * reward.square(), "R W")}).record["tensor"] == "critic_loss"
