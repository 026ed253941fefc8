"""Files of every format become logs with our names and units; impossible flights are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support import ulog_writer
from uavlab.core.errors import ConfigError, FileError
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, ColumnMap, Entry, read_column_map
from uavlab.telemetry.logs.log import build_log, read_log, read_raw
from uavlab.telemetry.logs.ulog import PX4

TABLE = {"time": [10.0, 10.25, 10.5], "x": [0.0, 1.0, 3.0], "voltage": [15.5, np.nan, 15.25]}


def csv(path: Path) -> None:
    rows = zip(*TABLE.values(), strict=True)
    path.write_text("\n".join([",".join(TABLE), *(",".join(map(str, row)) for row in rows)]))


FORMATS = {
    "a.csv": csv,
    "a.TXT": csv,
    "a.npz": lambda path: np.savez(path, **TABLE),
    "a.parquet": lambda path: parquet.write_table(pa.table(TABLE), path),
    "a.pq": lambda path: parquet.write_table(pa.table(TABLE), path),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_of_each_format(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    log = read_log(tmp_path / name)
    assert list(log.columns) == ["x", "voltage"]
    assert log.columns["x"].time.tolist() == [0, 0.25, 0.5]
    assert log.columns["x"].values.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(log.columns["voltage"].values, [15.5, np.nan, 15.25])


def test_a_log_of_older_firmware(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(ulog_writer.old())  # known by its first bytes
    log = read_log(tmp_path / "a.bin")
    absent = {"ref_x", "ref_y", "ref_z", "ref_vx", "ref_vy", "ref_vz", "voltage", "current"}
    assert list(log.columns) == [name for name in INPUTS if name not in absent]
    assert [log.columns[f"motor_{n}"].values[0] for n in (1, 2, 3, 4)] == [0, 0, 0.5, 1]  # 900, 1000, 1500, 2000 us
    assert log.columns["motor_1"].field == "actuator_outputs.output[0]"
    assert log.columns["q"].values[0] == np.float32(0.2)
    assert log.columns["az"].values[0] == -9.75
    assert log.columns["az"].time is log.columns["p"].time
    assert log.columns["x"].time.tolist() == [n / 10 for n in range(11)]


def test_a_log_of_newer_firmware(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.new())
    log = read_log(tmp_path / "a.ulg")
    assert list(log.columns) == [name for name in INPUTS if name != "current"]
    assert log.notes == ("current: no value in battery_status.current_a",)  # -1: unknown
    assert [log.columns[f"motor_{n}"].values[0] for n in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 0]  # NaN: disarmed
    assert log.columns["motor_1"].field == "actuator_motors.control[0]"
    assert log.columns["ref_x"].values[0] == 5
    assert log.columns["ref_vx"].values[0] == 1
    assert log.columns["voltage"].values[0] == 15.5


def test_sensors_that_only_newer_topics_have(tmp_path: Path) -> None:
    fields = ulog_writer.STAMP | {"xyz": "float[3]"}
    topics = [
        ("vehicle_angular_velocity", fields, [[0, 1, 2, 3], [20_000, 1, 2, 3]]),
        ("vehicle_acceleration", fields, [[0, 0, 0, -9], [20_000, 0, 0, -9]]),
        (
            "trajectory_setpoint",
            ulog_writer.STAMP | {"position": "float[3]", "velocity": "float[3]"},
            [[0, 1, 2, 3, 4, 5, 6]],
        ),
    ]
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog(*topics))
    columns = read_log(tmp_path / "a.ulg").columns
    assert [columns[name].values[0] for name in ("p", "q", "r", "az")] == [1, 2, 3, -9]
    assert [columns[f"ref_{name}"].values[0] for name in ("x", "y", "z", "vx", "vy", "vz")] == [1, 2, 3, 4, 5, 6]


def test_a_mapping_renames_and_converts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t,gyro,amps,time\n1000,180,-1,never\n1010,90,1500,mind\n1030,,500,it\n")
    (tmp_path / "m.yaml").write_text(
        "columns:\n  time: {from: t, unit: ms}\n  p: {from: gyro, unit: deg/s}\n"
        "  current: {from: amps, unit: mA, unknown: -1}\n  motor_1: {from: gyro, unit: '%', blank: 50}\n"
    )
    mapping = read_column_map(tmp_path / "m.yaml")
    (tmp_path / "b.csv").write_text("t,gyro,amps\n1000,90,-1\n1010,45,1500\n1030,,500\n")
    with pytest.raises(
        FileError, match=r"a\.csv:2 column 'gyro': 180 %; expected -0\.05 to 1\.05 share for 'motor_1'\.$"
    ):
        read_log(tmp_path / "a.csv", mapping)
    log = read_log(tmp_path / "b.csv", mapping)
    assert log.columns["p"].time == pytest.approx([0, 0.01, 0.03], abs=1e-12)
    np.testing.assert_allclose(log.columns["p"].values, [np.pi / 2, np.pi / 4, np.nan])
    np.testing.assert_allclose(log.columns["current"].values, [np.nan, 1.5, 0.5])
    np.testing.assert_allclose(log.columns["motor_1"].values, [0.9, 0.45, 0.5])


def test_a_mapping_of_topics(tmp_path: Path) -> None:
    second = "actuator_outputs#1", ulog_writer.OUTPUTS, [[t, 4, 1100, 1200, 1300, 1400] for t in (0, 20_000)]
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog(ulog_writer.position(), ulog_writer.outputs(), second))
    motor = {"motor_1": (Entry("actuator_outputs#1.output[1]", "us"),)}
    log = read_log(tmp_path / "a.ulg", ColumnMap("m", motor))
    assert list(log.columns) == ["motor_1"]
    assert log.columns["motor_1"].values == pytest.approx([0.2, 0.2])
    with pytest.raises(ConfigError, match=r"^m: columns\.time: topics of ULog bring their time; leave this"):
        read_log(tmp_path / "a.ulg", ColumnMap("m", {**motor, "time": (Entry("actuator_outputs.timestamp"),)}))


def test_times_since_1970_keep_their_microseconds(tmp_path: Path) -> None:
    stamps = 1_710_773_350_346_000 + np.array([0, 4_000, 8_001])
    np.savez(tmp_path / "a.npz", t=stamps, x=np.zeros(3))
    mapping = ColumnMap("m", {"time": (Entry("t", "us"),), "x": (Entry("x"),)})
    assert read_log(tmp_path / "a.npz", mapping).columns["x"].time.tolist() == [0, 4000 * 1e-6, 8001 * 1e-6]


def test_a_file_without_any_value_of_a_column_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,x,y\n0,1,\n0.1,2,nan\n")
    log = read_log(tmp_path / "a.csv")
    assert list(log.columns) == ["x"]
    assert log.notes == ("y: no value in y",)


def test_a_strange_kind_of_nan_is_one(tmp_path: Path) -> None:
    signalling = np.array([0x7F800001, 0, 0], dtype=np.uint32).view(np.float32)
    np.savez(tmp_path / "a.npz", time=[0, 0.1, 0.2], x=signalling)
    np.testing.assert_array_equal(read_log(tmp_path / "a.npz").columns["x"].values, [np.nan, 0, 0])


def test_a_raw_log_serves_several_uses(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv")
    raw = read_raw(tmp_path / "a.csv", None, others=True)
    assert build_log(raw).columns.keys() == read_log(tmp_path / "a.csv").columns.keys()


ROTATION = "time,qw,qx,qy,qz\n0,1,0,0,0\n0.1,0.96,0,0.28,0\n"
FORCE = "time,ax,ay,az\n0,0,0.1,{0}\n0.1,0,0.1,{0}\n0.2,0,0,{0}\n"


def test_attitudes_and_forces_that_can_be(tmp_path: Path) -> None:
    never_at_once = "time,ax,ay,az\n0,,1,1\n0.1,1,,1\n0.2,1,1,\n"
    for content in (ROTATION, FORCE.format(-9.8), FORCE.format(-3.1), never_at_once):
        (tmp_path / "a.csv").write_text(content)
        assert list(read_log(tmp_path / "a.csv").columns) == content.splitlines()[0].split(",")[1:]


NAMES = "time, ref_x, ref_y, ref_z, ref_vx, ref_vy, ref_vz, x, y, z, vx, vy, vz, ax, ay, az, p, q, r, qw and 18 more"
RENAME = "rename columns, or name their fields in a mapping: uavlab flights describe {} --write-mapping a.yaml."
REFUSED = [
    (
        "tme,x\n0,1\n1,2\n",
        f"{{}}: no column 'time' (did you mean 'tme'?); expected {NAMES}; found x, tme; {RENAME}",
    ),
    ("time,a,b\n0,1,2\n1,2,3\n", f"{{}}: no column 'ref_x'; expected {NAMES}; found time, a, b; {RENAME}"),
    ("time,x\n0,1\n,2\n", "{}:3 column 'time': no finite time; fill it in, or cut the row."),
    ("time,x\n0,1\ninf,2\n", "{}:3 column 'time': no finite time; fill it in, or cut the row."),
    (
        "time,x\n0,1\n0.2,2\n\n0.1,2\n0.2,2\n",
        "{0}:6 column 'time': 0.2, the time of {0}:3 once more; expected one row for each time. Cut one of these rows "
        "out.",
    ),
    (
        "time,x\n0,1\n10,2\n20,2\n",
        "{} column 'time': 10 from row to row; expected seconds, less than 1 (is it in ms? A mapping names units).",
    ),
    (
        "time,x\n0,1\n10000,2\n20000,2\n",
        "{} column 'time': 10000 from row to row; expected seconds, less than 1 (is it in us? A mapping names units).",
    ),
    (
        "time,x\n0,1\n4000000,2\n8000000,2\n",
        "{} column 'time': 4000000 from row to row; expected seconds, less than 1 (is it in ns? A mapping names "
        "units).",
    ),
    (
        "time,p\n0,1\n0.1,-312.5\n",
        "{}:3 column 'p': -312.5 rad/s; expected -40 to 40 rad/s for 'p' (is it in deg/s? A mapping names units).",
    ),
    (
        "time,voltage\n0,11100\n0.1,11000\n",
        "{}:2 column 'voltage': 11100 V; expected 0 to 100 V for 'voltage' (is it in mV? A mapping names units).",
    ),
    (
        "time,motor_1\n0,1000\n0.1,1900\n",
        "{}:2 column 'motor_1': 1000 share; expected -0.05 to 1.05 share for 'motor_1' (is it in us? A mapping names "
        "units).",
    ),
    ("time,vx\n0,1\n0.1,1e6\n", "{}:3 column 'vx': 1000000 m/s; expected -150 to 150 m/s for 'vx'."),
    ("time,x\n0,1\n0.1,-inf\n", "{}:3 column 'x': -inf m; expected -100000 to 100000 m for 'x'."),
    (
        ROTATION.replace("0.96", "0.5"),
        "{}:3 columns qw, qx, qy, qz: a quaternion of length 0.5731; expected 1 within 0.05. Check the columns' order "
        "and scale.",
    ),
    ("time,qw,qx,qz\n0,1,0,0\n0.1,1,0,0\n", "{}: an attitude needs qw, qx, qy, qz; qy missing."),
    (
        FORCE.format(-1),
        "{} columns ax, ay, az: a median specific force of 1 m/s^2; expected about 9.8 (are they in g? A "
        "mapping names units).",
    ),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_what_cannot_be_a_flight_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(FileError) as refusal:
        read_log(path)
    assert str(refusal.value) == message.format(path, path)


def test_rows_of_a_table_are_sorted_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,x,vx\n5.2,2,20\n5.0,0,0\n\n5.1,1,10\n5.4,4,40\n5.3,3,900\n")
    with pytest.raises(FileError, match=r"a\.csv:7 column 'vx': 900 m/s; expected"):  # the line in the file
        read_log(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text().replace("900", "30"))
    log = read_log(tmp_path / "a.csv")
    assert log.columns["x"].time == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert log.columns["x"].values.tolist() == [0, 1, 2, 3, 4]
    assert log.columns["vx"].values.tolist() == [0, 10, 20, 30, 40]
    assert [note.partition(";")[0] for note in log.notes] == [
        f"table: time goes back 2x, first in {tmp_path / 'a.csv'}:3"
    ]


def test_rows_of_a_topic_are_sorted_by_time(tmp_path: Path) -> None:
    """The writer sorts rows by their first value, so a wrong order is written as two parts of one file."""
    name, fields, rows = ulog_writer.position(6)
    late = b"".join(ulog_writer.row(0, fields, rows[n]) for n in (5, 3, 4))
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog((name, fields, rows[:3]), after=late))
    log = read_log(tmp_path / "a.ulg")
    assert log.columns["x"].time.tolist() == [n / 10 for n in range(6)]
    assert log.columns["x"].values == pytest.approx([n / 10 for n in range(6)])
    where = f"{tmp_path / 'a.ulg'} vehicle_local_position row 4"
    assert [note.partition(";")[0] for note in log.notes] == [f"{name}: time goes back 1x, first in {where}"]
    twice = late + ulog_writer.row(0, fields, rows[1])
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog((name, fields, rows[:3]), ulog_writer.battery(3), after=twice))
    advice = r"row 6 column 'timestamp': 0\.1, the time of .* row 1 once more; .* Leave this topic out, by a mapping\."
    with pytest.raises(FileError, match=advice):
        read_log(tmp_path / "a.ulg")
    other = ColumnMap("m", {"voltage": (Entry("battery_status.voltage_v"),)})
    assert list(read_log(tmp_path / "a.ulg", other).columns) == ["voltage"]


def test_what_a_mapping_names_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,pos_x,b\n0,1,2\n0.1,2,3\n")
    mapping = ColumnMap("m.yaml", {"x": (Entry("posx"),), "y": (Entry("b"),), "z": (Entry("alt"),)})
    with pytest.raises(FileError) as refusal:
        read_log(tmp_path / "a.csv", mapping)
    assert str(refusal.value) == (
        f"{tmp_path / 'a.csv'}: no column 'posx' (did you mean 'pos_x'?); expected time, posx, b, alt; found time, b, "
        "pos_x; correct m.yaml."
    )


POSITION = ulog_writer.position()[0]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (
            [("cpuload", ulog_writer.STAMP | {"load": "float"}, [[0, 1], [1, 1]])],
            ": no column 'vehicle_local_position_setpoint.x'; expected vehicle_local_position_setpoint.x, ",
        ),
        (
            [(POSITION, ulog_writer.POSITION, [[t, 0, 0, 0, 0, 0, 0] for t in (0, 30_000, 30_000)])],
            f" {POSITION} row 2 column 'timestamp': 0.03, the time of ",
        ),
        (
            [(POSITION, ulog_writer.POSITION, [[0, 0, 0, 0, 0, 0, 0], [20_000, 0, 0, 0, 900, 0, 0]])],
            f" {POSITION} row 1 column 'vx': 900 m/s; expected -150 to 150 m/s for 'vx' (is it in mm/s? A",
        ),
        (
            [("actuator_outputs", ulog_writer.OUTPUTS, [[t, 4, 8191, 0, 0, 0] for t in (0, 20_000)])],
            " actuator_outputs row 0 column 'output[0]': 8191 us; expected -0.05 to 1.05 share for 'motor_1'.",
        ),
    ],
)
def test_topics_that_cannot_be_a_flight_are_refused(tmp_path: Path, topics: list, message: str) -> None:
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog(*topics))
    with pytest.raises(FileError) as refusal:
        read_log(tmp_path / "a.ulg")
    assert message in str(refusal.value)


def test_an_attitude_comes_from_one_topic(tmp_path: Path) -> None:
    (tmp_path / "a.ulg").write_bytes(
        ulog_writer.ulog(
            ulog_writer.attitude(5), ("vehicle_attitude#1", ulog_writer.ATTITUDE, ulog_writer.attitude(6)[2])
        )
    )
    quaternion = {name: PX4.columns[name] for name in ("qw", "qx", "qy")}
    with pytest.raises(FileError, match="qw, qx, qy, qz have different times; take all of them from one topic"):
        read_log(tmp_path / "a.ulg", ColumnMap("m", {**quaternion, "qz": (Entry("vehicle_attitude#1.q[3]"),)}))


@pytest.mark.parametrize(
    ("name", "make", "error", "message"),
    [
        (
            "a.xlsx",
            lambda path: path.write_bytes(b"PK"),
            ConfigError,
            "a.xlsx: unknown ending '.xlsx'; expected .csv",
        ),
        ("a", lambda path: path.write_bytes(b"x"), ConfigError, "a: unknown ending ''; expected .csv, .tsv, .txt, "),
        ("a.ulg", lambda path: path.write_bytes(b"x"), FileError, "a.ulg: not a ULog file; one begins with the bytes"),
        ("a.csv", os.mkfifo, FileError, "a.csv: not readable: not a regular file."),
        ("a.npz", Path.mkdir, FileError, "a.npz: not readable: not a regular file."),
    ],
)
def test_what_no_reader_knows_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(error) as refusal:
        read_log(tmp_path / name)
    assert message in str(refusal.value)


def test_a_column_of_every_kind_is_checked(tmp_path: Path) -> None:
    """A value above its range is refused in every column."""
    for name, column in COLUMNS.items():
        if name != "time":
            (tmp_path / "a.csv").write_text(f"time,{name}\n0,0\n0.1,{column.high * 1.5}\n")
            with pytest.raises(FileError, match=rf"a\.csv:3 column '{name}': "):
                read_log(tmp_path / "a.csv")
