"""Memory limits of real processes: flights in files, memory that the system refuses, and replay that does not grow."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.support.named_rows import RUNS, check, named, rows
from uavlab.core.types import Transition, leaves
from uavlab.replay.ring import Ring, add, allocate
from uavlab.telemetry.flights import FEATURES

ROOT = Path(__file__).parents[2]
LIMITED = """
import os, resource, sys, torch
from uavlab.telemetry import window_source as disk
from uavlab.core.types import Scale, tree_map
from uavlab.telemetry.flights import FlightDataset

def memory():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmData:"))
    return 1024 * int(line.split()[1])

disk.BLOCK, blocks, room = 20_000, 100, 32 * 2**20
files, part = disk.FlightFiles(), torch.zeros(disk.BLOCK, 33).add_(torch.arange(disk.BLOCK)[:, None])
for _ in range(blocks):
    files.append(FlightDataset(part, part[:, :6], part[:, :3], torch.tensor([0, disk.BLOCK])))
resource.setrlimit(resource.RLIMIT_DATA, (memory() + room,) * 2)
flights = files.read()
if sys.argv[1] == "one block":
    disk.BLOCK = len(flights.inputs)
if sys.argv[1] == "memory":
    flights = tree_map(torch.clone, flights)
center, spread = disk.block_statistics(flights, ["inputs"])
flights.normalise(Scale(center.float(), spread.float()))
dice = torch.Generator().manual_seed(0)
for _ in range(20):
    flights.gather(torch.randint(len(flights.inputs) - 250, (256,), generator=dice), 200, 50)
size = sum(os.fstat(file.fileno()).st_size for file in files.files.values())
print(size / room, center[0].item(), spread[0].item())
"""


def limited(how: str) -> subprocess.CompletedProcess[str]:
    """Measure, normalise and read windows of 320 MiB in a process that may take 32 MiB for it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", LIMITED, how], capture_output=True, text=True, env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit what a process holds")
class TestTenTimesWhatAProcessMayHold:
    def test_is_measured_normalised_and_read(self, proof: Callable[[str, str], None]) -> None:
        """Rows count from 0 to 19,999 again and again: their mean is 9,999.5, their variance (20,000^2 - 1) / 12."""
        done = limited("files")
        assert done.returncode == 0, done.stderr
        times, center, spread = map(float, done.stdout.split())
        assert times > 10
        assert center == pytest.approx(9_999.5)
        assert spread == pytest.approx(((20_000**2 - 1) / 12) ** 0.5)
        proof("flights in files", f"{times:.0f} times what a process may hold, measured, normalised and read")

    @pytest.mark.parametrize("how", ["memory", "one block"])
    def test_is_refused_where_it_is_read_at_once(self, how: str) -> None:
        """Flights in memory, as other loaders keep them, and statistics of all rows together."""
        done = limited(how)
        assert done.returncode == 1
        assert "allocate memory" in done.stderr


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os; from tests.unit.telemetry.test_loaders import write; "
        "files = write(None); print(files.folder, flush=True); "
        "print(os.fstat(files.files['inputs'].fileno()).st_size, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    folder, size = done.stdout.split()
    assert (done.returncode, Path(folder), int(size)) == (-9, tmp_path, 4 * 180 * len(FEATURES))
    assert list(tmp_path.iterdir()) == []


REAL = """
import json, resource, warnings, torch
from uavlab.runtime.grad_step import GradientStep, Rows
from uavlab.runtime.toggles import Toggles

torch.set_num_threads(1)
ROWS = 2**18  # times 64 floats: 64 MiB per activation
x = torch.randn(ROWS, 64)

def step(pieces):
    start = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return GradientStep([[start]], 0.01, 1.0, False, Toggles(micro_batches=pieces))

def loss(weight, x):
    return torch.tanh(x @ weight).square().mean(1).mean(), {}

def taken():
    return 4096 * int(open("/proc/self/statm").read().split()[0])

small = step(64)
small(loss, small.parameter, Rows(x, 0))  # whatever is loaded and started by a first step
refused = step(1)
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken() + 100 * 2**20, limits[1]))
with warnings.catch_warnings(record=True) as told:
    for _ in range(2):
        refused(loss, refused.parameter, Rows(x, 0))
resource.setrlimit(resource.RLIMIT_AS, limits)
again = step(refused.microbatcher.pieces)
for _ in range(2):
    again(loss, again.parameter, Rows(x, 0))
same = all(torch.equal(a, b) for a, b in zip(refused.state_dict().values(), again.state_dict().values(), strict=True))
print(json.dumps({"same": same, "retries": refused.microbatcher.retries, "told": [str(line.message) for line in told]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_memory_that_is_really_refused(proof: Callable[[str, str], None]) -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["same"]
    assert len(record["retries"]) == len(record["told"]) >= 1
    assert "DefaultCPUAllocator" in record["told"][0]
    proof(
        "memory really refused", f"100 MiB for activations of 64 MiB: {record['retries'][-1]['to']} pieces, same bits"
    )


BATCH, CAPACITY = 1_000, 30_500  # rows per run; the end of the ring falls into a batch
WARM_UP, EVERY = 100, 20  # batches
NAMES = 90_000  # rows per run that have a name of their own; more than the ring holds
ALLOWED = 2**20  # bytes per million transitions


def growth(write: Callable[[Ring, Transition], None], transitions: int) -> tuple[float, Ring, int]:
    """Fill a ring; return the slope of the memory in use (bytes per million transitions), the ring, rows per run."""
    batches = [rows(named(BATCH, start)) for start in range(0, NAMES, BATCH)]
    ring, process, seen = allocate(batches[0], CAPACITY), psutil.Process(), []
    count = transitions // (RUNS * BATCH)
    for number in range(count):
        fresh = Transition(**{name: leaf.clone() for name, leaf in leaves(batches[number % len(batches)])})
        write(ring, fresh)
        if number >= WARM_UP and number % EVERY == 0:
            seen.append((number * RUNS * BATCH / 1e6, process.memory_info().rss))
    millions, used = np.array(seen, dtype=float).T
    return float(np.polyfit(millions, used, 1)[0]), ring, count * BATCH


def plain() -> float:
    """Fill a ring with ten million transitions, look at its window, and return the slope."""
    slope, ring, total = growth(add, 10_000_000)
    row = torch.arange(total - CAPACITY, total)
    stored = Transition(**{name: leaf[:, row % CAPACITY] for name, leaf in leaves(ring.rows)})
    check(stored, row % NAMES + named(1))
    return slope


def hoarding() -> float:
    """Fill a ring that keeps every batch with a million transitions, and return the slope."""
    batches = []

    def write(ring: Ring, new: Transition) -> None:
        batches.append(new)
        add(ring, new)

    return growth(write, 1_000_000)[0]


def alone(name: str) -> float:
    """Return the slope of a new process: memory that earlier tests freed would hide what a ring takes."""
    call = f"from tests.proofs.test_memory import {name}; print({name}())"
    return float(subprocess.run([sys.executable, "-c", call], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


def test_ten_million_transitions_in_flat_memory(proof: Callable[[str, str], None]) -> None:
    slope = alone("plain")
    assert slope <= ALLOWED
    proof("10 million transitions through replay", f"memory grows by {slope / 2**20:.3f} MiB per million")


def test_a_ring_that_keeps_what_was_added_is_caught() -> None:
    assert alone("hoarding") > 10 * ALLOWED
