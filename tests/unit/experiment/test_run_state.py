"""A run taken up again equals one never stopped, bit for bit, and nothing can be left out of a checkpoint unnoticed."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_config import tiny
from tests.support.kill_harness import timeless
from uavlab.core.errors import FileError
from uavlab.experiment import run_state
from uavlab.experiment.run import Run
from uavlab.storage import checkpoint

# 4 steps of exploration and one per update: replay is full after update 4, the pool is refilled at 28, episodes end at
# all times by a crash, or after 14 steps; the kept policy may change every 5th update. A delayed action and moving
# obstacles make every leaf of the worlds matter.
LONG: dict[str, Any] = {
    **{"updates": 34, "evaluate_every": 5, "checkpoint_every": 7, "log_every": 4},
    **{"worlds": 8, "learning_starts": 32, "capacity": 64},
    **{"lagged": True, "obstacles": 8, "obstacle_speed": 20.0, "crash_radius": 40.0, "horizon": 14},
}
POINTS = (1, 2, 3, 4, 5, 7, 8, 12, 20, 27, 28, 33)
STOP = """
import sys
from pathlib import Path
from tests.unit.experiment.test_run_state import go_on
go_on(Path(sys.argv[1]), int(sys.argv[2]), runs=int(sys.argv[3]), update=sys.argv[4])
"""
CONSTANT = {  # nothing to lose: a run just built from the same settings and seeds has them as they are
    *("source/pool.state.action", "source/pool.state.step"),  # fresh worlds
    *("streams/salt", "streams/survey.0", "streams/actor.0", "streams/critic.0", "streams/worlds.0"),  # used up
    "streams/step.0",  # this environment's transition draws nothing
}
DERIVED = {f"source/worlds.state.{name}" for name in ("gap", "to_goal", "clearance")}  # computed anew before any use


def go_on(folder: Path, until: int, **changes: Any) -> Run:
    """Start or resume a run, and stop it after an update as Ctrl-C does."""
    run = Run.resume(folder) if folder.exists() else Run(tiny(**LONG | changes), folder)
    for progress in run.train():
        if progress.number == until:
            run.stop()
    return run


@pytest.mark.parametrize(
    ("runs", "update", "points"),
    [
        (2, "batched", POINTS[::2]),
        pytest.param(2, "batched", POINTS, marks=pytest.mark.soak),
        pytest.param(1, "loop", POINTS, marks=pytest.mark.soak),
    ],
    ids=["2-batched-half", "2-batched", "1-loop"],
)
def test_a_run_stopped_at_each_point_ends_in_the_same_bits(
    tmp_path: Path, runs: int, update: str, points: Sequence[int], proof: Callable[[str, str], None]
) -> None:
    whole = go_on(tmp_path / "whole", -1, runs=runs, update=update)
    for point in (*points, -1):  # each in a new interpreter
        command = [sys.executable, "-c", STOP, str(tmp_path / "broken"), str(point), str(runs), update]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[3])
        record = json.loads((tmp_path / "broken" / "run.json").read_text())
        assert record["update"] == (point if point > 0 else LONG["updates"])
    assert record["digest"] == whole.digest
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")
    assert record["not_exact"] == []
    proof(f"exact resume, {update} learner", f"{len(points)} resume points in new processes, equal digests")


def leaves(run: Run) -> dict[str, Tensor]:
    """Name everything that a checkpoint of ``run`` holds, replay's rows by leaf."""
    parts = {f"{item.name}/{key}": value for item in run_state.items(run) for key, value in item.read().items()}
    return {key: value.clone() for key, value in (parts | replay_leaves(run)).items()}


def replay_leaves(run: Run) -> dict[str, Tensor]:
    rows = run.source.rows()
    return {f"replay/{key}": value for key, value in rows.items() if key not in ("cursor", "size")}


def resumed(saved: checkpoint.Checkpoint, rows: list[dict[str, float]], lost: str | None) -> str:
    """Go on from a checkpoint to the end, in memory, with one leaf left as a new run has it; return the digest."""
    run = Run(tiny(**LONG))
    fresh = leaves(run)
    groups = {name: dict(tensors) for name, tensors in saved.groups.items()}
    if lost is not None:
        group, _, key = lost.partition("/")
        for name in groups:
            if group == "replay" and name.startswith(run_state.SEGMENT):
                groups[name][key] = torch.zeros_like(groups[name][key])
            elif name == group and f"{group}/{key}" in fresh:
                groups[name][key] = fresh[lost]
            elif name == "streams" == group:
                del groups[name][key]  # a stream that a new run has not opened yet
            elif name == group:
                groups[name][key] = torch.zeros_like(groups[name][key])  # a moment as a new Adam would begin it
    try:
        run_state.restore(run, checkpoint.Checkpoint(saved.path, saved.step, groups, saved.meta, saved.versions))
    except FileError:
        return "refused"
    run.recorder.rows = rows[: run.recorder.count]
    for _ in run.train():
        pass
    return run.digest


def test_every_item_left_out_is_noticed(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    saved, folder = {}, tmp_path / "run"
    for point in POINTS:
        run = go_on(folder, point)
        saved[point] = checkpoint.load(run.last)  # type: ignore[arg-type]
    run = go_on(folder, -1)
    expected, rows = run.digest, run.recorder.rows
    for point, found in saved.items():
        assert resumed(found, rows, None) == expected, f"nothing left out, resumed at {point}"
    unnoticed = {
        name
        for name in leaves(run)
        if name != "counters/seconds"
        and all(resumed(found, rows, name) == expected for found in reversed(saved.values()))
    }
    assert unnoticed == CONSTANT | DERIVED
    fresh, at_the_end = leaves(Run(tiny(**LONG))), leaves(run)
    assert [name for name in CONSTANT & set(fresh) if not torch.equal(fresh[name], at_the_end[name])] == []
    proof("state left out of a checkpoint", f"{len(at_the_end) - len(unnoticed) - 1} items, each noticed")


def test_the_clock_goes_on(tmp_path: Path) -> None:
    go_on(tmp_path / "run", 4)
    before = json.loads((tmp_path / "run" / "run.json").read_text())["seconds"]
    run = go_on(tmp_path / "run", -1)
    assert [row["seconds"] for row in run.recorder.rows] == sorted(row["seconds"] for row in run.recorder.rows)
    assert run.seconds > before > 0


def test_a_state_is_one_digest() -> None:
    run, again = Run(tiny()), Run(tiny())
    assert run_state.digest(run) == run_state.digest(again) != run_state.digest(Run(tiny(seed=1)))
    again.seconds = 5.0
    again.recorder.rows.append({"update": 1, "seconds": 1.0, "q": 2.0})
    with_a_row = run_state.digest(again)
    again.recorder.rows[0]["seconds"] = 3.0
    assert run_state.digest(again) == with_a_row != run_state.digest(run)


def test_saves_take_over_the_rows_that_did_not_change(tmp_path: Path) -> None:
    go_on(tmp_path / "run", -1, checkpoint_every=2)
    *_, before, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    shared = [path.name for path in newest.iterdir() if path.stat().st_nlink > 1]
    assert all((before / name).samefile(newest / name) for name in shared)
    segments = sorted(path.name for path in newest.iterdir() if path.name.startswith(run_state.SEGMENT))
    assert shared
    assert sorted(shared) == segments[: len(shared)]
    assert len(segments) in (4, 5)


def test_a_checkpoint_that_lacks_something_is_refused(tmp_path: Path) -> None:
    found = checkpoint.load(go_on(tmp_path / "run", 3).last)  # type: ignore[arg-type]
    del found.groups["learner"]["target"]
    with pytest.raises(
        FileError, match=rf"^{re.escape(str(found.path))}: does not fit the settings of its run \('target'\)"
    ):
        run_state.restore(Run(tiny(**LONG)), found)


def test_leaves_that_earlier_versions_saved_are_ignored(tmp_path: Path) -> None:
    run = go_on(tmp_path / "run", 7)
    saved = checkpoint.load(run.last)  # type: ignore[arg-type]
    saved.groups["source"]["worlds.stage"] = torch.zeros(8, dtype=torch.int64)
    for name, rows in saved.groups.items():
        if name.startswith(run_state.SEGMENT):
            rows["stage"] = torch.zeros(rows["truncated"].shape, dtype=torch.int64)
    resumed_run = Run(tiny(**LONG))
    run_state.restore(resumed_run, saved)
    before, after = leaves(run), leaves(resumed_run)
    assert before.keys() == after.keys()
    differing = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert differing <= {"counters/rows", "counters/seconds"}  # rows of metrics are not read back here


def test_what_lifts_exactness_is_named() -> None:
    here = {"device": "H200", "cpu": "x", "threads": 1, "torch": "2.13.0", "uavlab": "0.1.0", "code": "a", "cores": 4}
    assert run_state.lifted(here, {**here, "cores": 2}) == []
    assert run_state.lifted(here, {**here, "torch": "2.11.0", "threads": 2}) == [
        "threads 1 -> 2",
        "torch 2.13.0 -> 2.11.0",
    ]
