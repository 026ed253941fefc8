"""Lessons to compare learning by: one that five runs learn in seconds, and the task itself, which takes minutes.

The short one is a part of the task: every step within 50 px of the area's edge costs 1, and nothing else counts. It
tells whether a change harms learning at all, not how well a team flies in the end.
"""

from typing import Any, Literal

Lesson = Literal["edge", "goal"]

EDGE = {
    **{"hidden": 32, "batch": 64, "worlds": 16, "learning_starts": 512, "capacity": 20_000, "horizon": 60},
    **{"border_cost": 1.0, "goal_reward": 0.0, "crash_cost": 0.0, "near_cost": 0.0, "distance_cost": 0.0},
    **{"match_bonus": 0.0, "apart_cost": 0.0, "gamma": 0.9, "lr": 3e-3, "alpha": 0.005, "evaluate_episodes": 20},
}
GOAL = {"hidden": 64, "eval_horizon": 100, "evaluate_episodes": 40}
LESSONS: dict[str, dict[str, Any]] = {"edge": EDGE, "goal": GOAL}
METRICS = {"edge": "return", "goal": "completion"}
"""By what each is judged."""


def course(lesson: Lesson, updates: int, scores: int = 3, **settings: Any) -> dict[str, Any]:
    """Give the settings of a lesson over ``leader_follower_quick``: so many updates, with so many scores on the way."""
    paced = {"updates": updates, "evaluate_every": max(1, updates // scores), "log_every": updates}
    return {**LESSONS[lesson], **paced, **settings}
