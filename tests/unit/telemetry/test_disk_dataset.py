"""Flights in files equal flights in memory, take no more memory than a block of them, and leave nothing behind."""

import errno
import gc
import os
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
