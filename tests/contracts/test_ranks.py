"""Two ranks with N rows each learn what one process learns from 2 N rows, for every registered learner."""

import pytest

from tests.support.lockstep import Twins, small
from uavlab.experiment.build import LEARNERS

UPDATES, TOLERANCE = 5, 1e-9


@pytest.mark.parametrize("learner", LEARNERS)
def test_two_ranks_learn_what_one_process_learns_from_all_rows(learner: str) -> None:
    assert Twins(small(learner)).train(UPDATES) < TOLERANCE


@pytest.mark.parametrize("learner", LEARNERS)
def test_ranks_that_do_not_combine_gradients_are_noticed(learner: str) -> None:
    assert Twins(small(learner), deaf="__call__").train(UPDATES) > 1e3 * TOLERANCE
