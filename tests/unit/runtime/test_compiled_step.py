"""The step that can be compiled equals torch's own Adam and the plain gradient step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from uavlab.runtime.compiled_step import CompiledStep
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.toggles import Toggles, with_toggles

GOAL = torch.tensor([[1.0, -2.0, 0.5], [30.0, 40.0, 0.0]], dtype=torch.float64)


def toward_goal(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Half the squared distance of each row to its goal: the gradient is rows - goal."""
    each = (rows - goal).square().sum(1) / 2
    return each.sum(), {"loss": each.detach(), "apart": Rows((rows - goal).detach(), 1)}


def pair(clip: float | None) -> tuple[GradientStep, CompiledStep]:
    start, toggles = torch.zeros(2, 3, dtype=torch.float64), Toggles(update="batched", adam="fused")
    plain = Runtime(requested=toggles).grad(start, 0.1, clip)
    compiled = Runtime(requested=with_toggles(toggles, {"compile": "default"})).grad(start, 0.1, clip)
    assert isinstance(plain, GradientStep)
    assert isinstance(compiled, CompiledStep)
    return plain, compiled


@pytest.mark.parametrize("clip", [None, 1.0, 20.0])
def test_it_steps_like_the_plain_one(clip: float | None) -> None:
    plain, compiled = pair(clip)
    for _ in range(50):
        one, norm = plain(toward_goal, plain.parameter, GOAL)
        other, same = compiled.functional_step(toward_goal, compiled.parameter, Rows(GOAL, 1))
        torch.testing.assert_close(same, norm, rtol=1e-12, atol=0)
        torch.testing.assert_close(other["loss"], one["loss"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(other["apart"], one["apart"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(compiled.parameter.detach(), plain.parameter.detach(), rtol=1e-12, atol=1e-12)


def test_the_first_step_is_lr_whatever_the_gradient() -> None:
    """Adam's first step is lr g / (|g| + eps): 0.1 for each of the gradients 1, 2 and 0.5, none where g is 0."""
    _, compiled = pair(None)
    compiled.functional_step(toward_goal, compiled.parameter, GOAL)
    expected = torch.tensor([[0.1, -0.1, 0.1], [0.1, 0.1, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(compiled.parameter.detach(), expected, rtol=1e-4, atol=0)


def test_outside_a_compiled_function_it_is_the_plain_one_bit_for_bit() -> None:
    plain, compiled = pair(1.0)
    for _ in range(5):
        for step in (plain, compiled):
            step(toward_goal, step.parameter, GOAL)
    assert torch.equal(compiled.parameter, plain.parameter)


def test_either_goes_on_from_the_others_state() -> None:
    plain, compiled = pair(1.0)
    for _ in range(3):
        compiled.functional_step(toward_goal, compiled.parameter, GOAL)
    plain.load_state_dict({name: value.clone() for name, value in compiled.state_dict().items()})
    for _ in range(3):
        compiled.functional_step(toward_goal, compiled.parameter, GOAL)
        plain(toward_goal, plain.parameter, GOAL)
    compiled.load_state_dict(plain.state_dict())
    compiled.functional_step(toward_goal, compiled.parameter, GOAL)
    plain(toward_goal, plain.parameter, GOAL)
    torch.testing.assert_close(compiled.parameter.detach(), plain.parameter.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stale", [False, True])
def test_corrections_follow_steps_made_elsewhere(stale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = pair(1.0)
    compiled(toward_goal, compiled.parameter, GOAL)  # not compiled: the plain one works
    for _ in range(4):
        plain(toward_goal, plain.parameter, GOAL)
    if stale:
        monkeypatch.setattr(compiled, "_factors", compiled.factors.clone)
    compiled.load_state_dict(plain.state_dict())
    compiled.functional_step(toward_goal, compiled.parameter, GOAL)
    plain(toward_goal, plain.parameter, GOAL)
    assert torch.allclose(compiled.parameter, plain.parameter, rtol=1e-12, atol=1e-12) is not stale


def test_a_forgotten_bias_correction_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = pair(None)
    monkeypatch.setattr(compiled, "factors", torch.tensor([compiled.lr, 1.0], dtype=torch.float64))  # both are 1
    plain(toward_goal, plain.parameter, GOAL)
    compiled.functional_step(toward_goal, compiled.parameter, GOAL)
    assert (compiled.parameter - plain.parameter).abs().max() > 0.05
