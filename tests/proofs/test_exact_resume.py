"""A run resumed in a new process equals one never stopped, and whatever a checkpoint lacks changes the result."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.support.fixtures_config import LONG, checkpoint_leaves, tiny, train_until
from tests.support.kill_harness import timeless
from uavlab.core.errors import FileError
from uavlab.experiment import resume
from uavlab.experiment.run import Run
from uavlab.storage import checkpoint

POINTS = (1, 2, 3, 4, 5, 7, 8, 12, 20, 27, 28, 33)
STOP = """
import sys
from pathlib import Path
from tests.support.fixtures_config import train_until
train_until(Path(sys.argv[1]), int(sys.argv[2]), runs=int(sys.argv[3]), update=sys.argv[4])
"""
CONSTANT = {  # nothing to lose: a run just built from the same settings and seeds has them as they are
    *("source/pool.state.action", "source/pool.state.step"),  # fresh worlds
    *("streams/salt", "streams/survey.0", "streams/actor.0", "streams/critic.0", "streams/worlds.0"),  # used up
    "streams/step.0",  # this environment's transition draws nothing
}
DERIVED = {f"source/worlds.state.{name}" for name in ("gap", "to_goal", "clearance")}  # computed anew before any use


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
    whole = train_until(tmp_path / "whole", -1, runs=runs, update=update)
    for point in (*points, -1):  # each in a new interpreter
        command = [sys.executable, "-c", STOP, str(tmp_path / "broken"), str(point), str(runs), update]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
        record = json.loads((tmp_path / "broken" / "run.json").read_text())
        assert record["update"] == (point if point > 0 else LONG["updates"])
    assert record["digest"] == whole.digest
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")
    assert record["not_exact"] == []
    proof(f"exact resume, {update} learner", f"{len(points)} resume points in new processes, equal digests")


def finish_without(lost: str | None, saved: checkpoint.Checkpoint, rows: list[dict[str, float]]) -> str:
    """Train from a checkpoint to the end, in memory, with one leaf left as a new run has it; return the digest."""
    run = Run(tiny(**LONG))
    fresh = checkpoint_leaves(run)
    groups = {name: dict(tensors) for name, tensors in saved.groups.items()}
    if lost is not None:
        group, _, key = lost.partition("/")
        for name in groups:
            if group == "replay" and name.startswith(resume.SEGMENT):
                groups[name][key] = torch.zeros_like(groups[name][key])
            elif name == group and f"{group}/{key}" in fresh:
                groups[name][key] = fresh[lost]
            elif name == "streams" == group:
                groups[name].pop(key, None)  # a stream that a new run has not opened yet
            elif name == group:
                groups[name][key] = torch.zeros_like(groups[name][key])  # a moment as a new Adam would begin it
    try:
        resume.restore(run, checkpoint.Checkpoint(saved.path, saved.step, groups, saved.meta, saved.versions))
    except FileError:
        return "refused"
    run.recorder.rows = rows[: run.recorder.saved_rows]
    for _ in run.train():
        pass
    return run.digest


@pytest.mark.parametrize(
    "points", [(5, 28, 33), pytest.param(POINTS, marks=pytest.mark.soak)], ids=["3-points", "12-points"]
)
def test_every_item_left_out_is_noticed(
    tmp_path: Path, points: Sequence[int], proof: Callable[[str, str], None]
) -> None:
    saved, folder = {}, tmp_path / "run"
    for point in points:
        run = train_until(folder, point)
        saved[point] = checkpoint.load(run.last)  # type: ignore[arg-type]
    run = train_until(folder, -1)
    expected, rows = run.digest, run.recorder.rows
    for point, state in saved.items():
        assert finish_without(None, state, rows) == expected, f"nothing left out, resumed at {point}"
    unnoticed = {
        name
        for name in checkpoint_leaves(run)
        if name != "counters/seconds"
        and all(finish_without(name, state, rows) == expected for state in reversed(saved.values()))
    }
    assert unnoticed == CONSTANT | DERIVED
    fresh, at_the_end = checkpoint_leaves(Run(tiny(**LONG))), checkpoint_leaves(run)
    assert [name for name in CONSTANT & set(fresh) if not torch.equal(fresh[name], at_the_end[name])] == []
    proof("state left out of a checkpoint", f"{len(at_the_end) - len(unnoticed) - 1} items, each noticed")
