"""The table of columns is complete; units are converted by the numbers of a textbook, and wrong ones are refused."""

import math

import numpy as np
import pytest

from uavlab.core.errors import ConfigError
from uavlab.telemetry.logs.columns import (
    COLUMNS,
    FORCE,
    INPUTS,
    QUATERNION,
    TIME,
    TRUTH,
    UNITS,
    check_unit,
    convert,
    fitting_units,
)


def test_every_column_is_described_and_has_a_range() -> None:
    assert list(COLUMNS) == [TIME.name, *INPUTS, *TRUTH]
    assert len(COLUMNS) == 1 + 28 + 9
    for name, column in COLUMNS.items():
        assert column.name == name
        assert column.meaning
        assert column.low < column.high


def test_commands_are_held_and_nothing_else() -> None:
    held = [name for name, column in COLUMNS.items() if column.held]
    assert held == [
        *("ref_x", "ref_y", "ref_z", "ref_vx", "ref_vy", "ref_vz"),
        *("motor_1", "motor_2", "motor_3", "motor_4"),
    ]


def test_groups_of_columns_are_columns() -> None:
    assert {*FORCE, *QUATERNION} <= set(INPUTS)


@pytest.mark.parametrize(
    ("column", "unit", "value", "expected"),
    [
        ("p", "deg/s", 180.0, math.pi),
        ("p", "rpm", 60.0, 2 * math.pi),
        ("az", "g", -1.0, -9.80665),
        ("az", "mg", -1000.0, -9.80665),
        ("x", "ft", 10.0, 3.048),
        ("x", "cm", 250.0, 2.5),
        ("vx", "km/h", 36.0, 10.0),
        ("vx", "kn", 3600 / 1852, 1.0),
        ("vx", "mph", 1.0, 0.44704),
        ("voltage", "mV", 11_100.0, 11.1),
        ("current", "cA", 1234.0, 12.34),
        ("payload", "g", 250.0, 0.25),
        ("motor_1", "%", 55.0, 0.55),
        ("motor_1", "us", 1250.0, 0.25),
        ("time", "us", 2.5e6, 2.5),
    ],
)
def test_a_value_is_converted(column: str, unit: str, value: float, expected: float) -> None:
    check_unit(unit, COLUMNS[column], "here")
    assert convert(np.array([value]), unit, COLUMNS[column]) == pytest.approx([expected], rel=1e-12)


def test_a_pulse_that_keeps_a_motor_still_is_no_throttle() -> None:
    pulses = np.array([0.0, 800, 900, 1000, 1001, 2000, 2100, 0.5, 799, np.nan])
    shares = convert(pulses, "us", COLUMNS["motor_2"])
    assert shares[:7] == pytest.approx([0, 0, 0, 0, 0.001, 1, 1.1])
    assert (shares[7:9] < COLUMNS["motor_2"].low).all()  # no pulses: out of range
    assert np.isnan(shares[9])


def test_every_column_can_be_written_in_its_own_unit() -> None:
    for column in COLUMNS.values():
        own = UNITS[column.unit][column.unit]
        assert (own.factor, own.offset) == (1, 0)


@pytest.mark.parametrize(
    ("unit", "column", "message"),
    [
        (
            "degs",
            "p",
            "m.yaml: unit 'degs' of 'p' is unknown (did you mean 'deg/s'?). Known units of 'p': rad/s, deg/s, "
            "mrad/s, rpm.",
        ),
        (
            "deg/s",
            "x",
            "m.yaml: unit 'deg/s' of 'x' is one of rad/s, not of m. Known units of 'x': m, mm, cm, km, ft.",
        ),
        (
            "g",
            "voltage",
            "m.yaml: unit 'g' of 'voltage' is one of m/s^2 and kg, not of V. Known units of 'voltage': V, mV, cV.",
        ),
    ],
)
def test_a_wrong_unit_is_refused(unit: str, column: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_unit(unit, COLUMNS[column], "m.yaml")
    assert str(refusal.value) == message


def test_the_unit_that_was_meant_is_guessed() -> None:
    for name, ends, units in (
        ("p", (-300, 410), ["deg/s", "mrad/s"]),
        ("voltage", (10_800, 12_600), ["mV"]),
        ("motor_1", (900, 1950), ["us"]),
        ("motor_1", (0, 98), ["%"]),
        ("vx", (0, 1e12), []),
    ):
        assert fitting_units(np.array([np.nan, *ends, 0.5 * sum(ends)]), COLUMNS[name]) == units
