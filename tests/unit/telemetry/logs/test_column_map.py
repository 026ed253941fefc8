"""Column maps name the fields of columns; wrong ones are refused before a log is read."""

from pathlib import Path

import pytest

from uavlab.core.errors import ConfigError
from uavlab.telemetry.logs.columns import COLUMNS, INPUTS, MOTORS, PLAIN, TRUTH, Entry, check_unit, read_column_map
from uavlab.telemetry.logs.ulog import PX4


def test_a_mapping_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "columns:\n"
        "  y: vehicle_local_position.x\n"  # YAML 1.1 would read `true: ...`
        "  p: {from: gyro, unit: deg/s}\n"
        "  qw: {from: w, unit: 1}\n"
        '  motor_1: {from: "actuator_outputs#1.output[0]", unit: us, unknown: -1, blank: 0}\n'
    )
    mapping = read_column_map(path)
    assert mapping.source == str(path)
    assert mapping.columns == {
        "y": (Entry("vehicle_local_position.x"),),
        "p": (Entry("gyro", "deg/s"),),
        "qw": (Entry("w", "1"),),
        "motor_1": (Entry("actuator_outputs#1.output[0]", "us", -1, 0),),
    }
    assert mapping.fields == ["vehicle_local_position.x", "gyro", "w", "actuator_outputs#1.output[0]"]


LINES = "{}: expected `columns:` alone, and under it lines `column: field of the file`."
REFUSED = [
    ("", LINES),
    ("columns:", LINES),
    ("columns: {}", LINES),
    ("- x", LINES),
    ("x: y", LINES),
    ("columns: [x]", LINES),
    ("colums: {x: y}\ncolumns: {x: y}", LINES),
    (
        "columns: {motor1: y}",
        "{}: unknown column 'motor1' (did you mean 'motor_1'?). Known columns: " + ", ".join(COLUMNS) + ".",
    ),
    ("columns: {x: }", "{}: columns.x: expected the name of a field, got None."),
    ("columns: {x: 7}", "{}: columns.x: expected the name of a field, got 7."),
    ("columns: {x: {unit: m}}", "{}: columns.x: expected the name of a field, got None."),
    (
        "columns: {x: {form: a}}",
        "{}: columns.x: unknown key 'form' (did you mean 'from'?). Known keys: from, unit, unknown, blank.",
    ),
    (
        "columns: {x: {from: a, unit: inch}}",
        "{}: columns.x: unit 'inch' of 'x' is unknown. Known units of 'x': m, mm, cm, km, ft.",
    ),
    ("columns: {x: {from: a, blank: zero}}", "{}: columns.x: blank: expected a number, got 'zero'."),
    ("columns: {x: {from: a, unknown: true}}", "{}: columns.x: unknown: expected a number, got True."),
    ("columns: {x: !!python/name:os.system a}", None),
    ("\ncolumns: [", None),
    (
        b"columns: {x: \xff}",
        "{}: not readable: 'utf-8' codec can't decode byte 0xff in position 13: invalid start byte.",
    ),
    (b"#" * 50_001, "{}: not readable: larger than 50,000 bytes."),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_wrong_mapping_is_refused(tmp_path: Path, content: str | bytes, message: str | None) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as refusal:
        read_column_map(path)
    if message is None:  # the words of `yaml_value`
        assert str(refusal.value).startswith(f"{path}:{content.count(chr(10)) + 1}: ")
    else:
        assert str(refusal.value) == message.format(path)


def test_a_mapping_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"m\.yaml: not readable: No such file or directory\.$"):
        read_column_map(tmp_path / "m.yaml")


def test_the_built_in_mappings_are_sound() -> None:
    assert set(PLAIN.columns) == set(COLUMNS)
    assert set(PX4.columns) == set(INPUTS) - {*MOTORS}
    assert not set(PX4.columns) & set(TRUTH)
    for name, entries in PX4.columns.items():
        for entry in entries:
            assert entry.unit is not None
            check_unit(entry.unit, COLUMNS[name], "PX4")
    assert len(set(PX4.fields)) == len(PX4.fields)
