"""A run that learns from logs, from its settings to its scores: stopped, resumed, exported, evaluated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes
from tests.support.fixtures_telemetry import random_flight, save_log, write_logs
from uavlab import api
from uavlab.core.errors import ConfigError, FileError
from uavlab.experiment import policy, run_state, scores
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_config
from uavlab.telemetry import flights, window_source
from uavlab.telemetry.flights import Telemetry
from uavlab.telemetry.forecaster import TARGETS

UPDATES, POINTS = 8, (1, 3, 4, 7)


def small(**changes: Any) -> Any:
    return configure("telemetry", sizes("telemetry"), changes)


def finished(folder: Path | None = None, **changes: Any) -> Run:
    run = Run(small(**changes), folder)
    for _ in run.train():
        pass
    return run


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"loader": "per_item", "workers": 1},
        pytest.param({"loader": "stream", "runs": 2, "weights": "learned"}, marks=pytest.mark.soak),
        {"turned": "off"},
    ],
    ids=["device", "one by one, ahead", "two runs on files", "never turned"],
)
def test_a_run_stopped_again_and_again_ends_in_the_same_bits(tmp_path: Path, more: dict[str, Any]) -> None:
    whole, folder = finished(updates=UPDATES, **more), tmp_path / "run"
    Run(small(updates=UPDATES, **more), folder)
    for done in (*POINTS, UPDATES):
        run = Run.resume(folder)
        for progress in run.train():
            if progress.number == done:
                run.stop()
    assert (run.digest, run.parts.not_exact_reasons) == (whole.digest, [])
    assert whole.digest != finished(updates=UPDATES, **{**more, "seed": 1}).digest


@pytest.mark.parametrize("lost", ["average", "drawn"])
def test_a_missing_part_of_the_state_is_noticed(tmp_path: Path, lost: str) -> None:
    """The mutants: an average that starts anew, and batches drawn ahead that are lost."""
    more = {"loader": "per_item", "workers": 1}
    whole, folder = finished(updates=UPDATES, **more), tmp_path / "run"
    finished(folder, updates=4, **more)
    run = Run.resume(folder, {"updates": UPDATES})
    if lost == "average":
        run.learner.average.copy_(run.learner.network.parameter.detach())
    else:
        run.source.pending.clear()
        run.source._load = run.source._load_items()
    for _ in run.train():
        pass
    assert run.digest != whole.digest


def test_other_flights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    finished(folder, updates=4)
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    stored["values"]["wind"] = 3.0
    path.write_text(json.dumps(stored))
    with pytest.raises((ConfigError, FileError), match=r"wind 8\.0 -> 3\.0|flights: others"):
        Run.resume(folder, {"updates": 6})


def test_scores_are_those_of_flights_never_learned_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = finished(folder, updates=UPDATES, training=0.3, validation=0.3)
    row = api.evaluate(folder, episodes=10)
    assert set(row["r2"]) == set(row["rmse"]) == set(TARGETS)
    mean = sum(figure["mean"] for figure in row["r2"].values()) / len(TARGETS)
    assert row["mean_r2"]["mean"] == pytest.approx(mean)
    assert any(line.startswith("rmse/wind_north") and line.endswith("m/s") for line in str(row).splitlines())
    assert api.evaluate(folder, episodes=10, seed=5, mean_action=True)["r2"] == row["r2"]  # no episode is drawn
    assert row["r2"] != api.evaluate(folder, episodes=1)["r2"]
    assert list(run.config.evaluation.score) == ["mean_r2"]


@pytest.mark.parametrize("change", ["one more", "one less", "other numbers"])
def test_changed_logs_are_refused_in_evaluation(tmp_path: Path, change: str) -> None:
    """They would be split anew, with flights of the training in the test."""
    logs, folder = tmp_path / "logs", tmp_path / "run"
    logs.mkdir()
    write_logs(logs, 5)
    finished(folder, updates=2, logs=str(logs))
    before = scores.evaluate(policy.load(folder), 10, 0, False)
    (logs / "notes.md").write_text("no log")
    assert scores.evaluate(policy.load(folder), 10, 0, False) == before
    if change == "one less":
        (logs / "e.npz").unlink()
    else:
        save_log(logs / ("f.npz" if change == "one more" else "a.npz"), random_flight(120, 9))
    with pytest.raises(FileError, match=r"^flights: others than those this run was trained on; bring those back"):
        scores.evaluate(policy.load(folder), 10, 0, False)


def test_other_flights_may_be_set_for_evaluation(tmp_path: Path) -> None:
    run = finished(updates=2, eval_first=1000)
    assert scores.evaluate(run.trained(), 10, 0, False)["mean_r2"]["mean"] < 1


def test_an_exported_copy_scores_the_same(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    finished(folder, updates=4)
    api.export(folder, out)
    first, second = (scores.evaluate(policy.load(path), 10, 0, False) for path in (folder, out))
    assert first == second
    with pytest.raises(ConfigError, match="telemetry has no team that flies"):
        next(policy.fly(policy.load(out), 0))


def test_logs_of_ones_own_serve_in_place_of_simulated_ones(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    lengths = [rows for _, rows in flights.write(Telemetry(flights=4, least=200, most=400), logs, 4)]
    assert len(lengths) == 4
    run = finished(updates=2, logs=str(logs), evaluate_every=2)
    again = finished(updates=2, flights=4, least=200, most=400, evaluate_every=2)
    assert (run.source.starts == again.source.starts).all()
    first, second = run.source.sets.training.inputs, again.source.sets.training.inputs
    assert (first - second).abs().max() < 1e-3  # read back, on the grid of their own times


def test_a_run_ends_where_nothing_gets_better(tmp_path: Path) -> None:
    settings = {"updates": 50, "lr": 1e-9, "average": 1.0, "evaluate_every": 2, "patience": 3}
    run = finished(tmp_path / "run", **settings)
    assert (run.status, run.number, run.parts.evals_since_best) == ("complete", 8, 3)  # the first is the best
    assert run.done
    assert "stale" in {key for item in run_state.items(run) for key in item.read()}
    assert Run.resume(tmp_path / "run").parts.evals_since_best == 3
    further = Run.resume(tmp_path / "run", {"patience": None})
    assert not further.done
    assert read_config(tmp_path / "run").run.patience == 3  # loading changes no file
    next(further.train())
    assert read_config(tmp_path / "run").run.patience is None


def test_ridge_regression_is_judged_by_the_same_flights() -> None:
    assert set(scores.evaluate_baseline(small(), "ridge", 10, 0)["r2"]) == set(TARGETS)
    with pytest.raises(ConfigError, match="policy 'rigde' for telemetry: unknown"):
        api.evaluate("telemetry", policy="rigde", episodes=10)


def test_windows_of_other_sizes_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"eval_window, eval_horizon: \(70, 6\) differ from window, horizon \(60, 6\)"
    ):
        small(eval_window=70)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"least": 200, "most": 150}, "least 200 > most 150"),
        ({"least": 62}, r"window 60 \+ horizon 6 > least 62: flights are too short"),
        ({"training": 0.7, "validation": 0.3}, "leave no flight for the test"),
        ({"mapping": "m.yaml"}, "mapping m.yaml without logs"),
        ({"window": 40, "physics": 0.1}, "physics 0.1 looks at 50 rows, window 40 has fewer"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


def test_a_learner_of_wrong_targets_scores_worse() -> None:
    """With the truth of other windows, nothing is learned."""

    def mean_r2(shuffled: bool) -> float:
        lengths = {"flights": 16, "least": 500, "most": 600, "window": 30}
        settings = {"updates": 150, "lr": 3e-3, "average": 0.9, "evaluate_every": 150, "physics": 0.0, "batch": 64}
        run = Run(small(**lengths, **settings))
        if shuffled:
            truth = run.source.sets.training.truth
            truth.copy_(truth[torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))])
        for _ in run.train():
            pass
        return float(run.best_score)

    honest = mean_r2(False)
    window_source._load_split.cache_clear()  # the flights in memory are about to be spoiled
    spoiled = mean_r2(True)
    window_source._load_split.cache_clear()
    assert honest > spoiled
