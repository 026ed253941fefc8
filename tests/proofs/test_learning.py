"""A memory learns what needs one; `pytest -m soak tests/proofs/test_learning.py`: a fresh team learns its task."""

import pytest

from tests.unit.learners.ppo.test_recurrent import recall
from uavlab.experiment import scores
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run


def test_a_memory_learns_what_no_policy_without_one_can() -> None:
    assert recall(16, 20).min() > 0.9
    assert recall(0, 20).abs().max() < 0.1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_the_quick_preset_reaches_the_goal(seed):
    run = Run(configure("leader_follower_quick", {"seed": seed}))
    for _ in run.train():
        pass
    result = scores.evaluate(run.trained(), 200, seed=0, mean_action=False)
    assert result["completion"]["mean"] >= 0.95
