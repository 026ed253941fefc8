"""The published figures are those of the paper, in the units of our own."""

import pytest

from uavlab.envs.leader_follower.env import PUBLISHED, LeaderFollower
from uavlab.evaluate import COMMON
from uavlab_notebooks.published import COLUMNS, MADDPG, MASAC, ROWS

SHARES = {"completion", "collision", "timeout", "formation_strict", "formation_mean"}


def test_paths_are_pixels() -> None:
    """The published path sums speed / 30 over steps of 0.1 s: 1 is 30 px/s for 0.1 s, so 3 px."""
    assert (MASAC["path"], MADDPG["path"]) == pytest.approx((151.2 * 3, 186.3 * 3))
    slowest, fastest = 10 * PUBLISHED.dt, 20 * PUBLISHED.dt  # px per step of the leader
    for column in COLUMNS.values():
        assert slowest * column["flight_time"] < column["path"] < fastest * column["flight_time"]


def test_every_row_is_a_figure_of_ours() -> None:
    ours = {metric.name for metric in (*LeaderFollower.metrics, *COMMON)}
    keys = [key for key, _, _ in ROWS]
    assert set(keys) == ours - {"return"}
    assert set().union(*COLUMNS.values()) <= set(keys)
    assert len(set(keys)) == len(keys)
    for key, label, shape in ROWS:
        assert f"{0.5:{shape}}"
        assert label.endswith(")") is (key not in SHARES)  # every row that is no share names its unit


def test_shares_are_shares() -> None:
    for column in COLUMNS.values():
        assert all(0 <= value <= 1 for key, value in column.items() if key in SHARES)
        assert all(value > 1 for key, value in column.items() if key not in SHARES)
    assert abs(MASAC["completion"] + MASAC["collision"] + MASAC["timeout"] - 1) < 1e-9  # a flight ends in one way
