"""Tables of stages, what is refused in them, and where the seeds of a run are."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes, stop_and_resume, tiny, train_run
from uavlab.core.errors import ConfigError
from uavlab.envs.leader_follower.env import LeaderFollower
from uavlab.experiment import curriculum, diagnostics
from uavlab.experiment import run as module
from uavlab.experiment.config import configure
from uavlab.experiment.curriculum import Fallback, Position, Progression, Stage, parse
from uavlab.experiment.run import Run
from uavlab.experiment.schedules import gradient_steps
from uavlab.replay.buffer import ByStage

ENV = LeaderFollower(obstacle_speed=10.0)
EASY, HARD = {"obstacle_speed": 0.0, "mark": 0.9}, {"obstacle_speed": 20.0, "mark": 0.8}
TABLE = {"metric": "completion", "stages": [EASY, HARD]}
SCORES = {2: 1.0, 4: 1.0, 6: 0.0, 8: 1.0, 10: 0.0, 12: 1.0}  # by update
SCRIPT: dict[str, Any] = {
    **{"updates": 12, "evaluate_every": 2, "runs": 2, "checkpoint_every": 2},
    **{"obstacle_speed": 10.0, "world_steps": 16, "capacity": 256},  # so that new worlds come from each stage
    "curriculum": {
        **{"metric": "formation_strict", "settle": 1, "failures": 1, "fallbacks": 1},
        "stages": [
            {"obstacle_speed": 0.0, "mark": 0.9, "passes": 1},
            {"obstacle_speed": 20.0, "mark": 0.9, "passes": 2, "rate": 0.5, "mix": [0.75, 0.25]},
        ],
    },
}


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse({**TABLE, **changes}, ENV)
    return str(caught.value)


def test_a_table_becomes_stages() -> None:
    plan = parse({**TABLE, "advance": "aggressive", "margin": 0.5, "stages": [EASY, {"mix": [0.7, 0.3]}]}, ENV)
    assert plan.fallback == Fallback(margin=0.5)
    assert plan.stages == (
        Stage({"obstacle_speed": 0.0}, mark=0.9, passes=3, patience=5),
        Stage({}, mark=0.7, passes=3, patience=5, mix=(0.7, 0.3)),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "speed"}, "curriculum: metric 'speed': expected one of completion, formation_strict"),
        ({"metric": "path"}, "curriculum: metric path: low is better; expected one of which more is better"),
        ({"advance": "fast"}, "curriculum: advance: input should be 'conservative' or 'aggressive', got 'fast'"),
        ({"stages": []}, "curriculum: stages: list should have at least 1 item after validation, not 0, got []"),
        (
            {"stages": [EASY] * 5000},
            "curriculum: stages: list should have at most 100 items after validation, not 5000",
        ),
        ({"stages": [EASY, 5]}, "curriculum: stages: input should be a valid dictionary, got 5"),
        ({"pases": 3}, "curriculum: unknown setting 'pases'"),
        ({"margin": 1.5}, "curriculum: margin: input should be less than or equal to 1, got 1.5"),
        ({"stages": [{"mark": 1.2}]}, "stage 1: mark 1.2: expected a value of completion, from 0 to 1"),
        ({"stages": [{"obstacle_spede": 1.0}]}, "unknown setting 'obstacle_spede' (did you mean 'obstacle_speed'?)"),
        ({"stages": [{"obstacle_speed": -1.0}]}, "stage 1: obstacle_speed: input should be greater than or equal to 0"),
        ({"stages": [EASY, {"mix": [0.7, 0.2]}]}, "stage 2: mix [0.7, 0.2]: expected two shares that sum to 1"),
        ({"stages": [{"mix": [0.7, 0.3]}]}, "stage 1: mix [0.7, 0.3]: there is no stage before; expected [1, 0]"),
        ({"stages": [EASY, {"obstacles": 3}]}, "initial_noise 13 -> 19; expected equal ones: let stages have as many"),
        ({"stages": [EASY, {"obstacles": 3}]}, "stage 2: obstacles: expected settings that initial alone reads: obst"),
        ({"stages": [EASY, {"sight": 2}]}, "stage 2: sight 2 > obstacles 1: an agent cannot see more than there are"),
        ({"stages": [EASY, {"mark": 0.5}]}, "stage 2: mark 0.5: below 0.54, at which a seed falls back after the mark"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(**changes)


def test_settings_that_would_have_no_effect_are_refused() -> None:
    message = "stage 1: crash_radius: expected settings that initial alone reads: obstacle_speed, present,"
    assert message in refusal(stages=[{"crash_radius": 30.0}])
    still = tiny(**{**SCRIPT, "obstacle_speed": 0.0})
    with pytest.raises(ConfigError, match="stage 2: transition differs from that of the task, which steps the worlds"):
        Run(still)


def test_all_problems_are_listed() -> None:
    text = refusal(metric="speed", stages=[{"mark": 0.5, "horizn": 3}, {"mix": [1.0, 1.0]}])
    assert [each in text for each in ("metric 'speed'", "stage 1: unknown", "stage 2: mix [1.0, 1.0]")] == [True] * 3


def test_stages_go_from_small_to_large() -> None:
    env = configure("assignment_curriculum").env
    stages = [{"uavs": [4, 6], "slots": [20, 15, 10]}, {"uavs": [2, 3], "slots": [20, 15, 10]}]
    with pytest.raises(ConfigError, match=re.escape("stage 2: uavs (2, 3) after (4, 6): expected stages in order")):
        parse({"metric": "completion", "stages": stages}, env)


def test_a_task_without_worlds_has_no_stages() -> None:
    with pytest.raises(ConfigError, match=r"has no worlds that could start in stages; leave it out"):
        configure("telemetry", {"curriculum": {"metric": "r2", "stages": [{}]}})


def test_settings_are_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leader_follower: curriculum: metric 'x'"):
        tiny(curriculum={"metric": "x", "stages": [{}]})


# ---- progress of seeds ----


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second seed score as ``SCORES`` says, and the first one pass always."""
    judge = Progression.judge

    def by_script(self: Progression, scores: Any, update: int) -> list[bool]:
        return judge(self, [1.0, SCORES[update]], update)

    monkeypatch.setattr(Progression, "judge", by_script)


def test_a_seed_that_fails_falls_back_learns_slower_and_recovers(scripted: None, tmp_path: Path) -> None:
    run = train_run(tiny(**SCRIPT), tmp_path / "run")
    stages = [row["each"]["eval/stage"] for row in run.recorder.rows if "eval/stage" in row]
    assert stages == [[1, 1], [2, 2], [2, 2], [2, 1], [2, 2], [2, 2]]
    log = run.schedules.progression.log
    assert [tuple(row[name] for name in ("update", "seed", "decision", "from", "to")) for row in log] == [
        *((2, 0, "advance", 1, 2), (2, 1, "advance", 1, 2), (6, 0, "complete", 2, 2)),
        *((6, 1, "fall_back", 2, 1), (8, 1, "advance", 1, 2)),
    ]
    assert run.schedules.since == [2, 8]  # a stage that is complete is not left
    assert log[3]["reason"] == "1 scores in a row below 0.6, 0.6 of the stage before"
    (rates,) = {tuple(step.own_rate.view(2, -1)[:, 0].tolist()) for step in gradient_steps(run.learner)}
    assert rates == (0.5, 0.25)
    assert run.source.share.tolist() == [[0.25, 0.75]] * 2
    assert run.source.store.former.tolist() == [0.25, 0.25]


def test_scores_of_an_easier_stage_choose_no_policy(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both seeds come to the second stage at update 2; the second one is back at the first when it scores 9."""
    scores = iter([[0.9, 0.9], [0.4, 0.1], [0.3, 0.2], [0.2, 9.0], [0.1, 0.3], [0.1, 0.25]])
    monkeypatch.setattr(module, "mean_scores", lambda *given: torch.tensor(next(scores))[:, None])
    run = train_run(tiny(**SCRIPT))
    assert run.best_team.updates.flatten().tolist() == [4, 10]
    torch.testing.assert_close(run.best_team.score.flatten(), torch.tensor([0.4, 0.3]))


def test_stages_are_resumed_exactly(scripted: None, tmp_path: Path) -> None:
    whole = train_run(tiny(**SCRIPT), tmp_path / "whole")
    for stop in (2, 6, 7):
        run = Run(tiny(**SCRIPT), tmp_path / str(stop))
        for progress in run.train():
            if progress.number == stop:
                run.stop()
        resumed = Run.resume(tmp_path / str(stop))
        for _ in resumed.train():
            pass
        assert (resumed.digest, resumed.schedules.progression.log) == (whole.digest, whole.schedules.progression.log)


def test_alarms_know_when_each_seed_came_to_its_stage(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []

    def watch(alarm: Any, rows: Any, since: list[int]) -> str:
        calls.append([*since])
        return ""

    monkeypatch.setattr(diagnostics, "went_off", watch)
    train_run(tiny(**SCRIPT, alarms=[{"figure": "alpha", "above": 9.0}]))
    assert (calls[0], [2, 2] in calls, calls[-1]) == ([0, 0], True, [2, 8])


def test_a_run_that_ends_between_scores_does_not_judge(scripted: None) -> None:
    """A seed that was just promoted has no score at its stage; it keeps the newest policy, and no seed moves."""
    run = train_run(tiny(**{**SCRIPT, "updates": 3}))
    assert [row["update"] for row in run.recorder.rows if "eval/stage" in row] == [2]
    assert [position.scores for position in run.schedules.progression.positions] == [0, 0]
    assert torch.equal(run.trained().parameters, run.learner.parameters())
    short = train_run(tiny(**{**SCRIPT, "updates": 1}))  # without any score, one is taken, which judges nobody
    assert [row["update"] for row in short.recorder.rows if "eval/completion" in row] == [1]
    assert short.schedules.progression.log == []


def test_patience_counts_from_the_last_move(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    stale: list[int] = []
    score = Run.validate

    def watch(self: Run, *arguments: Any, **options: Any) -> Any:
        result = score(self, *arguments, **options)
        stale.append(self.parts.evals_since_best)
        return result

    monkeypatch.setattr(Run, "validate", watch)
    train_run(tiny(**SCRIPT))
    assert stale[0] == stale[2] == stale[3] == 0  # promoted, fallen back, and below its highest stage


def test_rules_hold_at_stages_as_policies_are_evaluated() -> None:
    own = {"followers": 4, "present": [4, 4], "eval_followers": 2}
    table = {"metric": "completion", "stages": [{"present": [1, 1]}, {"present": [3, 3]}, {}]}
    message = r"stage 2, as policies are evaluated: present (3, 3): expected fewest and most of the 2 followers"
    with pytest.raises(ConfigError, match=re.escape(message)):
        configure("leader_follower", own, {"curriculum": table})


def test_followers_go_from_few_to_many() -> None:
    env = LeaderFollower(followers=4, present=(4, 4))
    stages = [{"present": [3, 3]}, {"present": [1, 1]}]
    with pytest.raises(ConfigError, match=re.escape("stage 2: present (1, 1) after (3, 3): expected stages in order")):
        parse({"metric": "completion", "stages": stages}, env)


def by_seed(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Let one seed score as ``SCORES`` says, and all others pass always."""
    judge = Progression.judge

    def scores(self: Progression, scores: Any, update: int) -> list[bool]:
        return judge(self, [SCORES[update] if seed == failing else 1.0 for seed in self.seeds], update)

    monkeypatch.setattr(Progression, "judge", scores)


def rolled(learner: str, **changes: Any) -> Run:
    own = {"learner": learner, **SCRIPT, **changes}
    names = configure("leader_follower", {"learner": learner}).values
    small = {**sizes("leader_follower", learner), **own}
    return train_run(configure("leader_follower", {name: value for name, value in small.items() if name in names}))


@pytest.mark.parametrize("learner", ["masac", "mappo"])
def test_seeds_of_one_process_advance_and_learn_as_they_do_alone(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_seed(monkeypatch, failing=4)
    together, alone = rolled(learner, seed=3), [rolled(learner, seed=seed, runs=1) for seed in (3, 4)]
    log = together.schedules.progression.log
    assert {row["decision"] for row in log} >= {"advance", "fall_back"}
    for at, run in enumerate(alone):
        expected = run.learner.parameters()[0]
        torch.testing.assert_close(together.learner.parameters()[at], expected, rtol=1e-4, atol=1e-6)
        assert run.schedules.progression.log == [row for row in log if row["seed"] == run.rng.seeds[0]]
    monkeypatch.undo()
    by_seed(monkeypatch, failing=3)
    other = rolled(learner, seed=4, runs=1)
    assert not torch.allclose(other.learner.parameters()[0], alone[1].learner.parameters()[0], rtol=1e-4, atol=1e-6)


def forget_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progression, "load_state_dict", lambda self, state: None)


def keep_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "learning_rate", lambda plan, position: 1.0)


def keep_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "shares", lambda plan, stage: [1.0, 0.0])


def mix_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByStage, "set_stage", lambda self, stage, former: None)


@pytest.mark.parametrize("broken", [forget_positions, keep_rates, keep_shares, mix_no_rows])
def test_what_a_stage_does_not_change_is_noticed(
    scripted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None]
) -> None:
    whole = train_run(tiny(**SCRIPT), tmp_path / "whole")
    broken(monkeypatch)
    assert stop_and_resume(tiny(**SCRIPT), tmp_path / "run").digest != whole.digest


def test_the_best_policy_is_of_the_highest_stage(scripted: None) -> None:
    run = Run(tiny(**SCRIPT))
    updates = {}
    for progress in run.train():
        updates[progress.number] = (run.best_team.updates[:, 0].tolist(), torch.isinf(run.best_score).tolist())
    assert updates[2] == ([2, 2], [True, True])  # both have just advanced
    assert updates[4][1] == [False, False]
    assert updates[8][0][1] in (4, 6)  # what the second seed scored at the first stage again does not count


@pytest.mark.parametrize("learner", ["masac", "mappo"])
def test_a_curriculum_of_one_stage_trains(learner: str, tmp_path: Path) -> None:
    table = {"metric": "completion", "stages": [{"obstacle_speed": 5.0}]}
    names = {"curriculum": table, "obstacle_speed": 5.0, "learner": learner}
    config = configure("leader_follower", {**sizes("leader_follower", learner), **names})
    run = train_run(config, tmp_path / "run")
    assert (run.status, run.schedules.progression.stages) == ("complete", (0,))


@pytest.mark.parametrize(("score", "warned"), [(0.0, True), (0.8, False)])
def test_a_seed_that_advances_without_its_mark_is_warned_of(score: float, warned: bool) -> None:
    plan = parse({**TABLE, "stages": [{**EASY, "mark": 0.8, "passes": 9, "patience": 2}, {}]}, ENV)
    own = Progression(plan, ENV, {}, [7])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for update in range(3):
            own.judge([score], update)
    assert own.stages == (1,)
    text = (
        "curriculum: seed 7 leaves stage 1 by patience, its highest score 0 below the mark 0.8; raise patience, or "
        "set patience: 0 so that it stays."
    )
    assert [str(each.message) for each in caught] == [text] * warned


def test_positions_are_tensors() -> None:
    plan = parse(TABLE, ENV)
    one = Progression(plan, ENV, {}, [0, 1])
    one.positions[1] = Position(stage=1, scores=3, passed=1, failed=2, best=0.5, stale=1, finals=(0.95,), reached=1)
    other = Progression(plan, ENV, {}, [0, 1])
    other.load_state_dict(one.state_dict())
    assert other.positions == one.positions


def test_policies_are_scored_at_their_stages_with_the_settings_of_evaluation() -> None:
    one = curriculum.progression(tiny(**SCRIPT, eval_dt=0.5), [0, 1])
    assert [env.dt for env in one.scored] == [0.5, 0.5]
    one.positions[1] = Position(stage=1, finals=(1.0,), reached=1)
    state = one.env.initial(torch.rand(6, one.env.spec.initial_noise))
    assert (state.drift.norm(dim=-1).amax(1) > 0).tolist() == [False] * 3 + [True] * 3
