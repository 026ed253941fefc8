"""ULog, the logs of PX4: a reader by pyulog, the usual topics, and the motors of a vehicle.

Each topic is a group, ``topic#1`` its second instance. pyulog skips damage silently, so ``_scan`` first goes through
all messages. A message is its length (2 bytes), its kind (1 byte) and that many bytes. After a crash, a vehicle may
have appended data at offsets that the first message lists; the incomplete message before such an offset does not count
as damage.

Outputs of a plane may move ailerons: they are motors where a topic lists motors alone, ``actuator_motors``, or where a
vehicle has rotors alone. Each driver logs its outputs as an instance of their topic.

Sources: the ULog file format, as PX4's developer guide describes it; MAV_TYPE of MAVLink's common messages;
CA_AIRFRAME in PX4's reference of parameters.
"""

import contextlib
import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from uavlab.core.errors import FileError
from uavlab.core.extras import require
from uavlab.core.text import one_line
from uavlab.telemetry.logs.columns import FORCE, MOTORS, PLAIN, QUATERNION, ColumnMap, Entry
from uavlab.telemetry.logs.raw import Group, RawLog, draft_command, open_log

MAGIC = b"ULog\x01\x12\x35"
HEADER = 16  # bytes before the first message
LEAST_DATA = 10  # bytes of a message of data: its topic's number, and a time
FACTS = {"sys_name": "system", "ver_hw": "hardware", "ver_sw": "software"}
"""Keys of a log's information messages, and their names in ``RawLog.facts``."""


def is_ulog(path: Path) -> bool:
    """Return whether a file begins with the magic bytes of ULog; raise a FileError if it is not readable."""
    with open_log(path) as handle:
        return handle.read(len(MAGIC)) == MAGIC


def read_ulog(path: Path) -> RawLog:
    """Read a ULog file; a damaged one is refused by a FileError."""
    require("telemetry", str(path), "pyulog")
    from pyulog import ULog

    with open_log(path) as handle:
        raw = handle.read()
    if not raw.startswith(MAGIC):
        raise FileError(f"{path}: not a ULog file; one begins with the bytes {MAGIC.hex(' ')}.")
    rows, parts, problem = _scan(raw)
    if problem:
        raise FileError(f"{path}: {problem}; copy the log again.")
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            log = ULog(io.BytesIO(raw))
        for topic in log.data_list:
            if "timestamp" not in topic.data or topic.data["timestamp"].dtype != np.uint64:
                raise ValueError(f"topic {topic.name!r} has no timestamp of type uint64_t")
    except MemoryError:
        raise
    except Exception as error:  # a parser of unknown bytes may raise any
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise FileError(f"{path}: not readable as ULog: {reason}; copy the log again.") from error
    if (read := sum(len(topic.data["timestamp"]) for topic in log.data_list)) != rows or log.file_corruption:
        problem = f"{read:,} of {rows:,} messages of data could be read" if read != rows else "damaged inside"
        raise FileError(f"{path}: {problem}; copy the log again, or export what is left of it (ulog2csv).")
    groups, notes = _groups(path, log)
    notes += [f"pyulog: {line}" for line in dict.fromkeys(output.getvalue().splitlines())]
    numbers = {name: value for name, value in log.initial_parameters.items() if isinstance(value, int | float)}
    parameters = {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
    return RawLog(str(path), "ulog", groups, (), _facts(log, parts), tuple(notes), parameters)


def _groups(path: Path, log: Any) -> tuple[Mapping[str, Group], list[str]]:
    groups: dict[str, Group] = {}
    notes = []
    for topic in log.data_list:
        name = topic.name + (f"#{topic.multi_id}" if topic.multi_id else "")
        if name in groups:
            notes.append(f"{name} is there twice; its first part is used")
            continue
        time = (topic.data["timestamp"] - np.uint64(log.start_timestamp)).astype(np.int64) / 1e6
        fields = {field: values for field, values in topic.data.items() if field != "timestamp"}
        groups[name] = Group(name, f"{path} {name}", {**fields, "timestamp": topic.data["timestamp"]}, time)
    return groups, notes


def _facts(log: Any, parts: int) -> dict[str, Any]:
    info = log.msg_info_dict
    facts: dict[str, Any] = {name: one_line(str(info[key])) for key, name in FACTS.items() if key in info}
    with contextlib.suppress(TypeError):  # the file may hold a release of any type
        if release := log.get_version_info_str():
            facts["release"] = release
    gaps = [dropout.duration for dropout in log.dropouts]
    facts["dropouts"] = {"count": len(gaps), "total_ms": sum(gaps), "longest_ms": max(gaps, default=0)}
    facts["appended_parts"] = parts
    return facts


def _scan(raw: bytes) -> tuple[int, int, str]:
    """Return the messages of data in a file, its appended parts, and its first damage, empty if it is intact."""
    size, at, rows = len(raw), HEADER, 0
    ends = [*(offset for offset in _appended(raw) if offset < size), size]
    for end in ends:
        while at < end:
            length, kind = struct.unpack_from("<HB", raw, at) if at + 3 <= end else (size, 0)
            after = at + 3 + length
            if after > end:
                if end == size:
                    return rows, len(ends) - 1, "cut off in the middle of a message"
                break
            if length == 0 or not 65 <= kind <= 90 or (kind == ord("D") and length < LEAST_DATA):
                return rows, len(ends) - 1, f"damaged at byte {at:,}"
            rows += kind == ord("D")
            at = after
        at = end
    return rows, len(ends) - 1, ""


def _appended(raw: bytes) -> list[int]:
    """Read the offsets of appended data from the first message, if it holds them."""
    if len(raw) < HEADER + 43 or raw[HEADER + 2 : HEADER + 3] != b"B" or not raw[HEADER + 11] & 1:
        return []
    offsets = [offset for offset in struct.unpack_from("<3Q", raw, HEADER + 19) if offset]
    return offsets if offsets == sorted(set(offsets)) and offsets[0] > HEADER else []


def _entries(columns: Sequence[str], unit: str, *fields: str) -> dict[str, tuple[Entry, ...]]:
    """Return the entries of adjacent columns; ``{n}`` is a column's index, ``{name}`` its name after ref_."""
    return {
        name: tuple(Entry(field.format(n=n, name=name.removeprefix("ref_")), unit) for field in fields)
        for n, name in enumerate(columns)
    }


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
