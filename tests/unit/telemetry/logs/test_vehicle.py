"""A vehicle's type and rotors are read from its log; outputs that may be servos are no motors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support import ulog_writer
from tests.support.ulog_writer import STAMP, Topic
from uavlab.core.errors import FileError
from uavlab.telemetry.logs.columns import read_column_map
from uavlab.telemetry.logs.draft import describe, draft_mapping
from uavlab.telemetry.logs.log import Log, read_log, resample

MOTORS = ("motor_1", "motor_2", "motor_3", "motor_4")
PULSES = {1100: 0.1, 1200: 0.2, 1300: 0.3, 1400: 0.4}


def outputs(name: str = "actuator_outputs", step: float = 1, first: tuple[float, ...] = tuple(PULSES)) -> Topic:
    """Return outputs of which each grows by ``step`` from row to row."""
    fields = STAMP | {"output": f"float[{len(first)}]"}
    return name, fields, [[n * 100_000, *(value + n * step for value in first)] for n in range(3)]


def motors(*first: float) -> Topic:
    fields = STAMP | {"control": f"float[{len(first)}]"}
    return "actuator_motors", fields, [[n * 100_000, *(value + n / 64 for value in first)] for n in range(3)]


def status(field: str, value: int) -> Topic:
    return "vehicle_status", STAMP | {field: "uint8_t"}, [[0, value], [50_000, value]]


def read(folder: Path, *topics: Topic, **parameters: float) -> Log:
    before = b"".join(ulog_writer.parameter(name, value) for name, value in parameters.items())
    (folder / "a.ulg").write_bytes(ulog_writer.ulog(ulog_writer.position(3), *topics, before=before))
    return read_log(folder / "a.ulg")


def fields(log: Log) -> dict[str, str]:
    return {name: signal.field for name, signal in log.columns.items() if name in MOTORS}


def first_outputs(count: int, topic: str = "actuator_outputs.output") -> dict[str, str]:
    return {f"motor_{n + 1}": f"{topic}[{n}]" for n in range(count)}


SERVOS = [
    ({"MAV_TYPE": 1}, None, "plane"),
    *(({"MAV_TYPE": kind}, None, "VTOL") for kind in (19, 20, 21, 22, 25)),
    ({"MAV_TYPE": 4}, None, "helicopter"),
    ({"MAV_TYPE": 10}, None, "rover"),
    ({"CA_AIRFRAME": 2, "CA_ROTOR_COUNT": 5}, None, "VTOL, 5 rotors"),
    ({}, ("is_vtol", 1), "VTOL"),
    ({}, ("vehicle_type", 2), "plane"),
    ({}, ("is_rotary_wing", 0), "plane"),
    ({}, ("system_type", 1), "plane"),
    ({"MAV_TYPE": 2}, ("is_vtol", 1), "VTOL"),  # the parameter's default beside what flies
    ({"MAV_TYPE": 2, "CA_AIRFRAME": 1}, None, "plane"),
]


@pytest.mark.parametrize(("parameters", "flag", "kind"), SERVOS)
def test_outputs_that_may_be_servos_are_no_motors(
    tmp_path: Path, parameters: Mapping[str, int], flag: tuple[str, int] | None, kind: str
) -> None:
    log = read(tmp_path, outputs(), *([status(*flag)] if flag else []), **parameters)
    assert list(log.columns) == ["x", "y", "z", "vx", "vy", "vz"]
    assert log.notes[0].startswith(f"{', '.join(MOTORS)}: left out: {kind}")
    for name, value in {**parameters, **dict([flag] if flag else [])}.items():
        assert f"{name} {value}" in log.notes[0]
    with pytest.raises(FileError, match=rf"no column 'motor_2' \({log.notes[0].split(':')[0]}: left out: {kind}"):
        resample(log, 100, ["x", "motor_2"])


ROTORS = [
    ({"MAV_TYPE": 2}, None, 4, ()),
    ({}, ("system_type", 2), 4, ()),
    ({"MAV_TYPE": 2, "CA_ROTOR_COUNT": 4, "CA_AIRFRAME": 0}, None, 4, ()),
    ({}, None, 4, ("vehicle: unknown type, an unknown number of rotors; the first 4 of actuator_outputs are",)),
    ({"MAV_TYPE": 99}, None, 4, ("vehicle: unknown type, ",)),
    (
        {},
        ("vehicle_type", 1),
        4,
        ("vehicle: multirotor, an unknown number of rotors (vehicle_status.vehicle_type 1);",),
    ),
    ({"CA_ROTOR_COUNT": 4}, None, 4, ("vehicle: unknown type, 4 rotors (CA_ROTOR_COUNT 4); ",)),
    (
        {"MAV_TYPE": 13},
        None,
        4,
        ("vehicle: hexarotor, 6 rotors (MAV_TYPE 13); the first 4 of actuator_outputs are read",),
    ),
    ({"MAV_TYPE": 2, "CA_ROTOR_COUNT": 8}, None, 4, ("vehicle: quadrotor, 8 rotors (MAV_TYPE 2, CA_ROTOR_COUNT 8); ",)),
    ({"MAV_TYPE": 15}, None, 3, ("motor_4: left out: tricopter, 3 rotors (MAV_TYPE 15)",)),
]


@pytest.mark.parametrize(("parameters", "flag", "count", "notes"), ROTORS)
def test_the_first_outputs_of_a_multirotor_are_its_motors(
    tmp_path: Path,
    parameters: Mapping[str, float],
    flag: tuple[str, int] | None,
    count: int,
    notes: tuple[str, ...],
) -> None:
    log = read(tmp_path, outputs(), *([status(*flag)] if flag else []), **parameters)
    assert fields(log) == first_outputs(count)
    assert log.columns["motor_2"].values == pytest.approx([0.2, 0.201, 0.202])
    assert len(log.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(log.notes, notes, strict=True))


def test_motors_beyond_the_fourth_are_mentioned(tmp_path: Path) -> None:
    assert read(tmp_path, outputs(), MAV_TYPE=14).notes[0].endswith("motors 5 to 8 are left out, a flight has 4")


@pytest.mark.parametrize(
    ("parameters", "first", "count"),
    [
        ({"MAV_TYPE": 22, "CA_ROTOR_COUNT": 5}, (0.5, 0.5, 0.5, 0.5, 0.1), 4),
        ({"MAV_TYPE": 1}, (0.5, np.nan, np.nan, np.nan), 1),
        ({"MAV_TYPE": 19, "CA_ROTOR_COUNT": 2}, (0.5, 0.5, np.nan, np.nan), 2),
        ({"MAV_TYPE": 2}, (0.5, 0.5, 0.5, 0.5), 4),
        ({}, (0.5, 0.5, 0.5, np.nan), 4),
    ],
)
def test_the_topic_of_motors_is_preferred(
    tmp_path: Path, parameters: Mapping[str, int], first: tuple[float, ...], count: int
) -> None:
    log = read(tmp_path, outputs(), motors(*first), **parameters)
    assert fields(log) == first_outputs(count, "actuator_motors.control")
    assert log.columns["motor_1"].values == pytest.approx([0.5, 0.5 + 1 / 64, 0.5 + 2 / 64])
    known = parameters == {"MAV_TYPE": 2}
    assert any(note.startswith("vehicle: ") for note in log.notes) is not known
    assert [note for note in log.notes if note.startswith("motor_")][:1] == (
        [f"{', '.join(MOTORS[count:])}: left out: {describe(tmp_path / 'a.ulg')['facts']['vehicle']}"]
        if count < 4
        else []
    )


@pytest.mark.parametrize(
    ("instances", "chosen", "notes"),
    [
        ([(0, 0), (1, 1000)], "actuator_outputs#1", ["actuator_outputs#1 is read"]),
        ([(0, 900), (0, 0), (1, 1000)], "actuator_outputs#2", ["actuator_outputs#2 is read"]),
        ([(1, 1000), (1, 1500)], "actuator_outputs", []),
        ([(0, 0), (0, 1500)], "actuator_outputs#1", ["actuator_outputs#1 is read", "actuator_outputs#1 never moves"]),
        ([(0, 900), (0, 1500)], "actuator_outputs", ["actuator_outputs never moves"]),
        ([(0, 0), (0, 0)], "actuator_outputs", ["actuator_outputs never moves"]),
    ],
)
def test_motors_come_from_the_first_instance_that_moves(
    tmp_path: Path, instances: list[tuple[float, float]], chosen: str, notes: list[str]
) -> None:
    topics = [
        outputs(f"actuator_outputs#{n}" if n else "actuator_outputs", step, (start,) * 4)
        for n, (step, start) in reversed(list(enumerate(instances)))
    ]
    log = read(tmp_path, *topics, MAV_TYPE=2)
    assert fields(log) == first_outputs(4, f"{chosen}.output")
    assert len(log.notes) == len(notes)
    assert all(note.startswith(f"motors: {text}") for note, text in zip(log.notes, notes, strict=True))


def test_the_vehicle_is_described(tmp_path: Path) -> None:
    read(tmp_path, outputs(), MAV_TYPE=1, SYS_AUTOSTART=2100)
    assert describe(tmp_path / "a.ulg")["facts"]["vehicle"] == "plane, an unknown number of rotors (MAV_TYPE 1)"


def test_a_mapping_that_the_note_suggests_works(tmp_path: Path) -> None:
    log = read(tmp_path, outputs(), MAV_TYPE=1)
    assert log.notes[0].endswith(f"flights describe {tmp_path / 'a.ulg'} --write-mapping a.yaml")
    draft_mapping(tmp_path / "a.ulg", tmp_path / "mapping.yaml")
    text = (tmp_path / "mapping.yaml").read_text()
    assert "motor_1" not in read_column_map(tmp_path / "mapping.yaml").columns
    line = next(line for line in text.splitlines() if "output[2]" in line)
    (tmp_path / "mapping.yaml").write_text(text.replace(line, line.replace("# ", "", 1)))
    mapped = read_log(tmp_path / "a.ulg", read_column_map(tmp_path / "mapping.yaml"))
    assert mapped.columns["motor_1"].values == pytest.approx([0.3, 0.301, 0.302])
    assert mapped.notes == ()


def test_parameters_without_a_sense_are_ignored(tmp_path: Path) -> None:
    log = read(tmp_path, outputs(), MAV_TYPE=float("nan"), CA_ROTOR_COUNT=float("inf"), SYS_AUTOSTART=-5)
    assert log.notes[0].startswith("vehicle: unknown type, an unknown number of rotors; ")


def test_a_parameter_that_is_text_is_ignored(tmp_path: Path) -> None:
    typed = b"char[2] MAV_TYPE"
    before = ulog_writer.message("P", bytes([len(typed)]) + typed + b"ab")
    (tmp_path / "a.ulg").write_bytes(ulog_writer.ulog(ulog_writer.position(3), outputs(), before=before))
    assert read_log(tmp_path / "a.ulg").notes[0].startswith("vehicle: unknown type, ")


def test_a_draft_keeps_what_is_not_known_of_the_vehicle(tmp_path: Path) -> None:
    read(tmp_path, outputs())
    draft_mapping(tmp_path / "a.ulg", tmp_path / "mapping.yaml")
    (line,) = [line for line in (tmp_path / "mapping.yaml").read_text().splitlines() if "unknown type" in line]
    assert line.startswith("  motor_1: ")
