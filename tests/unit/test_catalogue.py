"""Every row of the catalogue ends as it says, in one line, and leaves the working folder as it was."""

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support import bad_inputs, bad_logs, tampered_runs
from tests.support.bad_inputs import Row
from tests.support.cli_runner import SETTINGS, Ended, uavlab
from tests.support.fixtures_config import trained

ROWS = (*bad_inputs.ROWS, *tampered_runs.ROWS, *bad_logs.ROWS)
SOUND: set[str] = set()  # rows that ended as they say
KINDS = {0: "", 2: "ConfigError: ", 3: "FileError: ", 5: "ResourceError: "}
NEVER = ("Traceback", "KeyError", "NoneType", "\x1b")
UAVLAB = [sys.executable, "-m", "uavlab"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run with one checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trained(folder, keep=1)
    return folder


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def prepare(row: Row, finished: Callable[[], Path]) -> None:
    for name, content in row.files.items():
        if callable(content):
            content(Path(name))
        else:
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    if row.run is not None:
        shutil.copytree(finished(), "run")
        row.run(Path("run"))


def listing() -> dict[str, tuple[int, int]]:
    """Everything in the working folder with its size and the time of its last change; a lock may be taken."""
    found = {path: path.lstat() for path in Path().rglob("*") if path.name != ".lock"}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items() if path.is_file()} | {
        str(path): (0, 0) for path in found if not path.is_file()
    }


def typed(row: Row) -> Ended:
    words = shlex.split(row.command) if isinstance(row.command, str) else row.command
    if not row.alone:
        return uavlab(*words)
    env = {name: value for name, value in {**os.environ, **row.env}.items() if value or name not in row.env}
    done = subprocess.run([*UAVLAB, *words], env=env, capture_output=True, text=True)
    return Ended(done.returncode, done.stdout, done.stderr)


def complaints(row: Row, ended: Ended) -> list[str]:
    """Say where an end differs from its row."""
    expected = re.escape(KINDS[row.code] + row.message).replace("…", ".+")
    found = [] if ended.code == row.code else [f"code {ended.code}"]
    found += [] if re.fullmatch(expected, ended.err.removesuffix("\n")) else [f"message {ended.err}"]
    found += [f"never {word}" for word in NEVER if word in ended.err]
    return found + ([] if re.search(row.out, ended.out) else [f"output {ended.out}"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_row_ends_as_it_says(
    row: Row, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, proof: Callable[[str, str], None]
) -> None:
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    prepare(row, lambda: request.getfixturevalue("finished"))
    before = listing()
    assert complaints(row, typed(row)) == []
    assert listing() == before
    SOUND.add(row.id)
    kinds = {name.split()[0] for name in SOUND}
    proof("bad input", f"{len(SOUND)} rows of {len(kinds)} kinds, each one whole line and nothing written")


def test_no_row_is_there_twice() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    "ended",
    [
        Ended(3, "", "ConfigError: no."),
        Ended(2, "", "ConfigError: no"),
        Ended(2, "", "ConfigError: no.\nConfigError: no."),
        Ended(2, "", "FileError: no."),
        Ended(2, "", "Traceback\nConfigError: no."),
    ],
)
def test_another_end_is_noticed(ended: Ended) -> None:
    row = Row("", "", "no.")
    assert complaints(row, Ended(2, "", "ConfigError: no.\n")) == []
    assert complaints(row, ended) != []


def test_whatever_is_written_is_noticed() -> None:
    Path("a").write_text("1")
    before = listing()
    Path("b").mkdir()
    assert listing() != before
    Path("b").rmdir()
    assert listing() == before
    Path("a").write_text("2")
    os.utime("a", ns=(0, 1))
    assert listing() != before


def test_a_refusal_is_also_an_object() -> None:
    row = next(row for row in ROWS if row.id == "cli-2 path")
    told = uavlab(*shlex.split(row.command), "--json").told
    assert told == {"error": "ConfigError", "message": row.message, "exit_code": 2}


def test_threads_are_checked_before_torch_is_there() -> None:
    look = "import sys, uavlab.cli\ntry: uavlab.cli.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    for threads, expected in (("abc", "False"), ("1", "True")):
        env = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", look, "presets"], env=env, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == expected


def test_a_reader_that_leaves_is_no_failure_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head -0` does
    done = subprocess.run([*UAVLAB, "presets"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_characters_that_a_terminal_lacks_are_written_out() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [*UAVLAB, "train", "leader_follower", "--set", "capacity=1000000000", "--runs", "16", "--out", "ü/Δ"]
    done = subprocess.run(command, env=env, capture_output=True, encoding="latin-1")
    assert (done.returncode, "Traceback" in done.stderr) == (5, False)
    assert r"the run is kept in ü/\u0394" in done.stdout


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize(
    ("limit", "code", "told"),
    [
        (None, 0, ""),
        (small_files, 5, "ResourceError: "),
    ],
)
def test_a_process_ends_with_its_code_on_an_odd_machine(limit: Callable[[], None] | None, code: int, told: str) -> None:
    env = {name: value for name, value in {**os.environ, **bad_inputs.ODD}.items() if value}
    command = [*UAVLAB, "train", "leader_follower", *SETTINGS, "--out", "run", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=limit)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert done.stderr.splitlines()[-1].startswith(told)
    assert json.loads(done.stdout.splitlines()[-1]).get("exit_code", 0) == code
