"""The same updates, however steps are gathered; clocks are not judged."""

import pytest

from uavlab.benchmarks.claims.measures import Bench
from uavlab.experiment.config import configure
from uavlab_notebooks.update_interval import compare_paces, count_steps

TINY = {"hidden": 8, "batch": 8, "device": "cpu"}


def test_paced() -> None:
    settings = {"one": {}, "overlap": {"prefetch": "overlap"}, "both": {"worlds": 16, "ratio": 4}}
    rows = compare_paces(Bench(2, **TINY), settings, [1.0, 0.0])
    assert [(row["step_ms"], row["setting"]) for row in rows] == [(ms, name) for ms in (1.0, 0.0) for name in settings]
    assert (rows[0]["over_first"], rows[0]["low"], rows[0]["high"]) == (1, 1, 1)
    for row in rows:
        assert (row["share"] is None) == (row["setting"] == "overlap")
        assert row["share"] is None or 0 < row["share"] < 1
        assert row["low"] <= row["over_first"] <= row["high"]
        factor = 16 / 4 if row["setting"] == "both" else 1
        assert row["rows_per_s"] == pytest.approx(factor * row["updates_per_s"], abs=1)
    assert rows[0]["updates_per_s"] < 1000  # an update waits for a step of 1 ms


@pytest.mark.parametrize(
    ("toggles", "steps"), [({}, 20), ({"interval": 5}, 20), ({"interval": 20}, 20), ({"ratio": 4}, 5)]
)
def test_steps_made(toggles: dict[str, int], steps: int) -> None:
    small = {"worlds": 4, "learning_starts": 16, "capacity": 256, **TINY}
    assert count_steps(configure("leader_follower", small, toggles), updates=20) == steps
