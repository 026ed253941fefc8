"""Runs take turns, end as each would alone, and go on where the study was ended; clocks are not judged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import TINY, train_run
from uavlab.benchmarks.registry import format_rows
from uavlab.benchmarks.suites import interval_learning
from uavlab.benchmarks.suites.interval_learning import (
    PRESETS,
    first_to,
    format_row,
    interval_learning_suite,
    train_in_turn,
)
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status
from uavlab.lab.plots.charts import learning_curves

SMALL = {**TINY, "step_ms": 0.0, "pause_ms": 0.0, "checkpoint_every": 2, "updates": 20}


def study(folder: Path, **changes: Any) -> dict[str, Any]:
    quiet: Any = lambda line: None  # noqa: E731
    return interval_learning_suite(3, "cpu", 2, folder=folder, settings={**SMALL, **changes}, say=quiet)


@pytest.fixture(scope="module", autouse=True)
def few_scores() -> Iterator[None]:
    """Score each run four times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval_learning, "POINTS", 4)
        yield


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A study without an interruption, and its folder."""
    folder = tmp_path_factory.mktemp("study")
    return folder, study(folder)


def test_each_interval_alone_and_beside_updates(record: tuple[Path, dict[str, Any]]) -> None:
    rows = record[1]["rows"]
    assert [(row["interval"], row["overlap"]) for row in rows] == [
        *((k, False) for k in (1, 5, 10, 20)),
        *((k, True) for k in (5, 10, 20)),
    ]
    for row in rows:
        assert (row["updates"], row["failed"]) == (20, "")
        assert [point["update"] for point in row["curve"]] == [5, 10, 15, 20]
        assert row["completion"]["each"] == row["curve"][-1]["each"]["completion"]
        assert len(row["completion"]["each"]) == 2
        assert row["setting"] in format_rows(rows)
        assert "20 updates" in format_row(row)


def test_a_run_of_the_study_is_the_run_of_its_command(record: tuple[Path, dict[str, Any]]) -> None:
    folder, rows = record[0], record[1]["rows"]
    assert rows[2]["trained"]["command"].startswith("uavlab train interval_10 --learner masac --runs 2 --updates 20")
    run = Run.resume(folder / "interval_10")
    alone = train_run(run.config)
    assert alone.digest == read_status(folder / "interval_10")["digest"]
    assert [row["eval/completion"] for row in alone.recorder.rows if "eval/completion" in row] == [
        sum(point["each"]["completion"]) / 2 for point in rows[2]["curve"]
    ]


def test_it_goes_on_where_it_was_ended(
    record: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []

    def interrupted(runs: dict[str, Run]) -> dict[str, str]:
        for name, run in runs.items():
            turns.append(name)
            for progress in run.train():
                if progress.number == 7:
                    run.stop()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(interval_learning, "train_in_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study(tmp_path)
    rows = study(tmp_path)["rows"]
    assert [row["curve"][-1]["each"] for row in rows] == [row["curve"][-1]["each"] for row in record[1]["rows"]]
    assert turns == [*PRESETS, *(f"{name}_overlap" for name in PRESETS[1:])]
    again = study(tmp_path)["rows"]  # nothing is trained
    assert [row["minutes"] for row in again] == [row["minutes"] for row in rows]


def test_runs_take_turns_from_score_to_score_and_a_failure_ends_one_alone() -> None:
    log: list[tuple[str, int]] = []

    class Fake:
        done = False

        def __init__(self, name: str, scores: int, fails: bool = False) -> None:
            self.name, self.scores, self.fails = name, scores, fails

        def train(self) -> Any:
            for number in range(2 * self.scores):
                log.append((self.name, number))
                if self.fails and number == 1:
                    raise ResourceError("no memory")
                yield type("Progress", (), {"score": {"x": 1.0} if number % 2 else None})

    runs: Any = {"a": Fake("a", 2), "b": Fake("b", 2, fails=True), "c": Fake("c", 1)}
    assert train_in_turn(runs) == {"b": "ResourceError: no memory"}
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("a", 2), ("a", 3)]


def test_another_study_is_refused_before_training(record: tuple[Path, dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="cannot go on with hidden"):
        study(record[0], hidden=4)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([[0.2, 0.9], [1.0, 0.1]], 7.5), ([[0.2, 0.9], [0.3, 1.0]], None), ([], None), ([[0.9, 0.9]], 5)],
)
def test_the_goal_by_hand(scores: list[list[float]], expected: float | None) -> None:
    curve = [{"update": 5 * at, "each": {"completion": each}} for at, each in enumerate(scores, 1)]
    assert first_to(0.9, curve, "update") == expected


@pytest.mark.parametrize("x", ["update", "seconds"])
def test_its_rows_are_drawn_as_learning_curves(record: tuple[Path, dict[str, Any]], x: str) -> None:
    figure = learning_curves(record[1]["rows"], x=x)
    assert "interval 20, overlap" in [trace.name for trace in figure.data]
