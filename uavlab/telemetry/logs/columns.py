"""The columns of a flight: names, units and plausible ranges; and column maps, which name their fields in a file.

World frame: x north, y east, z down (NED). Body frame: x forward, y right, z down (FRD). Both are PX4's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, require_known, suggest, yaml_value
from uavlab.storage.files import read_regular

GRAVITY = 9.80665  # m/s^2, the standard one
LARGEST_FILE = 50_000  # bytes of a column map
KEYS = ("from", "unit", "unknown", "blank")
DISARMED = 800, 1000  # us: pulses in this range keep a motor still; PX4 sends 900


@dataclass(frozen=True)
class Column:
    """One column of a flight."""

    name: str
    unit: str  # ``share`` is a share of full throttle, ``1`` a pure number
    meaning: str
    low: float  # smallest plausible value
    high: float  # largest plausible value
    held: bool = False  # whether values hold until the next one, as of commands; others are interpolated


TIME = Column("time", "s", "time of a row", -1e10, 1e10)
QUATERNION = ("qw", "qx", "qy", "qz")
FORCE = ("ax", "ay", "az")
MOTORS = ("motor_1", "motor_2", "motor_3", "motor_4")


def _alike(
    names: Sequence[str], unit: str, meaning: str, low: float, high: float, held: bool = False
) -> Iterator[Column]:
    return (Column(name, unit, meaning, low, high, held) for name in names)


_INPUTS = (
    *_alike(("ref_x", "ref_y"), "m", "commanded position: north, east", -1e5, 1e5, held=True),
    Column("ref_z", "m", "commanded position: down", -2e4, 2e4, held=True),
    *_alike(("ref_vx", "ref_vy", "ref_vz"), "m/s", "commanded velocity: north, east, down", -150, 150, held=True),
    *_alike(("x", "y"), "m", "estimated position: north, east", -1e5, 1e5),
    Column("z", "m", "estimated position: down", -2e4, 2e4),
    *_alike(("vx", "vy", "vz"), "m/s", "estimated velocity: north, east, down", -150, 150),
    *_alike(FORCE, "m/s^2", "specific force (accelerometer): forward, right, down", -200, 200),
    *_alike(("p", "q", "r"), "rad/s", "turn rate (gyroscope) about the axis forward, right, down", -40, 40),
    *_alike(QUATERNION, "1", "attitude, body to world: a unit quaternion, its real part first", -1.05, 1.05),
    *_alike(MOTORS, "share", "commands to motors", -0.05, 1.05, held=True),
    Column("voltage", "V", "voltage of the battery", 0, 100),
    Column("current", "A", "current out of the battery", -100, 500),
)
_TRUTH = (
    *_alike(("wind_north", "wind_east"), "m/s", "wind, blowing towards north, east", -60, 60),
    Column("payload", "kg", "mass that is carried", 0, 100),
    Column("drag", "kg/s", "drag force per relative speed of the air", 0, 20),
    Column("motor_lag", "s", "time constant of the motors", 0, 2),
    Column("battery_sag", "V", "voltage lost under load", 0, 50),
    *_alike(("true_x", "true_y"), "m", "true position: north, east", -1e5, 1e5),
    Column("true_z", "m", "true position: down", -2e4, 2e4),
)

INPUTS = {column.name: column for column in _INPUTS}
"""Columns that a vehicle logs and models read."""
TRUTH = {column.name: column for column in _TRUTH}
"""Columns that only simulated flights have."""
COLUMNS = {TIME.name: TIME, **INPUTS, **TRUTH}
"""Every column by its name."""


class Unit(NamedTuple):
    """``value * factor + offset`` is the value in the column's own unit."""

    factor: float
    offset: float = 0.0


UNITS: dict[str, dict[str, Unit]] = {
    "s": {"s": Unit(1), "ms": Unit(1e-3), "us": Unit(1e-6), "ns": Unit(1e-9), "min": Unit(60)},
    "m": {"m": Unit(1), "mm": Unit(1e-3), "cm": Unit(1e-2), "km": Unit(1e3), "ft": Unit(0.3048)},
    "m/s": {
        **{"m/s": Unit(1), "mm/s": Unit(1e-3), "cm/s": Unit(1e-2), "km/h": Unit(1 / 3.6), "ft/s": Unit(0.3048)},
        **{"mph": Unit(0.44704), "kn": Unit(1852 / 3600)},
    },
    "m/s^2": {"m/s^2": Unit(1), "g": Unit(GRAVITY), "mg": Unit(GRAVITY / 1e3), "ft/s^2": Unit(0.3048)},
    "rad/s": {"rad/s": Unit(1), "deg/s": Unit(np.pi / 180), "mrad/s": Unit(1e-3), "rpm": Unit(np.pi / 30)},
    "share": {"share": Unit(1), "%": Unit(1e-2), "us": Unit(1e-3, -1.0)},
    "V": {"V": Unit(1), "mV": Unit(1e-3), "cV": Unit(1e-2)},
    "A": {"A": Unit(1), "mA": Unit(1e-3), "cA": Unit(1e-2)},
    "kg": {"kg": Unit(1), "g": Unit(1e-3), "lb": Unit(0.45359237)},
    "kg/s": {"kg/s": Unit(1)},
    "1": {"1": Unit(1)},
}
"""Accepted units by the column's unit; ``us`` of a motor is the length of its pulse, from 1000 to 2000."""


def check_unit(unit: str, column: Column, where: str) -> None:
    """Raise a ConfigError for a unit that is unknown or not of the column's quantity."""
    known = UNITS[column.unit]
    if unit not in known:
        others = [quantity for quantity, units in UNITS.items() if unit in units]
        problem = f"one of {' and '.join(others)}, not of {column.unit}" if others else f"unknown{suggest(unit, known)}"
        names = f"Known units of {column.name!r}: {', '.join(known)}"
        raise ConfigError(f"{where}: unit {quote(unit)} of {column.name!r} is {problem}. {names}.")


def convert(values: Float64[np.ndarray, " T"], unit: str, column: Column) -> Float64[np.ndarray, " T"]:
    """Convert values to the column's own unit.

    Motor pulses of 0 or of 800 to 1000 us, which keep a motor still, become 0. Other pulses below 800 us become values
    below the column's range.
    """
    known = UNITS[column.unit][unit]
    result = values * known.factor + known.offset
    if column.unit == "share" and unit == "us":
        still = (values == 0) | ((values >= DISARMED[0]) & (values <= DISARMED[1]))
        result = np.where(still, 0.0, result)
    return result


def fitting_units(numbers: Float64[np.ndarray, " T"], column: Column) -> list[str]:
    """Return the units in which all finite numbers would be plausible; all units if no number is finite."""
    finite = numbers[np.isfinite(numbers)]
    ends = finite[[finite.argmin(), finite.argmax()]] if len(finite) else np.empty(0)
    converted = {unit: convert(ends, unit, column) for unit in UNITS[column.unit]}
    return [unit for unit, values in converted.items() if ((column.low <= values) & (values <= column.high)).all()]


@dataclass(frozen=True)
class Entry:
    """The field of a column."""

    field: str  # full name, ``topic.field`` or ``topic#1.field`` for ULog
    unit: str | None = None  # of the field; None for the column's own
    unknown: float | None = None  # number that marks a missing value
    blank: float | None = None  # number that replaces missing values (NaN)


@dataclass(frozen=True)
class ColumnMap:
    """The fields of all columns."""

    source: str  # file of the map; empty for the built-in maps
    columns: Mapping[str, tuple[Entry, ...]]  # by column; the first entry that a file has is used

    @property
    def fields(self) -> list[str]:
        """Full names of all fields."""
        return [entry.field for entries in self.columns.values() for entry in entries]


def read_column_map(path: Path) -> ColumnMap:
    """Read a column map from a YAML 1.2 file.

    ```yaml
    columns:
      x: vehicle_local_position.x
      p: {from: gyro_x, unit: deg/s}
      current: {from: amps, unit: mA, unknown: -1}     # the number that marks a missing value
      motor_1: {from: "actuator_outputs.output[0]", unit: us, blank: 0}  # the number that replaces missing values
    ```
    """
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null character in the path
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}.") from error
    value = yaml_value(text, str(path), lines=True)
    columns = value.get("columns") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(columns, dict) or not columns:
        raise ConfigError(f"{path}: expected `columns:` alone, and under it lines `column: field of the file`.")
    for name in columns:
        require_known("column", name, COLUMNS, f"{path}: ")
    return ColumnMap(str(path), {name: (_entry(f"{path}: columns.{name}", name, columns[name]),) for name in columns})


def _entry(where: str, name: str, value: Any) -> Entry:
    options = value if isinstance(value, dict) else {"from": value}
    for key in options:
        require_known("key", key, KEYS, f"{where}: ")
    field, unit = options.get("from"), options.get("unit")
    if not isinstance(field, str) or not field:
        raise ConfigError(f"{where}: expected the name of a field, got {quote(field)}.")
    if unit is not None:
        check_unit(str(unit), COLUMNS[name], where)
    for key in ("unknown", "blank"):
        if key in options and type(options[key]) not in (int, float):
            raise ConfigError(f"{where}: {key}: expected a number, got {quote(options[key])}.")
    return Entry(field, None if unit is None else str(unit), options.get("unknown"), options.get("blank"))


PLAIN = ColumnMap("", {name: (Entry(name),) for name in COLUMNS})
"""Fields named like columns."""
