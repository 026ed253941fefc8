"""Units in which logs may be written, and their conversion to those of ``columns.py``."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote, suggest
from uavlab.telemetry.logs.columns import Column

GRAVITY = 9.80665  # m/s^2, the standard one
DISARMED = 800, 1000  # us: pulses between these keep a motor still; PX4 sends 900


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
"""Accepted units by the column's unit; ``us`` of a motor is the length of its pulse, 1000 to 2000."""


def check_unit(unit: str, column: Column, where: str) -> None:
    """Refuse a unit that a column cannot be written in.

    Raises:
        ConfigError: It is unknown, or measures another quantity.
    """
    known = UNITS[column.unit]
    if unit not in known:
        others = [own for own, units in UNITS.items() if unit in units]
        problem = f"one of {' and '.join(others)}, not of {column.unit}" if others else f"unknown{suggest(unit, known)}"
        names = f"Known units of {column.name!r}: {', '.join(known)}"
        raise ConfigError(f"{where}: unit {quote(unit)} of {column.name!r} is {problem}. {names}.")


def convert(values: Float64[np.ndarray, " T"], unit: str, column: Column) -> Float64[np.ndarray, " T"]:
    """Convert values to the column's own unit.

    A motor's pulse that keeps it still (none, or 800 to 1000 us) is no throttle; one from 0 to 800 us is no pulse and
    ends up out of range.
    """
    known = UNITS[column.unit][unit]
    result = values * known.factor + known.offset
    if column.unit == "share" and unit == "us":
        still = (values == 0) | ((values >= DISARMED[0]) & (values <= DISARMED[1]))
        result = np.where(still, 0.0, result)
    return result


def guess_unit(low: float, high: float, column: Column) -> str:
    """Return the first unit in which values from ``low`` to ``high`` would be plausible; empty if there is none."""
    for name, unit in UNITS[column.unit].items():
        ends = low * unit.factor + unit.offset, high * unit.factor + unit.offset
        if all(column.low <= end <= column.high for end in ends):
            return name
    return ""
