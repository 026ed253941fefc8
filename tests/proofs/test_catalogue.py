"""Rows of the catalogue that need a process end as they say, and processes end with their codes on odd machines."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import bad_inputs
from tests.support.bad_inputs import Row
from tests.support.catalogue import ROWS, UAVLAB, check_row, complete_run, here
from tests.support.cli_runner import SETTINGS

__all__ = ["complete_run", "here"]  # fixtures


@pytest.mark.parametrize("row", [row for row in ROWS if row.alone], ids=lambda row: row.id)
def test_each_row_ends_as_it_says(row: Row, monkeypatch: pytest.MonkeyPatch, complete_run: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # processes import environments of tests
    check_row(row, monkeypatch, complete_run)


def test_threads_are_checked_before_torch_is_there() -> None:
    look = "import sys, uavlab.cli\ntry: uavlab.cli.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    for threads, expected in (("abc", "False"), ("1", "True")):
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", look, "toggles"], env=env, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == expected


def test_a_reader_that_leaves_is_no_failure_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head -0` does
    done = subprocess.run([*UAVLAB, "presets"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_characters_that_a_terminal_lacks_are_written_out(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    tiny = ("hidden=8", "batch=16", "worlds=4", "learning_starts=16", "evaluate_episodes=1")
    settings = [word for each in tiny for word in ("--set", each)]
    command = [*UAVLAB, "train", "leader_follower", "--updates", "1", *settings, "--out", "ü/Δ"]
    done = subprocess.run(command, env=env, capture_output=True, encoding="latin-1", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert r"the run is kept in ü/\u0394" in done.stdout


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        (None, 0, ""),
        (small_files, 5, "ResourceError: "),
    ],
)
def test_a_process_ends_with_its_code_on_an_odd_machine(
    limit: Callable[[], None] | None, code: int, message: str
) -> None:
    env = {name: value for name, value in {**os.environ, **bad_inputs.ODD}.items() if value}
    command = [*UAVLAB, "train", "leader_follower", *SETTINGS, "--out", "run", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=limit)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert done.stderr.splitlines()[-1].startswith(message)
    assert json.loads(done.stdout.splitlines()[-1]).get("exit_code", 0) == code
