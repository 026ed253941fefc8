"""Which fields of a file are the columns of a flight, and in what units: a small YAML file, or what PX4 logs.

```yaml
rate: 100                                 # Hz, of the resampled flight; may be left out
columns:
  x: vehicle_local_position.x
  p: {from: gyro_x, unit: deg/s}
  current: {from: amps, unit: mA, unknown: -1}     # a value that stands for none
  motor_1: {from: "actuator_outputs.output[0]", unit: us, blank: 0}  # what stands for no value
```
"""

from collections.abc import Mapping as Named
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest, yaml_value
from uavlab.storage.files import read_regular
from uavlab.telemetry.logs.columns import COLUMNS, FORCE, QUATERNION
from uavlab.telemetry.logs.units import check_unit

LARGEST_FILE = 50_000  # bytes of a mapping
FASTEST = 2000.0  # Hz
KEYS = ("from", "unit", "unknown", "blank")


@dataclass(frozen=True)
class Entry:
    """Where a column is found.

    Attributes:
        field: Its full name in the file, ``topic.field`` or ``topic#1.field`` for ULog.
        unit: It is written in; None for the column's own, which nobody confirmed.
        unknown: A number that stands for no value.
        blank: What no value (NaN) stands for.
    """

    field: str
    unit: str | None = None
    unknown: float | None = None
    blank: float | None = None


@dataclass(frozen=True)
class Mapping:
    """Where all columns are found.

    Attributes:
        source: The file it was read from; empty for those that are built in.
        columns: By column, entries of which the first that a file has is taken.
        rate: Rows per second that the flight is to have; None where nothing is said.
    """

    source: str
    columns: Named[str, tuple[Entry, ...]]
    rate: float | None = None

    @property
    def fields(self) -> list[str]:
        """List every field that it names."""
        return [entry.field for entries in self.columns.values() for entry in entries]


def read_mapping(path: Path) -> Mapping:
    """Read a mapping from a YAML 1.2 file.

    Raises:
        ConfigError: It is not readable, or names a column, unit or key that does not exist.
    """
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # no path holds a null character
        raise ConfigError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}.") from error
    value = yaml_value(text, str(path), lines=True)
    if not isinstance(value, dict) or not isinstance(value.get("columns"), dict) or not value["columns"]:
        raise ConfigError(f"{path}: expected `columns:` and under it lines `column: field of the file`.")
    for key in value:
        if key not in ("rate", "columns"):
            raise ConfigError(f"{path}: unknown key {quote(key)}{suggest(str(key), ('rate', 'columns'))}.")
    rate = value.get("rate")
    if rate is not None:
        check_rate(rate, f"{path}: rate")
    columns = {}
    for name, entry in value["columns"].items():
        if name not in COLUMNS:
            close = suggest(str(name), COLUMNS)
            raise ConfigError(f"{path}: unknown column {quote(name)}{close}. Known columns: {', '.join(COLUMNS)}.")
        columns[name] = (_entry(f"{path}: columns.{name}", name, entry),)
    return Mapping(str(path), columns, rate)


def check_rate(rate: Any, where: str) -> None:
    """Refuse what is no rate.

    Raises:
        ConfigError: It is no number of rows per second above 0 and up to 2000.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= FASTEST:
        raise ConfigError(f"{where}: expected a number of Hz above 0 and up to {FASTEST:g}, got {quote(rate)}.")


def _entry(where: str, name: str, value: Any) -> Entry:
    given = value if isinstance(value, dict) else {"from": value}
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key {quote(key)}{suggest(str(key), KEYS)}. Known: {', '.join(KEYS)}.")
    if not isinstance(given.get("from"), str) or not given["from"]:
        raise ConfigError(f"{where}: expected the name of a field, got {quote(given.get('from'))}.")
    unit = given.get("unit")
    if unit is not None:
        check_unit(str(unit), COLUMNS[name], where)
    for key in ("unknown", "blank"):
        number = given.get(key)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise ConfigError(f"{where}: {key}: expected a number, got {quote(number)}.")
    return Entry(given["from"], None if unit is None else str(unit), given.get("unknown"), given.get("blank"))


PLAIN = Mapping("", {name: (Entry(name),) for name in COLUMNS})
"""Files whose columns bear our names."""

_XYZ = ("x", "y", "z")
_SETPOINT, _POSITION = "vehicle_local_position_setpoint", "vehicle_local_position"
PX4 = Mapping(
    "",
    {
        **{
            f"ref_{it}": (Entry(f"{_SETPOINT}.{it}", "m"), Entry(f"trajectory_setpoint.position[{n}]", "m"))
            for n, it in enumerate(_XYZ)
        },
        **{
            f"ref_v{it}": (Entry(f"{_SETPOINT}.v{it}", "m/s"), Entry(f"trajectory_setpoint.velocity[{n}]", "m/s"))
            for n, it in enumerate(_XYZ)
        },
        **{it: (Entry(f"{_POSITION}.{it}", "m"),) for it in _XYZ},
        **{f"v{it}": (Entry(f"{_POSITION}.v{it}", "m/s"),) for it in _XYZ},
        **{
            it: (
                Entry(f"sensor_combined.accelerometer_m_s2[{n}]", "m/s^2"),
                Entry(f"vehicle_acceleration.xyz[{n}]", "m/s^2"),
            )
            for n, it in enumerate(FORCE)
        },
        **{
            it: (Entry(f"sensor_combined.gyro_rad[{n}]", "rad/s"), Entry(f"vehicle_angular_velocity.xyz[{n}]", "rad/s"))
            for n, it in enumerate("pqr")
        },
        **{it: (Entry(f"vehicle_attitude.q[{n}]", "1"),) for n, it in enumerate(QUATERNION)},
        **{
            f"motor_{n + 1}": (
                Entry(f"actuator_motors.control[{n}]", "share", blank=0.0),  # NaN disarms a motor
                Entry(f"actuator_outputs.output[{n}]", "us"),
            )
            for n in range(4)
        },
        "voltage": (Entry("battery_status.voltage_v", "V", unknown=0.0),),
        "current": (Entry("battery_status.current_a", "A", unknown=-1.0),),
    },
)
"""What PX4 logs by default: the raw sensors, which all firmware logs at full rate, before their filtered values."""
