"""Learning rates on a plateau and alarms of a run: what they change, what is refused, and exact resume."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import stop_and_resume, tiny, train_run
from uavlab.core.errors import ConfigError, TrainingWarning
from uavlab.experiment.run import Run
from uavlab.experiment.schedules import Rates, Schedules, gradient_steps

PLATEAU = {"factor": 0.5, "patience": 0, "threshold": 1.0, "cooldown": 0, "least": 0.25}


def rates(run: Run) -> list[float]:
    return gradient_steps(run.learner)[0].own_rate.view(run.config.run.runs, -1)[:, 0].tolist()


def test_rates_fall_when_scores_do_not_double() -> None:
    run = train_run(tiny(plateau=PLATEAU, runs=2, updates=8))
    assert [level.rate for level in run.schedules.rates.levels] == rates(run)
    assert min(rates(run)) < 1


def test_each_seed_has_its_own_rates() -> None:
    run = Run(tiny(plateau=PLATEAU, runs=2))
    run.schedules.rates.judge([1.0, 1.0], [False, False])
    run.schedules.rates.judge([1.0, 5.0], [False, False])
    run.schedules.apply(run.source, run.learner)
    assert rates(run) == [0.5, 1.0]


def test_scores_of_another_task_are_not_compared() -> None:
    each = Rates(PLATEAU, 1)
    each.judge([5.0], [True])
    each.judge([0.1], [False])
    assert each.levels[0].rate == 1.0


def test_rates_are_resumed_exactly(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"plateau": PLATEAU, "runs": 2}
    whole = train_run(tiny(**settings), tmp_path / "whole")
    resumed = stop_and_resume(tiny(**settings), tmp_path / "run")
    assert (resumed.digest, rates(resumed)) == (whole.digest, rates(whole))


def test_rates_that_are_forgotten_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_run(tiny(plateau=PLATEAU), tmp_path / "whole")
    monkeypatch.setattr(Rates, "load_state_dict", lambda self, state: None)
    assert stop_and_resume(tiny(plateau=PLATEAU), tmp_path / "run").digest != whole.digest


def test_an_alarm_warns_is_recorded_and_may_end_the_run(tmp_path: Path) -> None:
    alarms = [{"figure": "eval/completion", "below": 2.0}, {"figure": "alpha", "above": -1.0, "rows": 2, "stop": True}]
    with pytest.warns(TrainingWarning, match=r"alarm: alpha is [0-9.]+, above -1, for 2 rows; the run ends"):
        run = train_run(tiny(alarms=alarms), tmp_path / "run")
    assert run.status == "interrupted"
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["alarms"]
    assert [(each["update"], each["text"].partition(" is")[0]) for each in stored] == [
        (2, "eval/completion"),
        (2, "alpha"),
    ]
    resumed = Run.resume(tmp_path / "run")
    for _ in resumed.train():
        pass
    assert resumed.number == 8
    assert resumed.alarms == stored  # both stayed beyond their limits, so neither goes off again


def test_an_alarm_of_a_figure_that_no_row_has_is_warned_of_once() -> None:
    names = "alpha, critic_loss"  # others of a run are between them
    with pytest.warns(TrainingWarning) as caught:
        train_run(tiny(alarms=[{"figure": "critic_los", "above": 9.0}, {"figure": "alpha", "above": 1e9}]))
    texts = [str(each.message) for each in caught if "no row has" in str(each.message)]
    assert len(texts) == 1
    assert texts[0].startswith("alarm 1: no row has 'critic_los' so far; rows have ")
    assert all(name in texts[0] for name in names.split(", "))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plateau": {"factor": 1.5}}, "plateau: factor: input should be less than 1, got 1.5"),
        ({"plateau": {"patienc": 1}}, "plateau: unknown setting 'patienc'"),
        ({"alarms": [{"figure": "x"}]}, "alarm 1: got no limit; expected one of above, below, rise, fall"),
        ({"alarms": [{"figure": "x", "rise": -1.0}]}, "alarm 1: rise: input should be greater than 0, got -1.0"),
        (
            {"alarms": [{"figure": "x", "above": 1.0, "below": 0.0}]},
            "alarm 1: got above 1.0 and below 0.0; expected one of above, below, rise, fall",
        ),
        ({"alarms": [{"above": 1.0}]}, "alarm 1: figure: field required"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


@pytest.mark.parametrize(("how", "share"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_rates_grow_with_the_number_of_ranks_as_asked(how: str, share: float) -> None:
    run = Run(tiny(lr_scale=how))
    schedules = Schedules(run.config, run.rng.seeds, run.source, run.learner, ranks=4)
    assert schedules.scale == share
    assert [step.own_rate is None for step in gradient_steps(run.learner)] == [how == "none"] * 3
    if how != "none":
        assert rates(run) == [share]


def test_rates_rise_in_the_first_updates() -> None:
    run = Run(tiny(warmup=4, updates=6))
    assert [rates(run)[0] for _ in run.train()] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_rates_that_rise_are_resumed_exactly(tmp_path: Path) -> None:
    whole = train_run(tiny(warmup=6), tmp_path / "whole")
    resumed = stop_and_resume(tiny(warmup=6), tmp_path / "run")
    assert (resumed.digest, rates(resumed)) == (whole.digest, [1.0])
    assert train_run(tiny(warmup=5)).digest != whole.digest
