"""A record of the machine is JSON, and names a commit only in uavlab's own checkout."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from uavlab.storage import machine


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_a_record_is_json_and_complete() -> None:
    record = machine.describe("cpu")
    assert json.loads(json.dumps(record)) == record
    assert record["torch"] == torch.__version__
    assert record["threads"] == torch.get_num_threads()
    assert record["device"] == record["cpu"] != ""
    assert 1 <= record["cores"] <= 4096
    assert record["memory_bytes"] > 1e8


def test_the_commit_is_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert [machine.describe("cpu")[key] for key in ("commit", "dirty")] == [head, False]
    (tmp_path / "file").write_text("b")
    assert [machine.describe("cpu")[key] for key in ("commit", "dirty")] == [head, True]
    inner = tmp_path / "site-packages"  # installed somewhere within another project's checkout
    inner.mkdir()
    monkeypatch.setattr(machine, "ROOT", inner)
    assert [machine.describe("cpu")[key] for key in ("commit", "dirty")] == [None, None]


def test_a_missing_program_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.describe("cpu")["commit"] is None
    assert machine._output("false") is None
