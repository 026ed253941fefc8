"""The published figures of the leader-follower test, and the team of our own that is kept beside them."""

from pathlib import Path

TOUR = Path(__file__).parents[2] / "figures" / "tour"
"""The team that ``make tour`` trains, exported."""

PX_PER_UNIT = 30 * 0.1  # the published path is a sum of speed / 30 over steps of 0.1 s

MASAC = {
    "completion": 0.848,  # shipped weights, 5 x 100 episodes, sampled actions
    "formation_strict": 0.3233,
    "flight_time": 264.9,
    "path": 151.2 * PX_PER_UNIT,
    "energy": 293.5,
    "collision": 0.15,  # shipped weights
    "timeout": 0.002,  # shipped weights
}
"""Fang, Yang and Pan 2024, doi 10.1360/SSI-2024-0050: 100 episodes; completion as measured with the weights shipped.

Their flight time is the index of the last step, and their formation is divided by it; ours count every step, one more
in an episode of some 250.
"""

MADDPG = {"formation_strict": 0.0068, "flight_time": 309.2, "path": 186.3 * PX_PER_UNIT, "energy": 305.9}
"""Their baseline, from the same figures."""

COLUMNS = {"published MASAC": MASAC, "published MADDPG": MADDPG}

ROWS = (
    ("completion", "completion", ".2f"),
    ("formation_strict", "strict formation", ".2f"),
    ("formation_mean", "mean formation", ".2f"),
    ("flight_time", "time (0.1 s steps)", ".0f"),
    ("path", "path (px)", ".0f"),
    ("energy", "energy (Σ |action|)", ".0f"),
    ("collision", "collisions", ".2f"),
    ("timeout", "time-outs", ".2f"),
)
