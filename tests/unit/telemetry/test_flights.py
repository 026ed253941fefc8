"""Flights by number, written and read again; messages about a folder of logs name the file."""

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import SMALL, random_flight, save_log, simulated_flights, write_logs
from uavlab.core.errors import FileError, ResourceError
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import window_source
from uavlab.telemetry.flights import HIDDEN, Telemetry
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, QUATERNION, TRUTH

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def clear_cache() -> None:
    window_source._load_split.cache_clear()


def logs(folder: Path, **changes: object) -> Telemetry:
    return replace(SMALL, logs=str(folder), **changes)  # type: ignore[arg-type]


def assert_same(flight: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(flight) == {*INPUTS, *TRUTH}
    for name, values in flight.items():
        assert values.dtype == torch.float32
        assert name in QUATERNION or torch.equal(values, expected[name]), name
    same = sum(flight[name] * expected[name] for name in QUATERNION)  # and its negative are the same attitude
    torch.testing.assert_close(same.abs(), torch.ones(len(same)), rtol=0, atol=1e-6)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    written = list(fleet.write(SMALL, tmp_path, 3))
    assert [path.name for path, _ in written] == ["flight_000000.npz", "flight_000001.npz", "flight_000002.npz"]
    assert sorted(tmp_path.iterdir()) == [path for path, _ in written]
    for (path, rows), flight in zip(written, simulated_flights().values(), strict=False):
        assert rows == len(flight["x"])
        assert_same(fleet.read(path), flight)
    again = {number: each for some in fleet.load(logs(tmp_path)) for number, each in some.items()}
    assert list(again) == [0, 1, 2]
    assert_same(again[2], simulated_flights()[2])


def test_each_file_holds_all_columns(tmp_path: Path) -> None:
    [(path, _)] = fleet.write(SMALL, tmp_path / "logs", 1)
    with np.load(path) as file:
        assert set(file) == set(COLUMNS)
        assert file["time"][:3].tolist() == [0.0, 0.01, 0.02]
        assert all(file[name].dtype == np.float32 and np.isfinite(file[name]).all() for name in file if name != "time")
    again, _ = next(iter(fleet.write(SMALL, tmp_path / "more", 1)))
    assert again.read_bytes() == path.read_bytes()  # the same seed, the same flight


def test_files_are_named_by_their_seeds(tmp_path: Path) -> None:
    task = replace(SMALL, first=2)
    (path, _), *others = fleet.write(task, tmp_path, 1)
    assert path.name == "flight_000002.npz"
    assert others == []
    for name, values in fleet.read(path).items():
        if name not in QUATERNION:
            torch.testing.assert_close(values, simulated_flights()[2][name], rtol=1e-5, atol=1e-4)


def test_flights_are_simulated_in_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fleet, "CHUNK", 3)
    parts = list(fleet.simulate(SMALL))
    assert [list(part) for part in parts] == [[0, 1, 2], [3]]
    for number, flight in simulated_flights().items():
        for name, values in parts[number // 3][number].items():
            torch.testing.assert_close(values, flight[name], rtol=1e-5, atol=1e-4)
    assert len(list(fleet.write(SMALL, tmp_path, 4))) == 4


def test_numbers_are_of_single_precision_and_no_gradient() -> None:
    for flight in simulated_flights().values():
        for values in flight.values():
            assert values.dtype == torch.float32
            assert not values.requires_grad


def test_a_task_counts_its_flights(tmp_path: Path) -> None:
    write_logs(tmp_path, 5)
    assert fleet.count(SMALL) == 4
    assert fleet.count(logs(tmp_path)) == 5


def test_logs_are_read_in_the_order_of_their_names_and_nothing_else_is(tmp_path: Path) -> None:
    flights = write_logs(tmp_path, 3)
    (tmp_path / "b.npz").rename(tmp_path / "z.NPZ")
    (tmp_path / "notes.md").write_text("none")
    (tmp_path / "0.yaml").write_text("columns: {}")
    read = [each for some in fleet.load(logs(tmp_path)) for each in some.values()]
    assert [path.name for path in fleet.list_logs(tmp_path)] == ["a.npz", "c.npz", "z.NPZ"]
    for flight, name in zip(read, ("a.npz", "c.npz", "b.npz"), strict=True):
        assert_same(flight, flights[name])


def test_a_mapping_names_the_fields_of_columns(tmp_path: Path) -> None:
    flight = random_flight(120, 0)
    save_log(tmp_path / "a.npz", {"speed" if name == "vx" else name: values for name, values in flight.items()})
    names = "".join(f"  {name}: {'speed' if name == 'vx' else name}\n" for name in ("time", *INPUTS, *TRUTH))
    (tmp_path / "mine.yaml").write_text(f"columns:\n{names}")
    (chunk,) = fleet.load(logs(tmp_path, mapping=str(tmp_path / "mine.yaml")))
    assert_same(chunk[0], flight)
    with pytest.raises(FileError, match=rf"^{tmp_path}/a\.npz: no column 'vx'"):
        list(fleet.load(logs(tmp_path)))


def test_notes_on_a_log_are_warnings(tmp_path: Path) -> None:
    flight = {name: column.numpy() for name, column in random_flight(300, 0).items()}
    time = np.arange(300) / 100
    order = [1, 0, *range(2, 300)]
    np.savez(tmp_path / "a.npz", time=time[order], **{name: column[order] for name, column in flight.items()})
    with pytest.warns(UserWarning, match=r"a\.npz: table: time goes back 1x, first in .*a\.npz row 1; rows are sorted"):
        read = fleet.read(tmp_path / "a.npz")
    torch.testing.assert_close(read["voltage"], torch.from_numpy(flight["voltage"]), rtol=1e-5, atol=1e-5)


def test_other_rates_become_ours(tmp_path: Path) -> None:
    """A log of 50 rows a second that runs evenly has its values half-way between."""
    values = {name: column.numpy() for name, column in random_flight(61, 0).items()}
    values["x"] = np.arange(61.0)
    np.savez(tmp_path / "a.npz", allow_pickle=False, time=np.arange(61) / 50, **values)
    columns = fleet.read(tmp_path / "a.npz")
    assert columns["x"].tolist() == pytest.approx((np.arange(121) / 2).tolist())
    motor = columns["motor_1"].tolist()
    assert motor[::2] == [*motor[1::2], motor[-1]]  # commands keep their value


def test_logs_are_read_again_once_they_changed(tmp_path: Path) -> None:
    flights = write_logs(tmp_path)
    task = logs(tmp_path)
    first = window_source.load_split(task, CPU)
    assert window_source.load_split(task, CPU) is first
    again = {**flights["b.npz"], "voltage": flights["b.npz"]["voltage"] + 1}
    save_log(tmp_path / "b.npz", again)
    second = window_source.load_split(task, CPU)
    assert not torch.equal(second.training.inputs, first.training.inputs)  # type: ignore[union-attr]
    names = "".join(f"  {name}: {name}\n" for name in ("time", *INPUTS, *TRUTH))
    (tmp_path / "mine.yaml").write_text(f"columns:\n{names}")
    mapped = replace(task, mapping=str(tmp_path / "mine.yaml"))
    third = window_source.load_split(mapped, CPU)
    (tmp_path / "mine.yaml").write_text(f"columns:\n{names}  # as they are\n")
    assert window_source.load_split(mapped, CPU) is not third
    (tmp_path / "d.npz").rename(tmp_path / "e.npz")
    assert fleet.file_stamp(task) != fleet.file_stamp(SMALL) == ()
    assert [Path(name).name for name, _, _ in fleet.file_stamp(task)] == ["a.npz", "b.npz", "c.npz", "e.npz"]


def refusal_of(task: Telemetry) -> str:
    with pytest.raises(FileError) as refusal:
        window_source.load_split(task, CPU)
    return str(refusal.value)


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_logs_is_refused(tmp_path: Path, there: bool) -> None:
    folder = tmp_path if there else tmp_path / "missing"
    (tmp_path / "notes.md").write_text("none")
    endings = ".csv, .npz, .parquet, .pq, .tsv, .txt, .ulg"
    assert refusal_of(logs(folder)) == f"{folder}: no logs there; expected files that end in {endings}."


def test_too_few_logs_are_refused(tmp_path: Path) -> None:
    write_logs(tmp_path, 2)
    message = "flights: 2 cannot be split into training, validation and test; expected 3 or more."
    assert refusal_of(logs(tmp_path)) == message


@pytest.mark.parametrize("loader", ["device", "stream"])
def test_a_log_must_be_as_long_as_a_window_and_what_follows(tmp_path: Path, loader: window_source.Loader) -> None:
    """The shortest has 120 rows."""
    write_logs(tmp_path)
    task = logs(tmp_path, window=100, horizon=20)
    assert window_source.load_split(task, CPU, loader).training.bounds[-1] > 240
    message = f"{tmp_path}/a.npz: 120 rows at 100 a second; a window and what follows it are 121."
    assert refusal_of(replace(task, window=101)) == message


@pytest.mark.parametrize("number", range(4))
def test_a_log_without_the_truth_is_refused_in_any_group(tmp_path: Path, number: int) -> None:
    """Whether it would have been learned from or judged by."""
    flights = write_logs(tmp_path)
    name = sorted(flights)[number]
    unknown = {"payload", "drag"}
    save_log(tmp_path / name, {key: values for key, values in flights[name].items() if key not in unknown})
    message = f"{tmp_path}/{name}: does not hold payload, drag; only logs with the truth can be learned from."
    assert refusal_of(logs(tmp_path)) == message
    assert unknown < set(HIDDEN)
    assert unknown.isdisjoint(fleet.read(tmp_path / name))  # by itself it can be read


def test_a_log_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    flights = write_logs(tmp_path)
    save_log(tmp_path / "c.npz", {key: values for key, values in flights["c.npz"].items() if key != "motor_3"})
    message = refusal_of(logs(tmp_path))
    assert message.startswith(f"{tmp_path}/c.npz: no column 'motor_3'; expected ref_x, ")


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    write_logs(tmp_path)
    (tmp_path / "b.npz").write_bytes(b"PK")
    assert refusal_of(logs(tmp_path)).startswith(f"{tmp_path}/b.npz: damaged, or no NPZ file: ")


def test_a_full_disk_is_reported_and_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savez, room = np.savez, [2]

    def soon_full(path: Path, **arrays: np.ndarray) -> None:
        room[0] -= 1
        if room[0] < 0:
            path.write_bytes(b"PK half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        savez(path, **arrays)

    monkeypatch.setattr(np, "savez", soon_full)
    done = []
    with pytest.raises(ResourceError) as refusal:
        done += [path for path, _ in fleet.write(SMALL, tmp_path, 4)]
    assert str(refusal.value) == (
        f"{tmp_path}/flight_000002.npz: cannot be written (No space left on device); free some space or check "
        "permissions."
    )
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["flight_000000.npz", "flight_000001.npz"]
    assert_same(fleet.read(tmp_path / "flight_000001.npz"), simulated_flights()[1])


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be made"):
        next(fleet.write(SMALL, tmp_path / "file" / "logs", 1))
