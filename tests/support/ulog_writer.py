"""A writer of tiny ULog files for tests of the reader, after the format in PX4's developer guide."""

import struct
from collections.abc import Mapping, Sequence

KINDS = {"uint64_t": "Q", "float": "f", "uint8_t": "B", "int32_t": "i"}
START = 5_000_000  # us: when the log begins

Topic = tuple[str, Mapping[str, str], Sequence[Sequence[float]]]
"""Name, types of the fields by name, rows; the first field is ``timestamp`` (us after the start)."""


def message(kind: str, body: bytes) -> bytes:
    return struct.pack("<HB", len(body), ord(kind)) + body


def header(start: int = START) -> bytes:
    return b"ULog\x01\x12\x35\x01" + struct.pack("<Q", start)


def flags(*appended: int) -> bytes:
    """Return the message with the offsets of data appended after a crash."""
    offsets = (*appended, 0, 0, 0)[:3]
    return message("B", bytes(8) + bytes([bool(appended)]) + bytes(7) + struct.pack("<3Q", *offsets))


def info(key: str, text: str) -> bytes:
    typed = f"char[{len(text)}] {key}".encode()
    return message("I", bytes([len(typed)]) + typed + text.encode())


def parameter(key: str, value: float) -> bytes:
    kind = "int32_t" if isinstance(value, int) else "float"
    typed = f"{kind} {key}".encode()
    return message("P", bytes([len(typed)]) + typed + struct.pack(f"<{KINDS[kind]}", value))


def form(name: str, fields: Mapping[str, str]) -> bytes:
    return message("F", f"{name}:{''.join(f'{kind} {field};' for field, kind in fields.items())}".encode())


def subscribe(number: int, name: str, instance: int = 0) -> bytes:
    return message("A", struct.pack("<BH", instance, number) + name.encode())


def row(number: int, fields: Mapping[str, str], values: Sequence[float]) -> bytes:
    """Return a row of data; its time is given after the start."""
    packed = b""
    for at, (kind, value) in enumerate(zip(fields.values(), _flat(fields, values), strict=True)):
        count = int(kind.partition("[")[2].rstrip("]") or 0)
        code = KINDS[kind.partition("[")[0]]
        packed += struct.pack(f"<{count or ''}{code}", *(value if count else (value + START if at == 0 else value,)))
    return message("D", struct.pack("<H", number) + packed)


def _flat(fields: Mapping[str, str], values: Sequence[float]) -> list:
    """Group the values of arrays."""
    left, groups = list(values), []
    for kind in fields.values():
        count = int(kind.partition("[")[2].rstrip("]") or 0)
        groups.append([left.pop(0) for _ in range(count)] if count else left.pop(0))
    return groups


def dropout(milliseconds: int) -> bytes:
    return message("O", struct.pack("<H", milliseconds))


def ulog(*topics: Topic, before: bytes = b"", after: bytes = b"") -> bytes:
    """Write a file: ``before`` stands among the definitions, ``after`` at the end; ``name#1`` is an instance."""
    names = [name.partition("#") for name, _, _ in topics]
    forms = {name: form(name, fields) for (name, _, _), (_, fields, _) in zip(names, topics, strict=True)}
    subscriptions = b"".join(
        subscribe(number, name, int(instance or 0)) for number, (name, _, instance) in enumerate(names)
    )
    data = [
        (values[0], row(number, fields, values)) for number, (_, fields, rows) in enumerate(topics) for values in rows
    ]
    ordered = [packed for _, packed in sorted(data, key=lambda it: it[0])]
    return header() + before + b"".join(forms.values()) + subscriptions + b"".join(ordered) + after


STAMP = {"timestamp": "uint64_t"}
POSITION = STAMP | dict.fromkeys(("x", "y", "z", "vx", "vy", "vz"), "float")
ATTITUDE = STAMP | {"q": "float[4]"}
SENSORS = STAMP | {"gyro_rad": "float[3]", "accelerometer_m_s2": "float[3]"}
OUTPUTS = STAMP | {"noutputs": "int32_t", "output": "float[4]"}
MOTORS = STAMP | {"control": "float[4]"}
BATTERY = STAMP | {"voltage_v": "float", "current_a": "float"}
WIND = STAMP | {"windspeed_north": "float", "windspeed_east": "float"}


def steps(count: int, every: int) -> range:
    """Return times in us."""
    return range(0, count * every, every)


def position(count: int = 11) -> Topic:
    """Return positions at 10 Hz on a flight north at 1 m/s from 0."""
    return "vehicle_local_position", POSITION, [[t, t / 1e6, 0, -2, 1, 0, 0] for t in steps(count, 100_000)]


def setpoint(count: int = 11) -> Topic:
    return "vehicle_local_position_setpoint", POSITION, [[t, 5, 0, -2, 1, 0, 0] for t in steps(count, 100_000)]


def attitude(count: int = 21) -> Topic:
    return "vehicle_attitude", ATTITUDE, [[t, 1, 0, 0, 0] for t in steps(count, 50_000)]


def sensors(count: int = 51) -> Topic:
    return "sensor_combined", SENSORS, [[t, 0.1, 0.2, 0.3, 0, 0, -9.75] for t in steps(count, 20_000)]


def outputs(count: int = 11) -> Topic:
    return "actuator_outputs", OUTPUTS, [[t, 4, 900, 1000, 1500, 2000 - t / 1e6] for t in steps(count, 100_000)]


def motors(count: int = 11) -> Topic:
    return "actuator_motors", MOTORS, [[t, 0.25, 0.5, 0.75 - t / 1e8, float("nan")] for t in steps(count, 100_000)]


def battery(count: int = 6) -> Topic:
    return "battery_status", BATTERY, [[t, 15.5, -1] for t in steps(count, 200_000)]


QUADROTOR = parameter("MAV_TYPE", 2)


def old() -> bytes:
    """Return a flight of one second as older firmware logs it."""
    before = QUADROTOR + info("ver_hw", "AUAV_X21")
    return ulog(position(), attitude(), sensors(), outputs(), before=before, after=dropout(26))


def new() -> bytes:
    """Return a flight of one second as newer firmware logs it."""
    topics = (position(), setpoint(), attitude(), sensors(), motors(), outputs(), battery())
    return ulog(*topics, before=QUADROTOR)
