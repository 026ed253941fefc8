"""A stage that changes more than how worlds start is noticed, by the function that differs."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.envs.target_assignment.env import Assignment
from uavlab.experiment.curriculum import first_difference

TASK = LeaderFollower(followers=2, obstacles=2, obstacle_speed=5.0, present=(0, 2), present_obstacles=(0, 2))


@dataclass(frozen=True)
class Measured(LeaderFollower):
    weight: float = 1.0

    def measure(self, state: Any, action: torch.Tensor, after: Any) -> dict[str, torch.Tensor]:
        return {name: self.weight * value for name, value in super().measure(state, action, after).items()}


@pytest.mark.parametrize(
    ("stage", "function"),
    [
        (replace(TASK, present=(1, 1), present_obstacles=(0, 0), obstacle_speed=9.0), ""),
        (replace(TASK, dt=0.5), "transition"),
        (replace(TASK, time_cost=3.0), "reward"),
        (replace(TASK, crash_radius=40.0), "reward"),  # and the end of episodes, which is compared later
    ],
)
def test_the_first_function_that_differs(stage: LeaderFollower, function: str) -> None:
    assert first_difference(TASK, stage) == function


def test_figures_and_observations_are_compared() -> None:
    assert first_difference(Measured(), Measured(weight=2.0)) == "measure"
    task = Assignment(uavs=(2, 3), targets=(1, 2))
    assert first_difference(task, replace(task, uavs=(1, 2), slots=(3, 2, 3))) == ""
    assert first_difference(task, replace(task, load=20.0)) == "observe"
