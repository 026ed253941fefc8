"""A report compares the rows of an interval with those of the one before, and names the highest scores and alarms."""

import re

import pytest

from tests.support.fixtures_config import sizes, tiny, train_run
from uavlab.core.errors import TrainingWarning
from uavlab.experiment.config import configure
from uavlab.experiment.diagnostics import median_changes, progress_report
from uavlab.experiment.run import Run


def test_medians_before_and_after() -> None:
    before, after = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0}], [{"a": 9.0}, {"a": 100.0}, {"a": 8.0, "c": 7.0}]
    assert median_changes(before, after, ["a", "b", "c", "d"]) == ["a 2 -> 9", "c 7"]  # b was not measured again


def test_rows_of_the_interval_alone_are_compared() -> None:
    run = train_run(tiny(updates=8, log_every=1, evaluate_every=4))
    run.recorder.rows[:] = [{"update": update, "seconds": 1.0, "critic_loss": float(update)} for update in range(1, 9)]
    assert "critic_loss 4 -> 7" in progress_report(run, 5)  # 3, 4, 5, then 6, 7, 8


def test_highest_scores_and_where() -> None:
    run = train_run(tiny(updates=8, evaluate_every=2, runs=2))
    text = progress_report(run, 4)
    scores, updates = run.best_score.tolist(), run.best_team.updates[:, 0].tolist()
    pairs = zip(scores, updates, strict=True)
    assert (
        f"highest of 4 scores in training {', '.join(f'{score:.4g} at update {update}' for score, update in pairs)}"
        in text
    )
    assert re.match(r"update 8 of 8, [\d.]+ min, [\d,]+ agent-steps/s; eval/completion ", text)


def test_a_run_without_a_score() -> None:
    assert progress_report(Run(tiny()), 0) == "update 0 of 8, 0.0 min; no score yet"


def test_alarms_of_the_interval() -> None:
    with pytest.warns(TrainingWarning):
        run = train_run(tiny(alarms=[{"figure": "critic_loss", "above": -1.0}], log_every=1))
    assert "; alarm at update 1: critic_loss is" in progress_report(run, 0)
    assert "alarm" not in progress_report(run, 4)


def test_advice_after_ten_scores_without_a_better_one() -> None:
    run = Run(configure("pursuit", sizes("pursuit")))
    run.parts.evals_since_best = 9
    assert "try" not in progress_report(run, 0)
    run.parts.evals_since_best = 10
    assert progress_report(run, 0).endswith(
        "; if it has not converged, try entropy=0.1 to explore more, or plateau={} to refine by smaller steps, or a "
        "curriculum to begin with easier worlds"
    )
    run = Run(tiny(plateau={}))  # MASAC finds its temperature itself
    run.parts.evals_since_best = 10
    assert progress_report(run, 0).endswith("; if it has not converged, try a curriculum to begin with easier worlds")
