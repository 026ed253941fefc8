"""Flights in files equal flights in memory and leave no file behind; windows one by one equal those made at once."""

import errno
import gc
import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from tests.support.fixtures_telemetry import input_scale, random_dataset
from uavlab.core.errors import ResourceError
from uavlab.core.types import Scale, leaves, tree_map
from uavlab.telemetry import window_source
from uavlab.telemetry.flights import FEATURES, FlightDataset, window_starts
from uavlab.telemetry.window_source import BLOCK, FIELDS, FlightFiles, ItemDataset, block_statistics, load_batches

ROOT = Path(__file__).parents[3]


def parts() -> list[FlightDataset]:
    """Two series to be put one after the other."""
    return [random_dataset(40, 30), random_dataset(25, 50, 35)]


def together() -> FlightDataset:
    first, second = parts()
    bounds = torch.cat([first.bounds, 70 + second.bounds[1:]])
    return FlightDataset(*(torch.cat([getattr(first, name), getattr(second, name)]) for name in FIELDS), bounds)


def write(folder: Path | None) -> FlightFiles:
    files = FlightFiles(folder)
    for part in parts():
        files.append(part)
    return files


@pytest.fixture(params=[BLOCK, 180, 64, 7])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """More rows than there are, exactly as many, and parts of them."""
    monkeypatch.setattr(window_source, "BLOCK", request.param)
    return request.param


def test_flights_and_windows_equal_those_of_memory(tmp_path: Path) -> None:
    files, flights = write(tmp_path).read(), together()
    for (name, value), (_, same) in zip(leaves(files), leaves(flights), strict=True):
        assert torch.equal(value, same), name
    start, _ = window_starts(flights.bounds, 15, 1)
    order = torch.randperm(len(start), generator=torch.Generator().manual_seed(0))
    for shape in ((10, 5), (1, 14)):
        windows, expected = files.gather(start[order], *shape), flights.gather(start[order], *shape)
        for (name, value), (_, same) in zip(leaves(windows), leaves(expected), strict=True):
            assert value.dtype == torch.float32
            assert torch.equal(value, same), name


@pytest.mark.parametrize("fields", [("inputs",), ("truth", "tracking_error")])
def test_statistics_equal_those_of_memory(tmp_path: Path, block: int, fields: tuple[str, ...]) -> None:
    center, spread = block_statistics(write(tmp_path).read(), fields)
    expected_center, expected_spread = together().statistics(fields)
    torch.testing.assert_close(center, expected_center, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(spread, expected_spread, rtol=1e-6, atol=0)


def test_statistics_of_large_numbers_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares of 1e5 with a spread of 1 would lose it in single precision, and means of blocks differ."""
    monkeypatch.setattr(window_source, "BLOCK", 100)
    flights = random_dataset(950)
    flights.inputs.add_(1e5).add_(torch.linspace(0, 3, 950)[:, None])
    center, spread = block_statistics(flights, ["inputs"])
    exact = flights.inputs.double()
    torch.testing.assert_close(center, exact.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(spread, exact.std(0, correction=0), rtol=1e-9, atol=0)


def test_inputs_are_normalised_in_the_files(tmp_path: Path) -> None:
    files, flights = write(tmp_path), together()
    scale = input_scale(flights)
    files.read().normalise(scale)
    flights.normalise(scale)
    assert torch.equal(files.read().inputs, flights.inputs)
    assert files.files["inputs"].seek(0, os.SEEK_END) == 4 * 180 * len(FEATURES)


def test_a_disk_that_takes_no_more_is_reported(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # the system takes a part of the first write
    try:
        with pytest.raises(ResourceError) as refusal:
            FlightFiles(tmp_path).append(parts()[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reason = "cannot be written (File too large); free space there, or set TMPDIR."
    assert str(refusal.value) == f"{tmp_path}: {reason}"
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_files_go_with_the_last_of_their_flights(tmp_path: Path) -> None:
    files = write(tmp_path)
    flights, numbers = files.read(), [file.fileno() for file in files.files.values()]
    assert len(set(numbers)) == len(FIELDS)
    assert {os.fstat(number).st_dev for number in numbers} == {tmp_path.stat().st_dev}
    del files
    gc.collect()
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
    assert torch.equal(flights.truth, together().truth)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as refusal:
        FlightFiles(tmp_path / "missing")
    reason = "no flights can be kept (No such file or directory); set TMPDIR."
    assert str(refusal.value) == f"{tmp_path / 'missing'}: {reason}"


def test_where_the_last_file_fails_the_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, files = window_source.tempfile.TemporaryFile, []

    def two(**where: object) -> object:
        if len(files) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.append(create(**where))  # type: ignore[call-overload]
        return files[-1]

    monkeypatch.setattr(window_source.tempfile, "TemporaryFile", two)
    with pytest.raises(ResourceError, match=r"no flights can be kept \(No space left on device\);"):
        FlightFiles(tmp_path)
    assert [file.closed for file in files] == [True, True]


WINDOW, HORIZON = 20, 5
FLIGHTS = random_dataset(70, 45, 60)
SCALE = input_scale(FLIGHTS)
START, _ = window_starts(FLIGHTS.bounds, WINDOW + HORIZON, 1)


def items(scale: Scale = SCALE) -> ItemDataset:
    return ItemDataset(FLIGHTS, scale, WINDOW, HORIZON)


def test_all_windows_equal_those_normalised_at_once() -> None:
    flights = tree_map(torch.clone, FLIGHTS)
    flights.normalise(SCALE)
    at_once = flights.gather(START, WINDOW, HORIZON)
    one_by_one = items()
    assert len(START) == 46 + 21 + 36
    for n, begin in enumerate(START.tolist()):
        inputs, truth, error = one_by_one[begin]
        assert inputs.dtype == truth.dtype == error.dtype == torch.float32
        torch.testing.assert_close(inputs, at_once.inputs[n], rtol=1e-6, atol=1e-6)
        assert torch.equal(truth, at_once.truth[n])
        assert torch.equal(error, at_once.tracking_error[n])


@pytest.mark.parametrize("part", ["center", "spread"])
def test_another_scale_would_be_noticed(part: str) -> None:
    other = Scale(**{**vars(SCALE), part: getattr(SCALE, part) * 1.001 + 1e-5})
    assert (items(other)[0][0] - items()[0][0]).abs().max() > 1e-4


def test_items_are_scaled_as_scikit_learn_does() -> None:
    """Fitted by scikit-learn on the same rows, a StandardScaler gives the same numbers."""
    scaler = StandardScaler().fit(FLIGHTS.inputs.double().numpy())
    raw = FLIGHTS.inputs[7 : 7 + WINDOW].double().numpy()
    np.testing.assert_allclose(items()[7][0].numpy(), scaler.transform(raw), rtol=1e-5, atol=1e-5)


def test_flights_are_left_as_they_are() -> None:
    before = [leaf.clone() for _, leaf in leaves(FLIGHTS)]
    inputs, _, _ = items()[3]
    inputs.zero_()
    for (name, leaf), old in zip(leaves(FLIGHTS), before, strict=True):
        assert torch.equal(leaf, old), name
    assert items()[3][0].abs().max() > 0


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_the_order_of_their_starts(workers: int) -> None:
    starts = [[0, 7, 3], [80], [50, 50, 12, 1], [9, 8]]
    batches = list(load_batches(items(), iter(starts), workers, pin=False))
    assert [len(rows.inputs) for rows in batches] == [3, 1, 4, 2]
    one_by_one = items()
    for rows, begins in zip(batches, starts, strict=True):
        for n, begin in enumerate(begins):
            for (name, leaf), value in zip(leaves(rows), one_by_one[begin], strict=True):
                assert torch.equal(leaf[n], value), name


@pytest.mark.parametrize(("workers", "ahead"), [(0, 0), (1, 2), (2, 4)])
def test_each_worker_reads_two_batches_ahead(workers: int, ahead: int) -> None:
    read = []

    def starts():
        for begin in range(50):
            read.append(begin)
            yield [begin]

    batches = load_batches(items(), starts(), workers, pin=False)
    for count in range(4):
        assert len(read) == count + ahead
        next(batches)


@pytest.mark.parametrize("broken", [False, True])
def test_workers_in_a_cycle_end_by_themselves(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: queues that are closed first, so that each worker is waited for, 5 s if not less, and killed."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1 if broken else 60)
    if broken:
        monkeypatch.setattr(window_source, "finalize", lambda *given: None)
    before, killed = set(multiprocessing.active_children()), []
    batches = load_batches(items(), ([k] for k in range(9)), 1, pin=False)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    kill = worker.terminate
    monkeypatch.setattr(worker, "terminate", lambda: killed.append(worker) or kill())
    cycle: list[object] = [batches]
    cycle.append(cycle)
    del batches, cycle
    gc.collect()
    assert (bool(killed), worker.exitcode) == (broken, 0)
