"""Every pair has its row; a study that ended goes on; final scores come from episodes that chose no policy."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.registries import entries, registered_outside, replace_entries
from uavlab import api
from uavlab.core.errors import ConfigError, DivergedError
from uavlab.core.registry import ENVIRONMENTS, LEARNERS
from uavlab.experiment import policy, scores
from uavlab.experiment.config import configure
from uavlab.experiment.fit import Pace
from uavlab.experiment.names import PRESETS, Preset
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status
from uavlab_lab import study as studies
from uavlab_lab.suites import learners
from uavlab_lab.suites.learners import learners_suite

PAIRS = ("spread:masac", "spread:mappo")
SMALL = {"minutes": None, "updates": 6, "evaluate_every": 2, "checkpoint_every": 2, "evaluate_episodes": 4, "worlds": 4}
SMALL |= {"hidden": 8, "horizon": 6, "runs": 2}
TIMES = ("minutes", "update_ms", "machine")  # its load
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def same_registries() -> Iterator[None]:
    """Restore all registries with the order of their entries, which a deleted entry would lose."""
    before = entries()
    yield
    replace_entries(before)


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rollouts small, which off-policy learners do not have."""
    monkeypatch.setitem(
        PRESETS, "spread_mappo", Preset("spread", "Small.", {"learner": "mappo", "rollout_steps": 5, "lr": 3e-4})
    )
    monkeypatch.setitem(PRESETS, "spread_quick", Preset("spread", "Small.", {}))


def study(folder: Path, pairs: tuple[str, ...] = PAIRS, **changes: Any) -> Record:
    return learners_suite(3, "cpu", pairs=pairs, folder=folder, settings={**SMALL, **changes}, say=lambda line: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Record]]:
    """Run a study of two pairs without an interruption."""
    with pytest.MonkeyPatch.context() as patch:
        sizes.__wrapped__(patch)
        folder = tmp_path_factory.mktemp("study")
        yield folder, study(folder)


def without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: without_times(each) for name, each in value.items() if name not in TIMES}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list of preset and update at which training begins, whenever it does."""
    began: list[tuple[str, int]] = []
    train = Run.train
    monkeypatch.setattr(Run, "train", lambda run: began.append((run.config.task.learner, run.number)) or train(run))
    return began


class TestPairs:
    def test_every_learner_with_every_team_that_it_fits(self) -> None:
        """An independent twin of the walk: what ``train`` refuses is no pair, and all else that flies is one."""
        fit = {
            (environment, learner)
            for environment in ENVIRONMENTS
            for learner in LEARNERS
            if not refuses(environment, learner) and configure(environment).task.evaluation.flies
        }
        assert {(pair.environment, pair.learner) for pair in learners.choose()} == fit
        assert {environment for environment, _ in fit} == set(ENVIRONMENTS) - {"telemetry"}

    def test_what_is_registered_elsewhere_is_there(self) -> None:
        ours = set(map(str, learners.choose()))
        with registered_outside():
            more = set(map(str, learners.choose()))
        assert {"drift:masac", "drift:reinforce", "spread:reinforce"} <= more - ours
        assert not any("drift" in name or "reinforce" in name for name in ours)

    def test_a_row_of_an_environment_and_a_learner_from_elsewhere(self, tmp_path: Path) -> None:
        with registered_outside():
            small = {name: value for name, value in SMALL.items() if name not in ("hidden", "horizon")}
            pairs, quiet = ("drift:reinforce",), lambda line: None
            record = learners_suite(3, "cpu", pairs=pairs, folder=tmp_path, settings=small, say=quiet)
        (row,) = record["rows"]
        assert (row["environment"], row["learner"], row["preset"]) == ("drift", "reinforce", "drift_quick")
        assert (list(row["plans"]), row["plan"], row["score"]) == (["still"], "still", {"distance": -1.0})

    def test_a_name_stands_for_a_pair_an_environment_or_a_learner(self) -> None:
        names = [str(pair) for pair in learners.choose(["spread", "coma", "pursuit:mappo"])]
        assert names == ["mapping:coma", "pursuit:mappo", "spread:masac", "spread:mappo", "spread:ippo"]
        with pytest.raises(ConfigError, match="unknown pair 'spread:coma'"):
            learners.choose(["spread:coma"])

    def test_presets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pair's own one if the task is that of the quick one; then the quick one; then all defaults."""
        known = {(pair.environment, pair.learner): pair.preset for pair in learners.all_pairs()}
        assert known["leader_follower", "masac"] == "leader_follower_quick"
        assert known["leader_follower", "mappo"] == "leader_follower_mappo"
        assert known["mapping", "ippo"] == "mapping_ippo"
        monkeypatch.setitem(PRESETS, "spread_mappo", Preset("spread", "Another task.", {"uavs": 2}))
        assert learners.preset_of("spread", "mappo") == "spread_quick"
        monkeypatch.delitem(PRESETS, "spread_quick")
        assert learners.preset_of("spread", "masac") == "spread"


def refuses(environment: str, learner: str) -> bool:
    try:
        configure(environment, {"learner": learner})
    except ConfigError:
        return True
    return False


class TestRows:
    def test_a_row_for_each_pair(self, whole: tuple[Path, Record]) -> None:
        rows = whole[1]["rows"]
        assert [f"{row['environment']}:{row['learner']}" for row in rows] == list(PAIRS)
        for row in rows:
            assert (row["seeds"], row["updates"], row["failed"], row["episodes"]) == (2, 6, "", 4)
            assert [point["update"] for point in row["validation"]] == [2, 4, 6]
            assert row["update_ms"] == pytest.approx(60_000 * row["minutes"] / 6, abs=5.1)  # minutes have three digits
            assert (row["plan"], list(row["plans"])) == ("assignment", ["assignment"])
        assert json.loads(json.dumps(whole[1])) == whole[1]

    def test_final_scores_are_those_of_evaluate(self, whole: tuple[Path, Record]) -> None:
        folder, record = whole
        for row in record["rows"]:
            run = folder / f"{row['preset']}-{row['learner']}"
            weights = row["score"]
            figures = api.evaluate(run, episodes=4)
            each = [sum(weights[name] * figures[name]["each"][at] for name in weights) for at in range(2)]
            assert row["best"]["each"] == pytest.approx(each, rel=1e-4)
            assert row["best"]["mean"] == pytest.approx(sum(each) / 2, rel=1e-4)

    def test_validation_scores_are_not_the_final_ones(self, whole: tuple[Path, Record]) -> None:
        """The mutant that reports the scores which chose the policies would have these means."""
        folder, record = whole
        for row in record["rows"]:
            chose = policy.load(folder / f"{row['preset']}-{row['learner']}").score.tolist()
            tops = [max(point["each"][seed] for point in row["validation"]) for seed in range(2)]
            assert tops == pytest.approx(chose, rel=1e-4)  # they are what validation holds
            assert row["best"]["each"] != pytest.approx(chose, rel=1e-3)

    def test_the_last_policies_are_scored_apart(self, whole: tuple[Path, Record]) -> None:
        folder, record = whole
        (row,) = (row for row in record["rows"] if row["learner"] == "mappo")
        run = Run.resume(folder / "spread_mappo-mappo")
        assert row["last"]["each"] != row["best"]["each"]
        newest = policy.TrainedPolicy(run.config, run.rt, 6, [6, 6], run.learner.parameters(), run.best_score)
        values = scores.weigh(run.config.evaluation.score, scores.measure(newest, 4, 0, False))
        assert row["last"]["each"] == pytest.approx(values.mean(1).tolist(), rel=1e-4)

    def test_baselines_are_scored_in_as_many_episodes(self, whole: tuple[Path, Record]) -> None:
        row = whole[1]["rows"][0]
        config = configure("spread", {**SMALL, "runs": 1})
        figures = scores.evaluate_baseline(config, "assignment", 8, 0)
        assert row["plans"]["assignment"]["mean"] == pytest.approx(
            figures["covered"]["mean"] - 0.01 * figures["collisions"]["mean"], rel=1e-4
        )

    def test_the_machine_that_trained_is_named(self, whole: tuple[Path, Record]) -> None:
        folder, record = whole
        machines = [row["trained"]["machine"] for row in record["rows"]]
        assert machines == [
            read_status(folder / name)["machine"] for name in ("spread_quick-masac", "spread_mappo-mappo")
        ]
        assert all(machine["load"] >= 0 for machine in machines)

    def test_the_command_trains_the_same_run(self, whole: tuple[Path, Record]) -> None:
        words = whole[1]["rows"][1]["trained"]["command"].split()
        assert words[:5] == ["uavlab", "train", "spread_mappo", "--learner", "mappo"]
        given = dict(word.split("=") for word in words if "=" in word)
        given |= {words[at].removeprefix("--"): words[at + 1] for at in (5, 7)}
        assert given == {
            **{"runs": "2", "updates": "6", "evaluate_every": "2", "checkpoint_every": "2", "evaluate_episodes": "4"},
            **{"worlds": "4", "hidden": "8", "horizon": "6"},
        }

    def test_a_run_that_fails_has_a_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The mutant that skips it silently would have one row."""
        train = studies.train

        def fail(config: Any, folder: Path, points: int) -> Run:
            if config.task.learner == "masac":
                raise DivergedError({"tensor": "loss", "value": 1e30, "expected": "less"}, "Lower rates.")
            return train(config, folder, points)

        monkeypatch.setattr(studies, "train", fail)
        failed, other = study(tmp_path)["rows"]
        assert failed["failed"].startswith("DivergedError: training: loss is 1e+30")
        assert list(failed) == list(other)
        assert [failed[name] for name in (*learners.MEASURED, "share")] == [None] * 6
        assert (failed["validation"], failed["random"]) == ([], other["random"])
        assert (other["failed"], other["updates"]) == ("", 6)


class TestResume:
    def test_a_study_goes_on_after_the_first_pair(
        self, tmp_path: Path, whole: tuple[Path, Record], trained: list[tuple[str, int]]
    ) -> None:
        study(tmp_path, PAIRS[:1])
        assert trained == [("masac", 0)]
        record = study(tmp_path)
        assert trained == [("masac", 0), ("mappo", 0)]
        assert without_times(record) == without_times(whole[1])
        assert without_times(study(tmp_path)) == without_times(whole[1])
        assert len(trained) == 2

    def test_a_study_goes_on_within_a_pair(
        self, tmp_path: Path, whole: tuple[Path, Record], trained: list[tuple[str, int]]
    ) -> None:
        stop_at(5, lambda: study(tmp_path))
        record = study(tmp_path)
        assert trained == [("masac", 0), ("masac", 5), ("mappo", 0)]
        assert without_times(record) == without_times(whole[1])

    def test_another_study_in_the_folder_is_refused_before_training(
        self, tmp_path: Path, trained: list[tuple[str, int]]
    ) -> None:
        study(tmp_path, PAIRS[1:])
        trained.clear()
        with pytest.raises(ConfigError, match="cannot go on with runs 2 -> 3"):
            study(tmp_path, runs=3)
        assert trained == []

    def test_a_later_target(self, tmp_path: Path, trained: list[tuple[str, int]]) -> None:
        study(tmp_path, PAIRS[:1])
        assert study(tmp_path, PAIRS[:1], updates=8)["rows"][0]["updates"] == 8
        assert trained == [("masac", 0), ("masac", 6)]
        with pytest.raises(ConfigError, match="nothing would be trained"):
            study(tmp_path, PAIRS[:1], updates=7)


def stop_at(number: int, call: Callable[[], Any]) -> None:
    """Interrupt training after an update, as Ctrl-C does."""
    train = Run.train

    def interrupted(run: Run) -> Iterator[Any]:
        for progress in train(run):
            if progress.number == number:
                raise KeyboardInterrupt
            yield progress

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()


class TestPace:
    def test_a_run_by_the_clock_has_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that also ends by updates, so that this machine's speed has no part in it."""
        monkeypatch.setattr(studies, "measure", lambda config: Pace(1, 1.0, "", 0.5, 0.0, 0.5, ""))
        small = {name: value for name, value in SMALL.items() if name not in ("minutes", "runs")} | {"updates": 60}
        options: dict[str, Any] = {"minutes": 5.0, "seeds": 2, "pairs": PAIRS[:1], "folder": tmp_path}
        record = learners_suite(3, "cpu", settings=small, say=lambda line: None, **options)
        values = policy.load(tmp_path / "spread_quick-masac").config.values
        assert (values["evaluate_every"], values["checkpoint_every"]) == (29, 29)  # of 15 s, half a second is a score's
        assert [point["update"] for point in record["rows"][0]["validation"]] == [29, 58]
        monkeypatch.setattr(studies, "measure", lambda config: Pace(1, 1.0, "", 0.1, 0.0, 0.5, ""))
        again = learners_suite(3, "cpu", settings=small, say=lambda line: None, **options)
        assert again["rows"] == record["rows"]  # another pace would be no other run


class TestFigures:
    def test_the_share_of_the_way(self) -> None:
        """Of pursuit by MASAC, with all intervals; random actions and plan taken as exact gave 1.71 to 2.10."""
        best = {"mean": 0.953, "low": 0.919, "high": 0.987, "each": [0.62, 0.795]}
        random = {"mean": 0.620, "low": 0.589, "high": 0.651}
        got = learners.share(best, random, {"mean": 0.795, "low": 0.766, "high": 0.824})
        assert got is not None
        assert got["each"] == [0.0, 1.0]
        assert (got["mean"], got["low"], got["high"]) == pytest.approx((1.90286, 1.56, 2.41), abs=5e-3)

    def test_exact_ends_of_the_way_leave_the_interval_of_the_score(self) -> None:
        best = {"mean": -0.5, "low": -0.625, "high": -0.25}
        got = learners.share(best, dict.fromkeys(best, -0.75), dict.fromkeys(best, -0.25))
        assert got == {"mean": 0.5, "low": 0.25, "high": 1.0, "each": [0.5]}

    @pytest.mark.parametrize("plan", [0.2, 0.1, 0.22])
    def test_a_plan_that_may_be_no_better_makes_no_way(self, plan: float) -> None:
        random, best = {"mean": 0.2, "low": 0.18, "high": 0.22}, {"mean": 0.45, "low": 0.4, "high": 0.5}
        assert learners.share(best, random, {"mean": plan, "low": plan - 0.02, "high": plan + 0.02}) is None
