"""Lessons: parts of the leader-follower task that five runs learn in seconds or in a minute, to compare learning.

``edge``: every step within 50 px of the area's edge costs 1, and nothing else counts. ``formation``: a follower within
50 px of its leader earns 1 per step for both, one farther away costs both. They show whether a change harms learning,
not how well a team flies in the end.
"""

from typing import Any, Literal

Lesson = Literal["edge", "formation"]

NOTHING = dict.fromkeys(
    ("border_cost", "goal_reward", "crash_cost", "near_cost", "distance_cost", "match_bonus", "apart_cost"), 0.0
)
LESSONS: dict[str, dict[str, Any]] = {
    "edge": {
        **{**NOTHING, "border_cost": 1.0, "horizon": 60, "gamma": 0.9, "lr": 3e-3, "alpha": 0.005},
        **{"hidden": 32, "batch": 64, "worlds": 16, "learning_starts": 512, "capacity": 20_000},
        "evaluate_episodes": 20,
    },
    "formation": {
        **{**NOTHING, "match_bonus": 1.0, "apart_cost": 0.005, "horizon": 60, "gamma": 0.9, "alpha": 0.02},
        **{"hidden": 64, "learning_starts": 1024, "evaluate_episodes": 30},
    },
}
ABOUT = {
    "edge": "Lesson: every step within 50 px of the area's edge costs 1; at random an agent loses about 27 of 60.",
    "formation": "Lesson: a follower within 50 px of its leader earns both 1 per step; at random that is 5 % of steps.",
}
METRICS = {"edge": "return", "formation": "formation_mean"}
"""The metric by which each lesson is judged."""


def course(lesson: Lesson, updates: int, scores: int = 3, **settings: Any) -> dict[str, Any]:
    """Return the settings of a lesson over ``leader_follower_quick``, with ``scores`` evaluations on the way."""
    schedule = {"updates": updates, "evaluate_every": max(1, updates // scores), "log_every": updates}
    return {**LESSONS[lesson], **schedule, **settings}
