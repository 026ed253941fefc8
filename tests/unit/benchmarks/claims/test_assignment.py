"""Transfer to larger teams is the ratio of a trained policy's scores, of the same weights."""

import pytest

import uavlab as ul
from uavlab.experiment.config import configure
from uavlab_lab.claims import assignment
from uavlab_lab.claims.ledger import select
from uavlab_lab.claims.measures import Bench

SMALL = {"worlds": 8, "rollout_steps": 4, "minibatches": 1, "hidden": 8, "heads": 2, "layers": 1, "device": "cpu"}


def test_it_is_that_of_a_run_with_these_settings() -> None:
    table = ul.transfer(
        ul.train("assignment_quick", progress=False, settings={"updates": 2, **SMALL}),
        stages="assignment_curriculum",
        episodes=6,
        mean_action=True,
    )
    bench = Bench(3, **SMALL)
    for stage in (1, 4):
        measured = assignment.transfer_ratio(bench, "assignment_quick", "assignment_curriculum", stage, 2, episodes=6)
        ratio = table.rows[stage - 1]["ratio"]
        assert (measured.value, measured.low, measured.high) == pytest.approx(tuple(ratio.values()))
    assert measured.note.startswith("after 2 updates, normalized_score 0.")


def test_the_claim_is_about_the_last_stage() -> None:
    (claim,) = select(["zero-shot"])
    stages = configure(claim.call["stages"]).run.curriculum["stages"]
    assert len(stages) == claim.call["to"]
