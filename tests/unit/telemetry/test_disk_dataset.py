"""Flights in files equal flights in memory, take no more memory than a block of them, and leave nothing behind."""

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import made_up_series
from uavlab.core.errors import ResourceError
from uavlab.core.types import leaves
from uavlab.telemetry import disk_dataset
from uavlab.telemetry.dataset import FEATURES, Series, fitted, named, normalised, starts
from uavlab.telemetry.disk_dataset import BLOCK, FIELDS, Spool

ROOT = Path(__file__).parents[3]


def parts() -> list[Series]:
    """Two series to be put one after the other."""
    return [made_up_series(40, 30), made_up_series(25, 50, 35)]


def together() -> Series:
    first, second = parts()
    bounds = torch.cat([first.bounds, 70 + second.bounds[1:]])
    return Series(*(torch.cat([getattr(first, name), getattr(second, name)]) for name in FIELDS), bounds)


def filled(folder: Path | None) -> Spool:
    made = Spool(folder)
    for part in parts():
        made.append(part)
    return made


@pytest.fixture(params=[BLOCK, 180, 64, 7])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """More rows than there are, exactly as many, and parts of them."""
    monkeypatch.setattr(disk_dataset, "BLOCK", request.param)
    return request.param


def test_windows_equal_those_of_memory(tmp_path: Path) -> None:
    kept, flights = filled(tmp_path), together()
    assert kept.rows == 180
    assert torch.equal(kept.bounds, flights.bounds)
    start, _ = starts(flights.bounds, 15, 1)
    order = torch.randperm(len(start), generator=torch.Generator().manual_seed(0))
    for shape in ((10, 5), (1, 14)):
        found, expected = kept.gathered(start[order], *shape), flights.gathered(start[order], *shape)
        for (name, value), (_, same) in zip(leaves(found), leaves(expected), strict=True):
            assert value.dtype == torch.float32
            assert torch.equal(value, same), name


@pytest.mark.parametrize("fields", [("inputs",), ("truth", "astray")])
def test_statistics_equal_those_of_memory(tmp_path: Path, block: int, fields: tuple[str, ...]) -> None:
    values = torch.cat([getattr(together(), name) for name in fields], 1)
    names = [str(n) for n in range(values.shape[1])]
    expected, found = fitted(values, names), named(*filled(tmp_path).statistics(fields), names)
    torch.testing.assert_close(found.center, expected.center, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found.spread, expected.spread, rtol=1e-6, atol=0)


def test_statistics_of_large_numbers_keep_their_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of 1e5 with a spread of 1 would lose it in single precision, and means of blocks differ."""
    monkeypatch.setattr(disk_dataset, "BLOCK", 100)
    flights = made_up_series(950)
    flights.inputs.add_(1e5).add_(torch.linspace(0, 3, 950)[:, None])
    kept = Spool(tmp_path)
    kept.append(flights)
    center, spread = kept.statistics(["inputs"])
    exact = flights.inputs.double()
    torch.testing.assert_close(center, exact.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(spread, exact.std(0, correction=0), rtol=1e-9, atol=0)


def test_inputs_are_normalised_in_their_place(tmp_path: Path, block: int) -> None:
    kept, flights = filled(tmp_path), together()
    scale = fitted(flights.inputs, FEATURES)
    kept.normalise(scale)
    normalised(flights, scale)
    start, _ = starts(flights.bounds, 15, 1)
    for (name, value), (_, same) in zip(
        leaves(kept.gathered(start, 10, 5)), leaves(flights.gathered(start, 10, 5)), strict=True
    ):
        assert torch.equal(value, same), name
    assert os.fstat(kept.files["inputs"]).st_size == 4 * 180 * len(FEATURES)


def test_no_more_than_a_block_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_dataset, "BLOCK", 20)
    kept, asked = Spool(tmp_path), []
    kept.append(made_up_series(210))
    into = Spool._into

    def watched(self: Spool, name: str, begin: int, out: Tensor) -> None:
        asked.append(len(out))
        into(self, name, begin, out)

    monkeypatch.setattr(Spool, "_into", watched)
    scale = named(*kept.statistics(["inputs"]), FEATURES)
    kept.normalise(scale)
    assert asked == [*[20] * 10, 10] * 2
    asked.clear()
    kept.gathered(torch.tensor([3, 100]), 30, 5)
    assert asked == [30, 30, 1, 1, 5, 5]


LIMITED = """
import os, resource, sys, torch
from uavlab.telemetry import disk_dataset as spool
from uavlab.telemetry.dataset import Scale, Series

def held():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmData:"))
    return 1024 * int(line.split()[1])

spool.BLOCK, blocks, room = 20_000, 100, 32 * 2**20
kept, part = spool.Spool(), torch.zeros(spool.BLOCK, 33).add_(torch.arange(spool.BLOCK)[:, None])
for _ in range(blocks):
    kept.append(Series(part, part[:, :6], part[:, :3], torch.tensor([0, spool.BLOCK])))
resource.setrlimit(resource.RLIMIT_DATA, (held() + room,) * 2)
if sys.argv[1] == "one block":
    spool.BLOCK = kept.rows
flights = kept
if sys.argv[1] == "memory":
    flights = Series(*(kept._read(name, 0, kept.rows) for name in spool.FIELDS), kept.bounds)
center, spread = kept.statistics(["inputs"])
kept.normalise(Scale(center.float(), spread.float()))
dice = torch.Generator().manual_seed(0)
for _ in range(20):
    flights.gathered(torch.randint(kept.rows - 250, (256,), generator=dice), 200, 50)
size = sum(os.fstat(number).st_size for number in kept.files.values())
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


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_what_was_added_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Spool(tmp_path)
    first, second = parts()
    kept.append(first)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for act in (lambda: kept.append(second), lambda: kept.normalise(fitted(first.inputs, FEATURES))):
            with pytest.raises(ResourceError) as refusal:
                act()
            assert str(refusal.value) == (
                f"{kept.folder}: cannot be written (No space left on device); free space there, or set TMPDIR."
            )
    assert torch.equal(kept.bounds, first.bounds)
    start, _ = starts(first.bounds, 15, 1)
    assert torch.equal(kept.gathered(start, 10, 5).inputs, first.gathered(start, 10, 5).inputs)
    kept.append(second)
    assert torch.equal(kept.bounds, together().bounds)
    assert torch.equal(kept._read("inputs", 0, 180), together().inputs)


def test_a_disk_that_fills_up_midway_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, room = os.pwrite, [3]

    def soon_full(file: int, data: memoryview, place: int) -> int:
        room[0] -= 1
        return pwrite(file, data[:1000], place) if room[0] >= 0 else full()

    def fill() -> None:
        Spool(tmp_path).append(parts()[0])

    monkeypatch.setattr(os, "pwrite", soon_full)
    with pytest.raises(ResourceError, match=r"cannot be written \(No space left on device\)"):
        fill()
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_and_read_in_as_many_parts_as_the_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: pwrite(file, data[:1001], place))
    monkeypatch.setattr(os, "preadv", lambda file, into, place: preadv(file, [into[0][:999]], place))
    kept = filled(tmp_path)
    for name in FIELDS:
        assert torch.equal(kept._read(name, 0, 180), getattr(together(), name))


def test_files_go_with_the_object(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    numbers = list(kept.files.values())
    assert len(set(numbers)) == len(FIELDS)
    assert {os.fstat(number).st_dev for number in numbers} == {tmp_path.stat().st_dev}
    del kept
    gc.collect()
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path: Path) -> None:
    """Nobody has the time to tidy up then, so there must be nothing to tidy up."""
    script = (
        "import os; from tests.unit.telemetry.test_disk_dataset import *; "
        "kept = filled(None); print(kept.folder, flush=True); "
        "print(os.fstat(kept.files['inputs']).st_size, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    folder, size = done.stdout.split()
    assert (done.returncode, Path(folder), int(size)) == (-9, tmp_path, 4 * 180 * len(FEATURES))
    assert list(tmp_path.iterdir()) == []


def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as refusal:
        Spool(tmp_path / "missing")
    told = "no flights can be kept (No such file or directory); set TMPDIR."
    assert str(refusal.value) == f"{tmp_path / 'missing'}: {told}"


def test_where_the_last_file_fails_the_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, made = disk_dataset.tempfile.TemporaryFile, []

    def two(**where: object) -> object:
        made.append(opened(**where) if len(made) < 2 else full())  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr(disk_dataset.tempfile, "TemporaryFile", two)
    with pytest.raises(ResourceError, match=r"no flights can be kept \(No space left on device\);"):
        Spool(tmp_path)
    assert [file.closed for file in made] == [True, True]


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    os.ftruncate(kept.files["truth"], 100)
    with pytest.raises(ResourceError) as refusal:
        kept.gathered(torch.tensor([50]), 10, 5)
    assert str(refusal.value) == f"{tmp_path}: truth ended early; check the disk and start again."
