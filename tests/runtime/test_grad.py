"""Rows of one matrix are clipped and stepped as if each were alone with torch's own Adam."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uavlab.runtime.grad import ADAM_EPS, GradientStep

LR = 0.1
GOAL = torch.tensor([[1.0, -2.0, 0.5], [30.0, 40.0, 0.0]])


def toward_goal(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared distance of each row to its goal: the gradient is rows - goal."""
    each = (rows - goal).square().sum(1) / 2
    return each.sum(), {"loss": each.detach()}


def alone(start: Tensor, goal: Tensor, clip: float | None, steps: int) -> Tensor:
    """Do the same with one parameter and one torch.optim.Adam for each row."""
    made = []
    for row, target in zip(start, goal, strict=True):
        parameter = row.clone().requires_grad_()
        adam = torch.optim.Adam([parameter], lr=LR, eps=ADAM_EPS)
        for _ in range(steps):
            adam.zero_grad()
            (parameter - target).square().sum().div(2).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([parameter], clip)
            adam.step()
        made.append(parameter.detach())
    return torch.stack(made)


@pytest.mark.parametrize("clip", [None, 1.0, 20.0])
def test_rows_step_like_adam_alone(clip: float | None) -> None:
    step = GradientStep(torch.zeros(2, 3), LR, clip)
    for _ in range(20):
        step(toward_goal, GOAL)
    torch.testing.assert_close(step.parameter.detach(), alone(torch.zeros(2, 3), GOAL, clip, 20))


def test_each_row_is_clipped_by_its_own_norm() -> None:
    step = GradientStep(torch.zeros(2, 3), LR, 10.0)
    metrics, norm = step(toward_goal, GOAL)
    torch.testing.assert_close(norm, torch.tensor([5.25**0.5, 50.0]))  # 1 + 4 + 0.25; 30, 40: before clipping
    assert step.parameter.grad is not None
    torch.testing.assert_close(step.parameter.grad, torch.tensor([[-1.0, 2.0, -0.5], [-6.0, -8.0, 0.0]]))
    torch.testing.assert_close(metrics["loss"], torch.tensor([5.25 / 2, 1250.0]))


def test_clipping_by_the_norm_of_all_rows_would_be_seen() -> None:
    """The mutant: one norm for the whole matrix shrinks the small row as well, which Adam's eps then shows."""
    tiny_goal = torch.tensor([[1e-5, 0.0, 0.0], [30.0, 40.0, 0.0]])

    def first_row(clip_all: bool) -> float:
        step = GradientStep(torch.zeros(2, 3), LR, None if clip_all else 1.0)
        loss: Callable = toward_goal
        if clip_all:

            def loss(rows: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                return toward_goal(rows, goal)[0] / 50, {}

        step(loss, tiny_goal)
        return step.parameter[0, 0].item()

    # Adam's first step is lr g / (|g| + eps): a half of lr at g = eps = 1e-5, a 51st at g = 1e-5 / 50
    assert first_row(clip_all=False) == pytest.approx(LR / 2, rel=1e-3)
    assert first_row(clip_all=True) == pytest.approx(LR / 51, rel=1e-3)


def test_the_given_matrix_is_copied() -> None:
    given = torch.zeros(2, 3)
    step = GradientStep(given, LR, None)
    step(toward_goal, GOAL)
    assert not given.any()
    assert step.parameter.any()


def test_inputs_receive_no_gradient() -> None:
    goal = GOAL.clone().requires_grad_()
    GradientStep(torch.zeros(2, 3), LR, 1.0)(toward_goal, goal)
    assert goal.grad is None


@pytest.mark.parametrize("before", [0, 3])
def test_a_restored_state_goes_on_bit_for_bit(before: int) -> None:
    whole, first = (GradientStep(torch.zeros(2, 3), LR, 1.0) for _ in range(2))
    for step in (whole, first):
        for _ in range(before):
            step(toward_goal, GOAL)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    second = GradientStep(torch.ones(2, 3), LR, 1.0)
    second(toward_goal, -GOAL)  # moments that must be forgotten
    second.load_state_dict(state)
    for _ in range(3):
        whole(toward_goal, GOAL)
        second(toward_goal, GOAL)
    assert set(second.state_dict()) == {"parameter", "step", "exp_avg", "exp_avg_sq"}
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert all(torch.equal(value, first.state_dict()[name]) for name, value in state.items())  # nothing is shared
