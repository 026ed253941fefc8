"""A lesson: a part of the leader-follower task that many runs learn in seconds, to compare how they learn.

Every step within 50 px of the area's edge costs 1, and nothing else counts. It shows whether a change harms learning,
not how well a team flies in the end.
"""

from typing import Any

NOTHING = dict.fromkeys(
    ("border_cost", "goal_reward", "crash_cost", "near_cost", "distance_cost", "match_bonus", "apart_cost"), 0.0
)
LESSON: dict[str, Any] = {
    **{**NOTHING, "border_cost": 1.0, "horizon": 60, "gamma": 0.9, "lr": 3e-3, "alpha": 0.005},
    **{"hidden": 32, "batch": 64, "worlds": 16, "learning_starts": 512, "capacity": 20_000},
    "evaluate_episodes": 20,
}
ABOUT = "Lesson: every step within 50 px of the area's edge costs 1; at random an agent loses about 27 of 60."
METRIC = "return"
"""The metric by which the lesson is judged."""


def course(updates: int, scores: int = 3, **settings: Any) -> dict[str, Any]:
    """Return the settings of the lesson over ``leader_follower_quick``, with ``scores`` evaluations on the way."""
    schedule = {"updates": updates, "evaluate_every": max(1, updates // scores), "log_every": updates}
    return {**LESSON, **schedule, **settings}
