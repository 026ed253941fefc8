"""The comparison of two trees sees every bit; that it does so on whole runs is shown in tests/proofs."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "compare_trees.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_trees", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, actor: np.ndarray, score: float = 0.5) -> Path:
    """Write what is read of a run: the newest checkpoint's members and the rows of metrics."""
    for step in (1, 2):
        checkpoint = folder / "checkpoints" / f"ckpt-{step:012}"
        checkpoint.mkdir(parents=True)
        np.savez(checkpoint / "learner.npz", actor=actor * (step == 2))
        np.savez(checkpoint / "best.npz", parameters=actor, score=np.float32(score))
    row = {"update": 2, "seconds": float(actor[0]), "eval/return": score}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_equal_runs_are_equal_whatever_their_clocks(tool, tmp_path):
    actor = np.array([1.0, np.nan, -0.0], np.float32)
    runs = [write_run(tmp_path / name, actor) for name in "ab"]
    (runs[1] / "metrics.jsonl").write_text('{"update": 2, "seconds": 9.0, "eval/return": 0.5}\n')
    assert tool.run_differences(*runs) == (3, [])


def test_one_bit_of_one_tensor_is_seen(tool, tmp_path):
    actor = np.array([1.0, 2.0], np.float32)
    changed = actor.copy()
    changed.view(np.int32)[1] ^= 1
    count, differences = tool.run_differences(write_run(tmp_path / "a", actor), write_run(tmp_path / "b", changed))
    assert count == 3
    assert differences == [
        "best/parameters: 1 of 2 values differ, by at most 2.38e-07",
        "learner/actor: 1 of 2 values differ, by at most 2.38e-07",
    ]


def test_the_sign_of_a_zero_is_seen(tool):
    assert list(tool.tensor_differences({"a": np.array([0.0])}, {"a": np.array([-0.0])})) == [
        "a: 0 of 1 values differ, by at most 0"
    ]


def test_tensors_of_one_side_and_other_shapes_are_reported(tool):
    here = {"new": np.zeros(2), "both": np.zeros(2, np.float32)}
    there = {"old": np.zeros(2), "both": np.zeros((2, 1), np.float32)}
    assert list(tool.tensor_differences(here, there)) == [
        "both: float32[2] here, float32[2, 1] there",
        "new: only here",
        "old: only there",
    ]


def test_other_metrics_are_seen(tool, tmp_path):
    actor = np.ones(1, np.float32)
    _, differences = tool.run_differences(write_run(tmp_path / "a", actor), write_run(tmp_path / "b", actor, 0.25))
    assert differences == ["best/score: 1 of 1 values differ, by at most 0.25", "metrics.jsonl: other rows"]


@pytest.mark.parametrize(
    ("key", "measured"), [("ms", 1), ("draw_ms", 1), ("moves_per_s", 1), ("worlds", 0), ("ops", 0)]
)
def test_times_and_rates_of_a_bench_are_recognised(tool, key, measured):
    assert bool(tool.TIMES_AND_RATES.fullmatch(key)) is bool(measured)


def test_an_unknown_commit_is_refused(tool, capsys):
    with pytest.raises(SystemExit, match="2"):
        tool.main(["no-such-commit"])
    assert "not a valid object name" in capsys.readouterr().err


def test_what_another_tree_does_not_measure_is_left_out(tool, tmp_path):
    """Here takes half of the time; a column and a row are new."""
    calls = []

    class Fake:
        def __init__(self, name, rows):
            self.name, self.rows = name, rows

        def uavlab(self, *command, cwd):
            calls.append((self.name, *command))
            return {"rows": self.rows}

    here = Fake("here", [{"setting": "a", "ms": 1.0, "draw_ms": 3.0}, {"setting": "b", "ms": 2.0}])
    there = Fake("there", [{"setting": "a", "ms": 2.0}])
    options = SimpleNamespace(bench="replay --batch 9", rounds=3, samples=7)
    rows = tool.compare_bench((here, there), options, tmp_path)
    assert [(row["label"], row["key"], row["median"]) for row in rows] == [("setting=a", "ms", 0.5)]
    assert [call[0] for call in calls] == ["there", "here", "here", "there", "there", "here"]
    assert calls[0][1:] == ("bench", "replay", "--batch", "9", "--device", "cpu", "--rounds", "7")
