"""What a run yields: numbers after each update, metrics and scores where they are due."""

from itertools import pairwise

import pytest

import uavlab as ul
from uavlab.experiment.progress import Progress

TINY = {"updates": 4, "worlds": 2, "rollout_steps": 3, "hidden": 8, "log_every": 2, "evaluate_every": 4}


def test_each_update_is_reported() -> None:
    run = ul.start("spread", learner="ippo", settings={**TINY, "evaluate_episodes": 2, "runs": 2})
    steps: list[Progress] = list(run)
    assert [step.number for step in steps] == [1, 2, 3, 4]
    assert {step.target for step in steps} == {4}
    assert [step.metrics is not None for step in steps] == [True, True, False, True]  # the first one, too
    assert [step.score is not None for step in steps] == [False, False, False, True]
    assert all(a.seconds <= b.seconds for a, b in pairwise(steps))
    last = steps[-1]
    assert last.each is not None
    assert last.score is not None
    for name, values in last.each.items():
        assert len(values) == 2
        assert last.score[f"eval/{name}"] == pytest.approx(sum(values) / 2)
