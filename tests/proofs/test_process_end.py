"""A script that ends while runs are suspended ends as it would without them, and each run goes on to the same bits."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uavlab.experiment.run import Run

HEAD = """
import atexit, sys, threading, time, warnings
runs = []
atexit.register(lambda: print(*(run.status for run in runs)))  # before the package is imported, so it is called last
from pathlib import Path
from tests.support.fixtures_config import tiny
from uavlab.core.errors import TrainingWarning
from uavlab.experiment.run import Run
warnings.simplefilter("ignore", TrainingWarning)  # of a run that is too short to learn

def start(name, **settings):
    run = Run(tiny(updates=40, **settings), Path(name) if name else None)
    runs.append(run)
    return run, iter(run)
"""
SCRIPTS = {
    "in memory": "run, steps = start(None)\nnext(steps)",
    "folder": "run, steps = start('a')\nfor _ in range(3):\n    next(steps)",
    "batches drawn ahead": "run, steps = start('a', prefetch='on')\nnext(steps)",
    "steps ahead": "run, steps = start('a', prefetch='overlap')\nnext(steps)",
    "two runs": "(a, first), (b, second) = start('a'), start('b', precision='bf16')\nnext(first), next(second)",
    "an outer generator": "run, steps = start('a')\npairs = zip(steps, range(9))\nnext(pairs)",
    "a thread that has ended": (
        "run, steps = start('a')\nthread = threading.Thread(target=next, args=[steps])\nthread.start()\nthread.join()"
    ),
    "a thread that trains": (
        "run, steps = start('a', evaluate_every=1000, prefetch='on')\n"
        "run.change(updates=10**6)\nbegun = threading.Event()\n"
        "threading.Thread(target=lambda: [begun.set() for _ in steps], daemon=True).start()\nbegun.wait()"
    ),
    "an exception": "run, steps = start('a')\nfor progress in steps:\n    1 / 0",
    "sys.exit": "run, steps = start('a')\nfor progress in steps:\n    sys.exit(3)",
}
CODES = {"an exception": 1, "sys.exit": 3}


def end(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script to its end in a folder."""
    home = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", HEAD + script]
    environment = {**os.environ, "PYTHONPATH": home}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_leaves_a_run_suspended_loses_nothing(
    name: str, tmp_path: Path, proof: Callable[[str, str], None]
) -> None:
    ended = end(SCRIPTS[name], tmp_path)
    assert (ended.returncode, ended.stderr.count("Error")) == (CODES.get(name, 0), int(name == "an exception"))
    runs = sorted(tmp_path.glob("*/run.json"))
    assert ended.stdout.split() == ["interrupted"] * max(1, len(runs))
    for file in runs:
        record = json.loads(file.read_text())
        assert record["status"] == "interrupted"
        resumed = Run.resume(file.parent)
        assert resumed.number == record["update"] > 0
        steps = resumed.number + 5
        digests = [run_on(run, steps) for run in (resumed, Run(resumed.config))]
        assert digests[0] == digests[1]
    proof(f"a script that ends while a run is suspended: {name}", f"exit {ended.returncode}, equal bits after it")


def run_on(run: Run, update: int) -> str:
    """Train a run to an update; return its digest."""
    run.change(updates=update)
    list(run.train())
    return run.digest


def test_a_thread_of_the_script_trains_to_its_end(tmp_path: Path) -> None:
    script = "run, steps = start('a')\nthreading.Thread(target=lambda: [time.sleep(0.01) for _ in steps]).start()"
    ended = end(script, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "complete\n", "")


def test_a_run_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    script = "run, steps = start('a')\nnext(steps)\nrun.save = lambda: 1 / 0"
    ended = end(script, tmp_path)
    assert ended.returncode == 0
    assert "a: the run was not saved at the end of the process: ZeroDivisionError" in ended.stderr
