"""Column maps: which fields of a file are the columns of a flight, and their units; read from YAML, or built in.

```yaml
columns:
  x: vehicle_local_position.x
  p: {from: gyro_x, unit: deg/s}
  current: {from: amps, unit: mA, unknown: -1}     # the number that marks a missing value
  motor_1: {from: "actuator_outputs.output[0]", unit: us, blank: 0}  # the number that replaces missing values
```

A key ``rate`` (Hz) beside ``columns`` is checked but not used: logs are resampled to the rate of simulated flights.

Outputs of a plane may move ailerons: they are motors where a topic lists motors alone, ``actuator_motors``, or where a
vehicle has rotors alone. Each driver logs its outputs as an instance of their topic.

Source: MAV_TYPE of MAVLink's common messages; CA_AIRFRAME in PX4's reference of parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest, yaml_value
from uavlab.storage.files import read_regular
from uavlab.telemetry.logs.columns import COLUMNS, FORCE, INPUTS, QUATERNION, check_unit
from uavlab.telemetry.logs.raw import Group, RawLog, draft_command

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
    """Return the entries of adjacent columns; ``{n}`` is a column's index, ``{name}`` its name after ref_."""
    return {
        name: tuple(Entry(field.format(n=n, name=name.removeprefix("ref_")), unit) for field in fields)
        for n, name in enumerate(columns)
    }


PLAIN = ColumnMap("", {name: (Entry(name),) for name in COLUMNS})
"""Fields named like columns."""

_SETPOINT, _POSITION = "vehicle_local_position_setpoint.{name}", "vehicle_local_position.{name}"
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
"""Topics that PX4 logs by default, but motors, see ``usual_map``; raw sensors, which all firmware logs at full rate,
come before filtered values."""

MOTORS = [name for name in INPUTS if name.startswith("motor_")]
TOPICS = {"actuator_motors": Entry("control", "share", blank=0.0), "actuator_outputs": Entry("output", "us")}
"""Arrays with motors, the preferred first; NaN disarms a motor."""
ROTORS = {"tricopter": 3, "quadrotor": 4, "hexarotor": 6, "octorotor": 8, "decarotor": 10, "dodecarotor": 12}
ROTARY = {*ROTORS, "multirotor"}
"""Vehicles whose first outputs are rotors; others may have servos there."""
TYPES = {
    **{1: "plane", 2: "quadrotor", 3: "coaxial helicopter", 4: "helicopter", 7: "airship", 10: "rover", 11: "boat"},
    **{12: "submarine", 13: "hexarotor", 14: "octorotor", 15: "tricopter", 29: "dodecarotor", 35: "decarotor"},
    **dict.fromkeys(range(19, 26), "VTOL"),
}
AIRFRAMES = {
    **{0: "multirotor", 1: "plane", 2: "VTOL", 3: "VTOL", 4: "VTOL", 5: "rover", 6: "rover", 8: "tilting multirotor"},
    **dict.fromkeys((10, 11, 12), "helicopter"),
}
SOURCES = {
    "vehicle_status.is_vtol": {1: "VTOL"},
    "vehicle_status.system_type": TYPES,
    "vehicle_status.vehicle_type": {1: "multirotor", 2: "plane", 3: "rover", 4: "airship"},
    "vehicle_status.is_rotary_wing": {0: "plane", 1: "multirotor"},
    **{"MAV_TYPE": TYPES, "CA_AIRFRAME": AIRFRAMES},
}
"""Vehicles by the values of fields and parameters."""


class Vehicle(NamedTuple):
    """A log's statement on its vehicle."""

    kind: str  # empty where it is not known
    rotors: int | None
    sources: tuple[str, ...]  # fields with their values

    def __str__(self) -> str:
        """Describe kind, rotors and where they were read."""
        rotors = "an unknown number of" if self.rotors is None else self.rotors
        sources = f" ({', '.join(self.sources)})" if self.sources else ""
        return f"{self.kind or 'unknown type'}, {rotors} rotor{'s' * (self.rotors != 1)}{sources}"


def read_vehicle(raw: RawLog) -> Vehicle:
    """Read type and rotors; among contradictions, the first vehicle with servos is chosen."""
    known: dict[str, str] = {}
    for source, kinds in SOURCES.items():
        place = raw.find(source)
        values: Any = [raw.parameters.get(source, -1)] if place is None else np.unique(place[0].fields[place[1]])
        known |= {f"{source} {value:g}": kinds[value] for value in values if value in kinds}
    kind = next((kind for kind in known.values() if kind not in ROTARY), next(iter(known.values()), ""))
    sources = list(known)
    if (rotors := int(raw.parameters.get("CA_ROTOR_COUNT", 0))) > 0:
        sources.append(f"CA_ROTOR_COUNT {rotors}")
    return Vehicle(kind, rotors or ROTORS.get(kind), tuple(sources))


def usual_map(raw: RawLog) -> tuple[ColumnMap, list[str]]:
    """Return the map for a log without one of its own, and notes on what was taken for its motors."""
    topic = next((topic for topic in TOPICS if _instances(raw, topic)), "")
    if "" in raw.groups or not topic:
        return (PLAIN if "" in raw.groups else PX4), []
    vehicle, instances = read_vehicle(raw), _instances(raw, topic)
    if topic == "actuator_outputs" and vehicle.kind and vehicle.kind not in ROTARY:
        problem = f"{vehicle}; {topic} may be servos, and nothing says which are not"
        return PX4, [
            f"{', '.join(MOTORS)}: left out: {problem}; name the rotors in a mapping: {draft_command(raw.source)}"
        ]
    count = _count(vehicle, instances[0])
    used, absent = MOTORS[:count], MOTORS[count:]
    fields = [f"{TOPICS[topic].field}[{n}]" for n in range(len(used))]
    moving = [group for group in instances if any(np.ptp(values) > 0 for values in _outputs(group, fields))]
    group = (moving or [group for group in instances if any(map(np.any, _outputs(group, fields)))] or instances)[0]
    notes = [f"{', '.join(absent)}: left out: {vehicle}"] if absent else []
    if vehicle.kind not in ROTARY or vehicle.rotors != len(used):
        rest = (
            f"; motors {len(used) + 1} to {count} are left out, a flight has {len(used)}" if count > len(used) else ""
        )
        notes.append(f"vehicle: {vehicle}; the first {len(used)} of {group.name} are read as motors{rest}")
    if group is not instances[0]:
        notes.append(f"motors: {group.name} is read, because the motors of instances before it do not move")
    if not moving:
        notes.append(f"motors: {group.name} never moves")
    entry = TOPICS[topic]
    motors = {name: (replace(entry, field=f"{group.name}.{field}"),) for name, field in zip(used, fields, strict=True)}
    return replace(PX4, columns={**PX4.columns, **motors}), notes


def _count(vehicle: Vehicle, motors: Group) -> int:
    """Return the number of motors; without a word on it, those of a quadrotor, or those that a plane uses."""
    if vehicle.rotors or vehicle.kind in ROTARY or not vehicle.kind:
        return vehicle.rotors or len(MOTORS)
    controls = [values for name, values in motors.fields.items() if name.startswith("control[")]
    return sum(bool(np.isfinite(values).any()) for values in controls) or 1


def _instances(raw: RawLog, topic: str) -> list[Group]:
    """List the instances of a topic of motors in the order of their numbers."""
    first = f"{TOPICS[topic].field}[0]"
    groups = [group for group in raw.groups.values() if group.name.partition("#")[0] == topic]
    groups = [group for group in groups if len(group.fields.get(first, ()))]
    return sorted(groups, key=lambda group: int(group.name.partition("#")[2] or 0))


def _outputs(group: Group, fields: list[str]) -> list[Shaped[np.ndarray, " T"]]:
    return [np.nan_to_num(group.fields[field]) for field in fields if field in group.fields]
