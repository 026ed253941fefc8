"""Two ranks with N rows each learn what one process learns from 2 N rows, for every registered learner."""

from typing import Any

import pytest

from tests.support.fixtures_config import sizes
from tests.support.lockstep import Twins
from uavlab.experiment.build import ENVIRONMENTS, LEARNERS
from uavlab.experiment.config import Config, configure

UPDATES, TOLERANCE = 5, 1e-9


def small(learner: str, env: str = "", **more: Any) -> Config:
    """Return small settings of a learner with an even number of worlds, by default on the first task that fits."""
    env = env or next(name for name, each in ENVIRONMENTS.items() if not LEARNERS[learner].refusal(each.kind().spec))
    own = {"learner": learner, **({"worlds": 4} if LEARNERS[learner].collector != "windows" else {})}
    return configure(env, sizes(env, learner), own, more)


@pytest.mark.parametrize("learner", LEARNERS)
def test_two_ranks_learn_what_one_process_learns_from_all_rows(learner: str) -> None:
    assert Twins(small(learner)).train(UPDATES) < TOLERANCE


@pytest.mark.parametrize("learner", LEARNERS)
def test_ranks_that_do_not_combine_gradients_are_noticed(learner: str) -> None:
    assert Twins(small(learner), deaf="__call__").train(UPDATES) > 1e3 * TOLERANCE
