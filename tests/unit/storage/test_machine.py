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


CORE = "processor\t: {}\nvendor_id\t: {}\ncpu family\t: 6\n"
CORE += "model\t\t: {}\nmodel name\t: Xeon\nstepping\t: 8\nflags\t\t: {}\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\nCPU revision\t: 0\n\n"


@pytest.mark.parametrize(
    ("text", "name", "identity", "flags"),
    [
        (CORE.format(0, "I", 143, "fpu avx2 amx_bf16"), "Xeon", "family 6 model 143 stepping 8", ["avx2", "amx_bf16"]),
        (CORE.format(0, "I", 85, "fpu avx2") * 2, "Xeon", "family 6 model 85 stepping 8", ["avx2"]),
        (ARM, "arm", "implementer 0x41 part 0xd4f revision 0", ["asimd", "bf16"]),
        (None, "arm", "", []),
    ],
)
def test_cpus_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str, identity: str, flags: list[str]
) -> None:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_output", lambda *command: None)
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm")
    if text is not None:
        machine.CPUINFO.write_text(text)
    machine.cpuinfo.cache_clear()
    try:
        assert (machine.cpu_model(), machine.cpu_id(), machine.cpu_flags()) == (name, identity, flags)
    finally:
        machine.cpuinfo.cache_clear()


def test_a_busy_machine_is_seen_in_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (3.456, 2.0, 1.0))
    assert machine.describe("cpu")["load"] == 3.46


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
    git(tmp_path, "checkout", "-q", "file")
    records = tmp_path / "figures" / "records"
    records.mkdir(parents=True)
    (records / "bench.json").write_text("{}")  # so that one record after the other is made by the same commit
    assert machine.describe("cpu")["dirty"] is False
    (tmp_path / "figures" / "other").write_text("b")
    assert machine.describe("cpu")["dirty"] is True
    inner = tmp_path / "site-packages"  # installed somewhere within another project's checkout
    inner.mkdir()
    monkeypatch.setattr(machine, "ROOT", inner)
    assert [machine.describe("cpu")[key] for key in ("commit", "dirty")] == [None, None]


def test_a_missing_program_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.describe("cpu")["commit"] is None
    assert machine._output("false") is None
