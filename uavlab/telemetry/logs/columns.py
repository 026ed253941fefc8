"""The columns of a flight: names, units, meanings and plausible ranges.

World frame: x north, y east, z down (NED). Body frame: x forward, y right, z down (FRD). Both are PX4's.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column of a flight."""

    name: str
    unit: str  # ``share`` is a share of full throttle, ``1`` a pure number
    meaning: str
    low: float  # smallest plausible value; beyond it a unit or a sensor is wrong
    high: float
    held: bool = False  # keeps its value until the next one, as commands do; others are interpolated


TIME = Column("time", "s", "time of a row", -1e10, 1e10)
QUATERNION = ("qw", "qx", "qy", "qz")
FORCE = ("ax", "ay", "az")

_INPUTS = (
    Column("ref_x", "m", "commanded position, north", -1e5, 1e5, held=True),
    Column("ref_y", "m", "commanded position, east", -1e5, 1e5, held=True),
    Column("ref_z", "m", "commanded position, down", -2e4, 2e4, held=True),
    Column("ref_vx", "m/s", "commanded velocity, north", -150, 150, held=True),
    Column("ref_vy", "m/s", "commanded velocity, east", -150, 150, held=True),
    Column("ref_vz", "m/s", "commanded velocity, down", -150, 150, held=True),
    Column("x", "m", "estimated position, north", -1e5, 1e5),
    Column("y", "m", "estimated position, east", -1e5, 1e5),
    Column("z", "m", "estimated position, down", -2e4, 2e4),
    Column("vx", "m/s", "estimated velocity, north", -150, 150),
    Column("vy", "m/s", "estimated velocity, east", -150, 150),
    Column("vz", "m/s", "estimated velocity, down", -150, 150),
    Column("ax", "m/s^2", "specific force (accelerometer), forward", -200, 200),
    Column("ay", "m/s^2", "specific force (accelerometer), right", -200, 200),
    Column("az", "m/s^2", "specific force (accelerometer), down", -200, 200),
    Column("p", "rad/s", "turn rate (gyroscope) about the forward axis", -40, 40),
    Column("q", "rad/s", "turn rate (gyroscope) about the right axis", -40, 40),
    Column("r", "rad/s", "turn rate (gyroscope) about the down axis", -40, 40),
    Column("qw", "1", "attitude, body to world: real part of a unit quaternion", -1.05, 1.05),
    Column("qx", "1", "attitude: first imaginary part", -1.05, 1.05),
    Column("qy", "1", "attitude: second imaginary part", -1.05, 1.05),
    Column("qz", "1", "attitude: third imaginary part", -1.05, 1.05),
    *(Column(f"motor_{n}", "share", f"command to motor {n}", -0.05, 1.05, held=True) for n in (1, 2, 3, 4)),
    Column("voltage", "V", "voltage of the battery", 0, 100),
    Column("current", "A", "current out of the battery", -100, 500),
)
_TRUTH = (
    Column("wind_north", "m/s", "wind, blowing towards north", -60, 60),
    Column("wind_east", "m/s", "wind, blowing towards east", -60, 60),
    Column("payload", "kg", "mass that is carried", 0, 100),
    Column("drag", "kg/s", "drag force per relative speed of the air", 0, 20),
    Column("motor_lag", "s", "time constant of the motors", 0, 2),
    Column("battery_sag", "V", "voltage lost under load", 0, 50),
    Column("true_x", "m", "true position, north", -1e5, 1e5),
    Column("true_y", "m", "true position, east", -1e5, 1e5),
    Column("true_z", "m", "true position, down", -2e4, 2e4),
)

INPUTS = {column.name: column for column in _INPUTS}
"""Columns that a vehicle logs and models read."""
TRUTH = {column.name: column for column in _TRUTH}
"""Columns that only simulated flights have."""
COLUMNS = {TIME.name: TIME, **INPUTS, **TRUTH}
"""Every column by its name."""
