"""Every setting has its row, scored on the published maps, and a study goes on where it was ended."""

from pathlib import Path
from typing import Any

import pytest

from uavlab.benchmarks.suites import resolution
from uavlab.benchmarks.suites.resolution import resolution_suite, variants
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.envs.mapping.env import Mapping
from uavlab.evaluation import interval
from uavlab.experiment import policy, scores
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status

SMALL = {"width": 4, "hidden": 8, "measurements": 3, "worlds": 2, "updates": 2, "passes": 1, "minibatches": 1}
SMALL |= {"evaluate_every": 1, "checkpoint_every": 1, "evaluate_episodes": 2}
Record = dict[str, Any]


def study(folder: Path, **changes: Any) -> Record:
    return resolution_suite(3, "cpu", 2, folder=folder, settings={**SMALL, **changes}, say=lambda line: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolution, "EPISODES", 3)
        patch.setattr(resolution, "CELLS", (62,))
        folder = tmp_path_factory.mktemp("study")
        return folder, study(folder)


def test_maps_of_all_settings_cover_the_same_ground() -> None:
    for own in variants().values():
        env = configure("mapping_quick", own).env
        assert isinstance(env, Mapping)
        assert env.cells * env.cell == pytest.approx(Mapping.cells * Mapping.cell)


def test_rows_are_scored_on_the_published_maps(whole: tuple[Path, Record]) -> None:
    folder, rows = whole[0], whole[1]["rows"]
    assert [(row["cells"], row["channels"]) for row in rows] == [(493, 7), (62, 7), (493, 4)]
    assert [row["setting"] for row in rows[:2]] == ["493 cells", "62 cells"]
    for row in rows:
        assert (row["updates"], row["failed"]) == (2, "")
        assert row["update_ms"] > 0
        assert len(row["entropy"]["each"]) == len(row["f1"]["each"]) == 2
    coarse = policy.load(folder / "62_cells", "cpu")
    published = configure("mapping_quick", SMALL).env
    figures = scores.measure(coarse, 3, 0, False, published)
    assert rows[1]["entropy"]["mean"] == pytest.approx(interval(figures["entropy"]).mean, rel=1e-5)
    own = scores.measure(coarse, 3, 0, False, coarse.config.env)
    assert rows[1]["entropy"]["mean"] != pytest.approx(interval(own["entropy"]).mean, rel=1e-3)


def test_a_run_of_the_study_is_the_run_of_its_command(whole: tuple[Path, Record]) -> None:
    command = whole[1]["rows"][1]["trained"]["command"]
    assert command.startswith("uavlab train mapping_quick --learner coma --runs 2 --updates 2")
    assert "--set cells=62" in command
    assert "--set eval_cells=493" in command


def test_a_study_at_its_target_trains_nothing(whole: tuple[Path, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "EPISODES", 3)
    monkeypatch.setattr(resolution, "CELLS", (62,))
    monkeypatch.setattr(Run, "train", lambda run: pytest.fail("trained again"))
    digest = read_status(whole[0] / "62_cells")["digest"]
    again = study(whole[0])
    for row, before in zip(again["rows"], whole[1]["rows"], strict=True):
        assert (row["entropy"], row["f1"]) == (before["entropy"], before["f1"])
    assert read_status(whole[0] / "62_cells")["digest"] == digest


def test_another_study_is_refused_before_training(whole: tuple[Path, Record]) -> None:
    with pytest.raises(ConfigError, match="width"):
        study(whole[0], width=8)


def test_a_run_that_fails_ends_its_own_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "EPISODES", 3)
    monkeypatch.setattr(resolution, "CELLS", ())
    train = Run.train

    def broken(run: Run) -> Any:
        if len(run.config.values["channels"]) == 4:
            raise ResourceError("no memory")
        return train(run)

    monkeypatch.setattr(Run, "train", broken)
    first, four = study(tmp_path)["rows"]
    assert four["failed"].startswith("ResourceError: no memory")
    assert (four["entropy"], four["f1"], four["updates"]) == (None, None, None)
    assert first["failed"] == ""
