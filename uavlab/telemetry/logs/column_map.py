"""Column maps: which fields of a file are the columns of a flight, and their units; read from YAML, or built in.

```yaml
columns:
  x: vehicle_local_position.x
  p: {from: gyro_x, unit: deg/s}
  current: {from: amps, unit: mA, unknown: -1}     # the number that marks a missing value
  motor_1: {from: "actuator_outputs.output[0]", unit: us, blank: 0}  # the number that replaces missing values
```

A key ``rate`` (Hz) beside ``columns`` is checked but not used: logs are resampled to the rate of simulated flights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest, yaml_value
from uavlab.storage.files import read_regular
from uavlab.telemetry.logs.columns import COLUMNS, FORCE, QUATERNION, check_unit

LARGEST_FILE = 50_000  # bytes of a column map
FASTEST = 2000.0  # Hz
KEYS = ("from", "unit", "unknown", "blank")


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
    """Read a column map from a YAML 1.2 file."""
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null character in the path
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}.") from error
    value = yaml_value(text, str(path), lines=True)
    if not isinstance(value, dict) or not isinstance(value.get("columns"), dict) or not value["columns"]:
        raise ConfigError(f"{path}: expected `columns:` and under it lines `column: field of the file`.")
    for key in value:
        if key not in ("rate", "columns"):
            raise ConfigError(f"{path}: unknown key {quote(key)}{suggest(str(key), ('rate', 'columns'))}.")
    rate = value.get("rate")
    if rate is not None and not (_is_number(rate) and 0 < rate <= FASTEST):
        raise ConfigError(f"{path}: rate: expected a number of Hz above 0 and up to {FASTEST:g}, got {quote(rate)}.")
    for name in value["columns"]:
        if name not in COLUMNS:
            close = suggest(str(name), COLUMNS)
            raise ConfigError(f"{path}: unknown column {quote(name)}{close}. Known columns: {', '.join(COLUMNS)}.")
    entries = {name: (_entry(f"{path}: columns.{name}", name, entry),) for name, entry in value["columns"].items()}
    return ColumnMap(str(path), entries)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _entry(where: str, name: str, value: Any) -> Entry:
    options = value if isinstance(value, dict) else {"from": value}
    for key in options:
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key {quote(key)}{suggest(str(key), KEYS)}. Known: {', '.join(KEYS)}.")
    field, unit, unknown, blank = map(options.get, KEYS)
    if not isinstance(field, str) or not field:
        raise ConfigError(f"{where}: expected the name of a field, got {quote(field)}.")
    if unit is not None:
        check_unit(str(unit), COLUMNS[name], where)
    for key, number in (("unknown", unknown), ("blank", blank)):
        if number is not None and not _is_number(number):
            raise ConfigError(f"{where}: {key}: expected a number, got {quote(number)}.")
    return Entry(field, None if unit is None else str(unit), unknown, blank)


def _entries(columns: Sequence[str], unit: str, *fields: str) -> dict[str, tuple[Entry, ...]]:
    """Return the entries of adjacent columns; ``{n}`` in a field is a column's index, ``{own}`` its name after ref_."""
    return {
        name: tuple(Entry(field.format(n=n, own=name.removeprefix("ref_")), unit) for field in fields)
        for n, name in enumerate(columns)
    }


PLAIN = ColumnMap("", {name: (Entry(name),) for name in COLUMNS})
"""Fields named like columns."""

_SETPOINT, _POSITION = "vehicle_local_position_setpoint.{own}", "vehicle_local_position.{own}"
PX4 = ColumnMap(
    "",
    {
        **_entries(("ref_x", "ref_y", "ref_z"), "m", _SETPOINT, "trajectory_setpoint.position[{n}]"),
        **_entries(("ref_vx", "ref_vy", "ref_vz"), "m/s", _SETPOINT, "trajectory_setpoint.velocity[{n}]"),
        **_entries(("x", "y", "z"), "m", _POSITION),
        **_entries(("vx", "vy", "vz"), "m/s", _POSITION),
        **_entries(FORCE, "m/s^2", "sensor_combined.accelerometer_m_s2[{n}]", "vehicle_acceleration.xyz[{n}]"),
        **_entries(("p", "q", "r"), "rad/s", "sensor_combined.gyro_rad[{n}]", "vehicle_angular_velocity.xyz[{n}]"),
        **_entries(QUATERNION, "1", "vehicle_attitude.q[{n}]"),
        "voltage": (Entry("battery_status.voltage_v", "V", unknown=0.0),),
        "current": (Entry("battery_status.current_a", "A", unknown=-1.0),),
    },
)
"""Topics that PX4 logs by default, but motors, see ``vehicle``; raw sensors, which all firmware logs at full rate, come
before filtered values."""
