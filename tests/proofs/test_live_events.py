"""Whatever somebody does to a live run, in whatever order: nothing raises, one thread trains, the folder goes on.

The end of a process saves a checkpoint of every run that trains on a thread.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.live_events import EVENTS, play
from tests.support.live_runs import drift, trained, watch_threads
from tests.support.registries import registered_outside
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import read_status
from uavlab_lab.live import panel
from uavlab_lab.live import trainer as comparison

FEW, ALL = 40, 200  # sequences
ENDING = """
import sys
from pathlib import Path
from tests.support.live_runs import drift, step
from tests.support.registries import registered_outside
from uavlab.experiment.run import Run
from uavlab_lab.live.trainer import Trainer

with registered_outside():
    for name in ("paused", "training"):
        trainer = Trainer(Run(drift(updates=10**6, evaluate_every=10**6), Path(sys.argv[1]) / name))
        step(trainer, 3)
    trainer.start()
    exec(sys.argv[2])
    sys.exit(3)
"""


@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, ALL), marks=pytest.mark.soak)], ids=str)
def test_no_sequence_of_events_raises(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr(comparison, "SLICE", 1e-9)
    monkeypatch.setattr(comparison, "EVERY", 0.01)
    monkeypatch.setattr(panel, "display", lambda *args, **options: SimpleNamespace(update=lambda copy: None))
    with registered_outside(), watch_threads():
        done, refused = play(tmp_path, seeds)
    assert done.total() == len(seeds) * EVENTS
    assert min(done.values()) > 5
    assert refused > 5
    kinds = f"{done.total()} events of {len(done)} kinds, {refused} of them refused"
    proof(f"events at live runs, sequences {seeds[0]} to {seeds[-1]}", f"{len(seeds)} of {len(seeds)} go on; {kinds}")


def end(folder: Path, before: str = "") -> list[tuple[str, bool]]:
    """Return status, and whether there is a checkpoint, of two runs in a process that ends while they are trained."""
    done = subprocess.run([sys.executable, "-c", ENDING, str(folder), before], capture_output=True, text=True)
    assert done.returncode == 3 or before, done.stderr  # a thread that is cut off may crash the process
    names = ("paused", "training")
    return [(read_status(folder / name)["status"], any((folder / name).glob("checkpoints/*"))) for name in names]


def test_the_end_of_the_process_saves_each_run(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    assert end(tmp_path / "runs") == [("interrupted", True)] * 2
    with registered_outside():
        run = Run.resume(tmp_path / "runs" / "training", {"updates": 40, "evaluate_every": 16})
        assert run.number >= 3
        paused = Run.resume(tmp_path / "runs" / "paused", {"updates": 40})
        for _ in paused.train():
            pass
        assert paused.digest == trained(drift(evaluate_every=10**6)).digest
    broken = "from uavlab.experiment import run as one; from uavlab_lab.live import trainer as two; "
    broken += "one.OPEN.clear(); two.TRAINERS.clear()"
    assert end(tmp_path / "broken", broken) == [("running", False)] * 2
    proof("end of a process with live runs", "2 of 2 saved; without it 0 of 2")
