"""Trackers get every row, go on with their run, and end with one warning."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import wandb_reader
from tests.support.fixtures_config import stop_and_resume, tiny, train_run, train_tiny
from tests.support.live_runs import wait_until
from uavlab.core.errors import ConfigError, MissingPackageError
from uavlab.experiment import run_state
from uavlab.experiment.run import Run
from uavlab.storage import metrics_log as trackers
from uavlab.storage.metrics_log import About, Client, Recorder, Tracker, is_address, is_place, is_project

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs MLflow, from the extra mlflow")
Rows = list[tuple[int, dict[str, float]]]


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what trackers set for their libraries."""
    for name in (*trackers.PRIVATE, "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


class Place:
    """A tracker in memory in the place of W&B."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.opened: list[tuple[str, str, str | None]] = []
        self.closed = 0
        self.fails_at: int | None = None

    def open(self, place: str, folder: Path, settings: Mapping[str, Any], known: str | None) -> Client:
        self.opened.append((place, folder.name, known))
        return Client(known or f"run{len(self.opened)}", self.write, self.close)

    def write(self, number: int, values: Mapping[str, float]) -> None:
        if number == self.fails_at:
            raise ConnectionError("no route to\n host")
        self.rows.append((number, dict(values)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place()
    monkeypatch.setitem(trackers.OPENERS, "wandb", place.open)
    monkeypatch.setitem(trackers.OPENERS, "mlflow", place.open)
    return place


def tracker(folder: Path, project: str = "team") -> Tracker:
    return trackers.trackers_of(folder, {"wandb": project})[0]


class TestRows:
    def test_they_arrive_in_order(self, place: Place, tmp_path: Path) -> None:
        one = tracker(tmp_path)
        for number in range(100):
            one.write(number, {"train/q": 1.0 * number})
        one.close()
        assert place.rows == [(number, {"train/q": 1.0 * number}) for number in range(100)]
        assert (len(place.opened), place.closed) == (1, 1)

    def test_without_rows_nothing_is_opened(self, place: Place, tmp_path: Path) -> None:
        tracker(tmp_path).close()
        assert (place.opened, list(tmp_path.iterdir())) == ([], [])

    def test_a_run_goes_on_under_its_name(self, place: Place, tmp_path: Path) -> None:
        for project in ("team", "team", "other"):
            one = tracker(tmp_path, project)
            for number in (1, 2):  # the second row opens the run again
                one.write(number, {})
                one.close()
        known = [known for _, _, known in place.opened]
        assert known == [None, "run1", "run1", "run1", None, "run5"]
        assert json.loads((tmp_path / "wandb.json").read_text()) == {"place": "other", "run": "run5"}

    @pytest.mark.parametrize("text", ["", "[]", '{"place": "team"}', '{"run": 3'])
    def test_a_damaged_name_begins_another_run(self, place: Place, tmp_path: Path, text: str) -> None:
        (tmp_path / "wandb.json").write_text(text)
        one = tracker(tmp_path)
        one.write(1, {})
        one.close()
        assert place.opened == [("team", tmp_path.name, None)]

    def test_a_failure_ends_it_with_one_warning(self, place: Place, tmp_path: Path) -> None:
        place.fails_at = 2
        one = tracker(tmp_path)
        one.write(1, {})
        with pytest.warns(UserWarning, match=r"^wandb=team: ConnectionError: no route to; no more rows for it\.$"):
            one.write(2, {})
        one.write(3, {})
        one.close()
        assert [number for number, _ in place.rows] == [1]
        assert len(place.opened) == 1

    def test_its_package_is_named_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(MissingPackageError, match=r'^wandb=team: needs wandb.*"uavlab\[wandb\]"\.$'):
            Run(tiny(wandb="team"), tmp_path / "run")
        assert list(tmp_path.iterdir()) == []


class TestRuns:
    def test_it_has_the_rows_of_the_log_and_those_of_each_seed(self, place: Place, tmp_path: Path) -> None:
        run = train_tiny(tmp_path / "first", wandb="team", runs=2, seed=3)
        rows = dict(place.rows)
        assert [*rows] == [row["update"] for row in run.recorder.rows]
        last, logged = rows[8], run.recorder.rows[-1]
        assert last["eval/completion"] == logged["eval/completion"]
        each = [last[f"seeds/{seed}/eval/completion"] for seed in (3, 4)]
        assert each == logged["each"]["eval/completion"]
        assert {name.split("/")[0] for name in last} >= {"train", "eval", "perf", "seeds"}

    def test_results_do_not_depend_on_it(self, place: Place, tmp_path: Path) -> None:
        place.fails_at = 2
        with pytest.warns(UserWarning, match="no more rows for it"):
            run = train_tiny(tmp_path / "run", wandb="team")
        assert run.status == "complete"
        assert run.digest == train_tiny().digest

    def test_a_resumed_run_goes_on(self, place: Place, tmp_path: Path) -> None:
        stop_and_resume(tiny(wandb="team"), tmp_path / "run")
        assert [known for _, _, known in place.opened] == [None, "run1"]
        assert {number for number, _ in place.rows} == {1, 2, 4, 6, 8}

    def test_it_may_change_within_a_run(self, place: Place, tmp_path: Path) -> None:
        run = Run(tiny(wandb="team"), tmp_path / "run")
        for progress in run.train():
            if progress.number == 4:
                run.change(wandb=None)
            if progress.number == 6:
                run.change(wandb="other")
        assert [project for project, _, _ in place.opened] == ["team", "other"]
        assert [number for number, _ in place.rows] == [1, 2, 4, 8]

    def test_of_several_ranks_the_first_is_tracked(self, place: Place, tmp_path: Path) -> None:
        run: Any = Run(tiny(wandb="team"))
        first = run_state.about(run).settings
        run.parts.rt = SimpleNamespace(ranks=SimpleNamespace(rank=1), device=run.rt.device)
        other = run_state.about(run).settings
        assert [bool(trackers.trackers_of(tmp_path, each)) for each in (first, other)] == [True, False]
        assert {**other, "wandb": "team"} == first

    def test_a_single_seed_has_no_rows_of_its_own(self, place: Place, tmp_path: Path) -> None:
        train_tiny(tmp_path / "run", wandb="team")
        assert not [name for _, row in place.rows for name in row if name.startswith("seeds/")]


def test_names_are_text(place: Place, tmp_path: Path) -> None:
    board = Recorder(tmp_path, About({"wandb": "team"}))
    board.append(1, 1.0, {"x\x1b": 2.0})
    board.close()
    assert "train/x\\x1b" in place.rows[0][1]


def written(folder: Path) -> list[dict[str, Any]]:
    return [row for part in wandb_reader.offline_runs(folder) for row in wandb_reader.rows(part)]


def test_wandb_offline(tmp_path: Path) -> None:
    config = tiny(wandb="team", runs=2)
    run = stop_and_resume(config, tmp_path / "first")
    wait_until(lambda: len(written(tmp_path / "first")) == len(run.recorder.rows))  # by a process of W&B
    parts = wandb_reader.offline_runs(tmp_path / "first")
    (head, again) = (wandb_reader.heads(part)[0] for part in parts)
    assert head == again
    assert head[1:] == ("team", "first")
    rows = written(tmp_path / "first")
    assert [row["update"] for row in rows] == [row["update"] for row in run.recorder.rows]
    assert rows[-1]["eval/completion"] == pytest.approx(run.recorder.rows[-1]["eval/completion"])
    assert rows[-1]["seeds/1/eval/completion"] == run.recorder.rows[-1]["each"]["eval/completion"][1]
    assert wandb_reader.settings(parts[0])["hidden"] == 8
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_an_unknown_mode_of_wandb_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    with pytest.warns(UserWarning, match=r"^wandb=team: .*; no more rows for it\.$"):
        run = train_tiny(tmp_path / "run", wandb="team")
    assert run.status == "complete"


@needs_mlflow
def test_mlflow_in_a_folder(tmp_path: Path) -> None:
    run = stop_and_resume(tiny(mlflow=str(tmp_path / "store"), runs=2), tmp_path / "first")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "store").as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "uavlab"]
    (shown,) = client.search_runs([experiment.experiment_id])
    assert (shown.info.run_name, shown.info.status) == ("first", "FINISHED")
    assert shown.data.params["hidden"] == "8"
    for name, at in (("eval/completion", None), ("seeds/1/eval/completion", 1)):
        logged = [row for row in run.recorder.rows if "eval/completion" in row]
        points = [(each.step, each.value) for each in client.get_metric_history(shown.info.run_id, name)]
        value: Callable[[dict[str, Any]], float]
        value = lambda row, at=at: row["each"]["eval/completion"][at] if at else row["eval/completion"]  # noqa: E731
        assert points == [(row["update"], pytest.approx(value(row))) for row in logged]


@needs_mlflow
def test_a_server_that_is_not_there_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(UserWarning, match=r"^mlflow=http://127\.0\.0\.1:9: .*; no more rows for it\.$"):
        run = train_tiny(tmp_path / "run", mlflow="http://127.0.0.1:9")
    assert run.digest == train_tiny().digest


def test_names_of_projects_and_places() -> None:
    assert [name for name in ("a", "a b", "ä" * 128) if not is_project(name)] == []
    assert [name for name in ("", " ", "a/b", "a#b", "a\n", "x" * 129) if is_project(name)] == []
    assert [place for place in ("runs/ml", "http://127.0.0.1:5000", "sqlite:///a.db") if not is_place(place)] == []
    assert [place for place in ("", "  ", "a\0", "x" * 1001) if is_place(place)] == []
    assert [place for place in ("http://a", "databricks", "databricks://x") if not is_address(place)] == []
    assert not is_address("runs/ml")


@pytest.mark.parametrize("settings", [{"wandb": ""}, {"wandb": "a/b"}, {"mlflow": " "}, {"wandb": 3}])
def test_other_names_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))}.* (expected|valid string)"):
        train_run(tiny(**settings))
