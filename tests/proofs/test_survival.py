"""Killed processes, killed saves and signals lose nothing; each proof runs in processes of its own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures_config import sizes, train_run
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run

Proof = Callable[[str, str], None]


def harness(module: str, *arguments: str) -> dict[str, Any]:
    """Run ``tests.support.kill_harness`` or ``tests.support.save_harness`` and read what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_run_killed_at_random_ends_in_the_same_bits(count: int, proof: Proof) -> None:
    record = harness("tests.support.kill_harness", "kills", str(count))
    assert record["other"] == [], f"seed {record['seed']}"
    assert record["kills"] == count
    assert record["furthest"] > 20  # kills met runs well on their way, too
    proof("kill -9 at a random moment", f"{count} kills of {record['runs']} runs, all went on to the same bits")


@pytest.mark.parametrize("loss", ["streams", "log"])
def test_what_a_kill_could_lose_would_be_noticed(loss: str) -> None:
    assert harness("tests.support.kill_harness", "kills", "20", "--break", loss)["other"] != []


def test_a_save_killed_at_any_call_loses_nothing(proof: Proof) -> None:
    record = harness("tests.support.save_harness")
    assert {case: counts["lost"] for case, counts in record.items()} == dict.fromkeys(record, 0)
    assert len(record) == 5
    assert all(counts["kills"] > 15 for counts in record.values())
    kills = sum(counts["kills"] for counts in record.values())
    proof("kill -9 at each step of a save", f"{kills} kills in {len(record)} cases, 0 lost")


@pytest.mark.parametrize("mutant", ["in_place", "unlink_first", "two_renames"])
def test_a_writer_that_loses_what_it_replaces_is_caught(mutant: str) -> None:
    assert sum(counts["lost"] for counts in harness("tests.support.save_harness", mutant).values()) > 0


def heard(record: dict[str, Any]) -> bool:
    """Return whether all ended as they should, and most of those that got one signal were training then."""
    once = {status: record["seen"].get(f"1 x {status}", 0) for status in ("interrupted", "complete")}
    return record["wrong"] == [] and once["interrupted"] > 3 * once["complete"]


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_a_signal_at_any_time_ends_a_run_that_goes_on(count: int, proof: Proof) -> None:
    record = harness("tests.support.kill_harness", "signals", str(count))
    assert heard(record), record
    proof("signals at random times", f"{count} runs, all ended as they should and went on to the same bits")


def test_a_signal_that_is_not_heard_would_be_noticed() -> None:
    assert not heard(harness("tests.support.kill_harness", "signals", "10", "--break", "stop"))


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.soak)])
def test_of_processes_that_want_one_folder_one_has_it(count: int, proof: Proof) -> None:
    record = harness("tests.support.kill_harness", "races", str(count))
    assert record["other"] == []
    proof("one writer per run", f"{record['races']} races of three processes, one alone wrote in each")


def test_a_folder_without_a_lock_would_be_noticed() -> None:
    assert harness("tests.support.kill_harness", "races", "3", "--break", "lock")["other"] != []


def test_a_run_killed_at_any_time_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Missions on maps, killed in front of a checkpoint or right behind it."""
    whole, folder = train_run(configure("mapping", sizes("mapping"), {"updates": 30})), tmp_path / "run"
    settings = [f"--set={key}={value}" for key, value in sizes("mapping").items() if not isinstance(value, tuple)]
    settings += ["--set=kernels=[3, 2]", "--set=updates=30"]
    command = [sys.executable, "-m", "uavlab", "train", "mapping", *settings, "--out", str(folder)]
    for number in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(folder.glob("checkpoints/ckpt-*"))) == 0:
            time.sleep(0.01)
        time.sleep(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        command = [sys.executable, "-m", "uavlab", "resume", str(folder)]
    run = Run.resume(folder)
    for _ in run.train():
        pass
    assert run.digest == whole.digest
    assert json.loads((folder / "run.json").read_text())["status"] == "complete"
