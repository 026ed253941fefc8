"""Run rows of the catalogue of bad inputs, and compare exit code, message and output with the row."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support import bad_curricula, bad_environments, bad_inputs, bad_logs, bad_sweeps, tampered_runs
from tests.support.bad_inputs import Row
from tests.support.cli_runner import Result, uavlab
from tests.support.fixtures_config import train_tiny
from tests.support.registries import registered

ROWS = (
    *(*bad_inputs.ROWS, *bad_curricula.ROWS, *bad_environments.ROWS, *tampered_runs.ROWS, *bad_logs.ROWS),
    *bad_sweeps.ROWS,
)
UAVLAB = [sys.executable, "-m", "uavlab"]
KINDS = {0: "", 2: "ConfigError: ", 3: "FileError: ", 5: "ResourceError: "}
READ = re.compile(r"^read .*\n")  # what was read of an external environment, which stands before an error
NEVER = ("Traceback", "KeyError", "NoneType", "\x1b")


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
    with registered():
        yield


def check_row(row: Row, monkeypatch: pytest.MonkeyPatch, complete_run: Path) -> None:
    """Run a row in the working folder; it must end as it says, and write nothing."""
    for name, value in row.env.items():
        monkeypatch.setenv(name, value)
    prepare(row, complete_run)
    before = listing()
    assert differences(row, run_row(row)) == []
    assert listing() == before


def prepare(row: Row, complete_run: Path) -> None:
    """Put a row's files into the working folder, with a damaged copy of a complete run if the row needs one."""
    for name, content in row.files.items():
        if callable(content):
            content(Path(name))
        else:
            Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    if row.run is not None:
        shutil.copytree(complete_run, "run")
        row.run(Path("run"))


def listing() -> dict[str, tuple[int, int]]:
    """List the working folder with sizes and times of last changes; locks are left out."""
    stats = {path: path.lstat() for path in Path().rglob("*") if path.name != ".lock"}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items() if path.is_file()} | {
        str(path): (0, 0) for path in stats if not path.is_file()
    }


def run_row(row: Row) -> Result:
    """Run a row's command, in a new process if the row asks for one."""
    words = shlex.split(row.command) if isinstance(row.command, str) else row.command
    if not row.alone:
        return uavlab(*words)
    env = {name: value for name, value in {**os.environ, **row.env}.items() if value or name not in row.env}
    process = subprocess.run([*UAVLAB, *words], env=env, capture_output=True, text=True)
    return Result(process.returncode, process.stdout, process.stderr)


def differences(row: Row, result: Result) -> list[str]:
    """Return where a result differs from its row."""
    expected = re.escape(KINDS[row.code] + row.message).replace("…", ".+")
    return [
        *([] if result.code == row.code else [f"code {result.code}"]),
        *([] if re.fullmatch(expected, READ.sub("", result.err).removesuffix("\n")) else [f"message {result.err}"]),
        *(f"never {word}" for word in NEVER if word in result.err),
        *([] if re.search(row.out, result.out) else [f"output {result.out}"]),
    ]
