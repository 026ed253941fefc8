"""The long proof that a fresh team learns its task: `make soak`, or `pytest -m soak tests/proofs/test_learning.py`."""

import pytest

from uavlab.experiment import scores
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_the_quick_preset_reaches_the_goal(seed):
    run = Run(configure("leader_follower_quick", {"seed": seed}))
    for _ in run.train():
        pass
    result = scores.evaluate(run.trained(), 200, seed=0, mean_action=False)
    assert result["completion"]["mean"] >= 0.95
