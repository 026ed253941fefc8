"""Both ways of a preset are scored at the same stages in the same episodes; a study that ended goes on."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab import api
from uavlab.core.errors import ConfigError, DivergedError
from uavlab.core.statistics import student
from uavlab.experiment.config import configure
from uavlab.experiment.fit import Pace
from uavlab.experiment.names import PRESETS, Preset
from uavlab.experiment.policy import load
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status
from uavlab_lab import study as studies
from uavlab_lab.suites import curriculum
from uavlab_lab.suites.curriculum import WAYS, both_ways, curriculum_suite, points, stages_of

NAME = "leader_follower_steps"
STAGES = [  # a seed advances with its first score that is no better than one before; the task itself is neither stage
    {"present": [1, 1], "passes": 1000, "patience": 1},
    {"present": [2, 2], "mix": [0.7, 0.3]},
]
TABLE = {"metric": "formation_strict", "margin": 0.0, "stages": STAGES}
OWN = {"followers": 2, "present": [1, 2], "curriculum": TABLE}
SMALL = {**TINY, "minutes": None, "updates": 8, "runs": 2, "lr": 0.1, "evaluate_episodes": 8}
TIMES = ("minutes", "update_ms", "machine")  # its load
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def preset() -> Iterator[None]:
    """Register a preset whose curriculum two runs pass within 8 updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, NAME, Preset("leader_follower", "Small.", OWN))
        yield


def study(folder: Path, **changes: Any) -> Record:
    quiet: Any = lambda line: None  # noqa: E731
    return curriculum_suite(3, "cpu", presets=[NAME], folder=folder, settings={**SMALL, **changes}, say=quiet)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Record]]:
    """Run a study without an interruption."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, NAME, Preset("leader_follower", "Small.", OWN))
        folder = tmp_path_factory.mktemp("study")
        yield folder, study(folder)


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: without_times(each) for name, each in value.items() if name not in TIMES}
    return [without_times(each) for each in value] if isinstance(value, list) else value


class TestWays:
    def test_presets_with_a_curriculum(self) -> None:
        known = ["assignment_curriculum", "assignment_curriculum_quick", "leader_follower_curriculum", NAME]
        assert curriculum.choose() == known
        assert curriculum.choose([NAME, NAME]) == [NAME]

    def test_a_preset_without_one_is_refused_before_training(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"preset 'spread' has no curriculum; expected one of assignment_curr"):
            curriculum_suite(3, "cpu", presets=[NAME, "spread"], folder=tmp_path, say=lambda line: None)
        with pytest.raises(ConfigError, match="unknown preset 'spred'"):
            curriculum.choose(["spred"])
        assert list(tmp_path.iterdir()) == []

    def test_ways_differ_by_the_curriculum_and_the_settings_of_the_last_stage(self) -> None:
        staged, alone = both_ways(NAME, SMALL).values()
        different = {name for name, value in staged.values.items() if alone.values[name] != value}
        assert different == {"curriculum", "present"}
        assert (alone.run.curriculum, alone.env.present) == (None, (2, 2))
        assert (staged.run.checkpoint_every, staged.run.keep) == (2, 3)

    @pytest.mark.parametrize("name", ["assignment_curriculum", "leader_follower_curriculum", NAME])
    def test_alone_is_the_last_stage_as_it_is_scored(self, name: str) -> None:
        """The mutant that leaves out the settings of the last stage fails for the third preset."""
        staged, alone = both_ways(name, {}).values()
        stages = stages_of(staged).scored
        assert stages[-1] == alone.evaluation
        assert stages[0] != alone.evaluation

    def test_enough_scores_to_pass_all_stages(self) -> None:
        """Of ``assignment_curriculum`` 3 stages of 5 passes, four times; 2 of 3 are less than 20, four times 24."""
        plans = [stages_of(configure(name)).plan for name in ("assignment_curriculum", "leader_follower_curriculum")]
        assert [points(plan) for plan in plans] == [60, 24]

    def test_both_ways_are_paced_alike(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 120 s a score in 2 s, 60 of them: one after each of 4 updates of half a second, and no score is free."""
        given: list[int] = []
        monkeypatch.setattr(studies, "measure", lambda config: Pace(1, 1.0, "", 0.5, 0.0, 0.0, ""))
        monkeypatch.setattr(curriculum, "points", lambda plan: given.append(len(plan.stages)) or 60)
        rows = study(tmp_path, minutes=2.0, updates=8)["rows"]
        assert [[point["update"] for point in row["validation"]] for row in rows] == [[4, 8]] * 2
        assert given == [2, 2]


class TestRows:
    def test_two_rows_for_each_preset(self, whole: tuple[Path, Record]) -> None:
        rows = whole[1]["rows"]
        assert [(row["preset"], row["way"]) for row in rows] == [(NAME, "curriculum"), (NAME, "alone")]
        assert list(rows[0]) == list(rows[1])
        for row in rows:
            assert (row["seeds"], row["seed"], row["updates"], row["failed"], row["episodes"]) == (2, 0, 8, "", 8)
            assert [stage["settings"] for stage in row["stages"]] == [{"present": [1, 1]}, {"present": [2, 2]}]
            assert row["last_stage"] == row["stages"][-1]["score"] != row["stages"][0]["score"]
            assert [point["update"] for point in row["validation"]] == [2, 4, 6, 8]
            assert [(point["update"], point["minutes"]) for point in row["curve"]] == [
                (point["update"], point["minutes"]) for point in row["validation"]
            ]
            assert row["trained"]["machine"]["load"] >= 0
        assert json.loads(json.dumps(whole[1])) == whole[1]

    def test_decisions_and_stages(self, whole: tuple[Path, Record]) -> None:
        folder, record = whole
        staged, alone = record["rows"]
        assert staged["decisions"] == read_status(folder / f"{NAME}-curriculum")["decisions"]
        moves = [(each["update"], each["seed"], each["from"], each["to"]) for each in staged["decisions"]]
        assert moves
        assert all((start, to) == (1, 2) for _, _, start, to in moves)
        for at in range(2):
            began = next((update for update, seed, _, _ in moves if seed == at), 9)
            expected = [2 if point["update"] > began else 1 for point in staged["validation"]]
            assert [point["stages"][at] for point in staged["validation"]] == expected
            assert staged["reached"][at] == (2 if began < 9 else 1)
        assert (alone["decisions"], alone["reached"]) == ([], [2, 2])
        assert not any("stages" in point for point in alone["validation"])

    def test_scores_are_those_of_evaluate_at_the_stage(self, whole: tuple[Path, Record]) -> None:
        """An independent way to the figures: the mutants that swap ways, stages or episodes have others."""
        folder, record = whole
        seen = set()
        for row in record["rows"]:
            weights = row["score"]
            for stage in row["stages"]:
                env = replace(configure(NAME, SMALL).evaluation, present=tuple(stage["settings"]["present"]))
                figures = api.evaluate(folder / f"{NAME}-{row['way']}", episodes=8, env=env)
                each = [sum(weights[name] * figures[name]["each"][at] for name in weights) for at in range(2)]
                assert stage["score"]["each"] == pytest.approx(each, rel=1e-4)
                assert stage["score"]["mean"] == pytest.approx(sum(each) / 2, rel=1e-4)
                seen.add(tuple(stage["score"]["each"]))
        assert len(seen) == 4

    def test_differences_are_of_pairs_of_seeds(self, whole: tuple[Path, Record]) -> None:
        staged, alone = whole[1]["rows"]
        for own, other in zip(staged["stages"], alone["stages"], strict=True):
            each = [a - b for a, b in zip(own["score"]["each"], other["score"]["each"], strict=True)]
            got = own["difference"]
            assert got["each"] == pytest.approx(each, abs=1e-4)
            assert [got[name] for name in ("mean", "low", "high")] == pytest.approx(student(each), abs=1e-3)
            assert other["difference"] is None
        assert staged["difference"] == staged["stages"][-1]["difference"]
        assert staged["difference"]["mean"] != 0

    def test_the_curve_is_of_the_newest_policies_at_the_last_stage(self, whole: tuple[Path, Record]) -> None:
        folder, record = whole
        for row in record["rows"]:
            newest = load(folder / f"{NAME}-{row['way']}", which="last")
            env = stages_of(both_ways(NAME, SMALL)["curriculum"]).scored[-1]
            values = curriculum.score_episodes(newest, env).mean(1)
            assert row["curve"][-1]["each"] == pytest.approx(values.tolist(), rel=1e-4)
            assert row["curve"][0]["each"] != row["curve"][-1]["each"]

    def test_both_ways_have_the_same_episodes(self, whole: tuple[Path, Record]) -> None:
        """The same policy has the same scores in both, and others in other episodes."""
        folder, _ = whole
        staged, alone = (load(folder / f"{NAME}-{way}") for way in WAYS)
        env = stages_of(staged.config).scored[-1]
        alike = replace(alone, parameters=staged.parameters)
        values = curriculum.score_episodes(staged, env)
        assert torch.equal(curriculum.score_episodes(alike, env), values)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(curriculum, "SEED", 1)
            assert not torch.equal(curriculum.score_episodes(alike, env), values)

    def test_commands_train_the_same_runs(self, whole: tuple[Path, Record]) -> None:
        staged, alone = (row["trained"]["command"] for row in whole[1]["rows"])
        head = f"uavlab train {NAME} --learner masac --runs 2 --updates 8 "
        assert (staged[: len(head)], alone[: len(head)]) == (head, head)
        assert set(shlex.split(alone)) - set(shlex.split(staged)) == {"curriculum=null", "present=[2, 2]"}
        assert "curriculum" not in staged

    def test_a_run_that_fails_has_a_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        train = studies.train

        def fail(config: Any, folder: Path, count: int) -> Run:
            if config.run.curriculum is not None:
                raise DivergedError({"tensor": "loss", "value": 1e30, "expected": "less"}, "Lower rates.")
            return train(config, folder, count)

        monkeypatch.setattr(studies, "train", fail)
        failed, other = study(tmp_path)["rows"]
        assert failed["failed"].startswith("DivergedError: training: loss is 1e+30")
        assert list(failed) == list(other)
        assert [failed[name] for name in curriculum.MEASURED] == [None] * 5
        assert [stage["score"] for stage in failed["stages"]] == [None, None]
        assert (other["failed"], other["updates"], other["difference"]) == ("", 8, None)


class TestResume:
    def test_a_study_goes_on_within_a_run(self, tmp_path: Path, whole: tuple[Path, Record]) -> None:
        """It ends at update 5, which no score is due at and whose checkpoint has no part in the record."""
        began: list[tuple[bool, int]] = []
        with pytest.MonkeyPatch.context() as patch:
            train = Run.train

            def watched(run: Run) -> Iterator[Any]:
                first, staged = not began, run.config.run.curriculum is not None
                began.append((staged, run.number))
                for progress in train(run):
                    if first and progress.number == 5:
                        raise KeyboardInterrupt
                    yield progress

            patch.setattr(Run, "train", watched)
            with pytest.raises(KeyboardInterrupt):
                study(tmp_path)
            record = study(tmp_path)
            assert without_times(study(tmp_path)) == without_times(record)
        assert began == [(True, 0), (True, 5), (False, 0)]
        assert without_times(record) == without_times(whole[1])

    def test_another_study_in_the_folder_is_refused(self, whole: tuple[Path, Record]) -> None:
        with pytest.raises(ConfigError, match="cannot go on with runs 2 -> 3"):
            study(whole[0], runs=3)
