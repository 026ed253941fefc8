"""Every row of the catalogue ends as it says, in one line, and processes end with their codes on odd machines."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support import bad_inputs
from tests.support.bad_inputs import Row
from tests.support.catalogue import ROWS, UAVLAB, differences, listing, prepare, run_row
from tests.support.cli_runner import SETTINGS
from tests.support.fixtures_config import train_tiny
from tests.support.registries import registered

PASSED: set[str] = set()  # rows that ended as they say


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run with one checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "complete"
    train_tiny(folder, keep=1)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in a folder of the test's own, on a machine without a GPU, and forget what a row registers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # processes import environments of tests
    with registered():
        yield


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_row_ends_as_it_says(
    row: Row, monkeypatch: pytest.MonkeyPatch, complete_run: Path, proof: Callable[[str, str], None]
) -> None:
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    prepare(row, complete_run)
    before = listing()
    assert differences(row, run_row(row)) == []
    assert listing() == before
    PASSED.add(row.id)
    kinds = {name.split()[0] for name in PASSED}
    proof("bad input", f"{len(PASSED)} rows of {len(kinds)} kinds, each one whole line and nothing written")


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
