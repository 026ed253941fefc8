"""Small flights for tests of learning from logs: of made-up numbers, or flown once for all tests of a process."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.types import tree_map
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.dataset import Series, Windows, series
from uavlab.telemetry.logs.columns import INPUTS, QUATERNION, TRUTH
from uavlab.telemetry.task import Telemetry

SMALL = Telemetry(flights=4, least=300, most=360, window=40, horizon=10, stride=7)
CENTER = {
    **{"voltage": 15.0, "current": 20.0, "az": -9.8, **{f"motor_{n}": 0.6 for n in (1, 2, 3, 4)}},
    **{"payload": 1.0, "drag": 1.0, "motor_lag": 1.0, "battery_sag": 1.0},
}


def made_up(rows: int, seed: int) -> dict[str, Tensor]:
    """Give every column of a flight, of numbers that vary and might be true one by one."""
    dice = torch.Generator().manual_seed(seed)
    told = {name: torch.randn(rows, generator=dice) for name in (*INPUTS, *TRUTH)}
    told |= {name: center + 0.1 * told[name] for name, center in CENTER.items()}
    attitude = normalize(torch.stack([told[name] for name in QUATERNION]), dim=0)
    return told | dict(zip(QUATERNION, attitude, strict=True))


def made_up_series(*rows: int) -> Series:
    return series([made_up(count, seed) for seed, count in enumerate(rows)])


@cache
def flown() -> Mapping[int, Mapping[str, Tensor]]:
    """Fly the flights of ``SMALL``; nobody may change them."""
    (some,) = fleet.simulate(SMALL)
    return some


def save(path: Path, flight: Mapping[str, Tensor]) -> None:
    """Write a log."""
    values = {name: column.numpy() for name, column in flight.items()}
    np.savez(path, allow_pickle=False, time=np.arange(len(values["x"])) / 100, **values)


def written(folder: Path, count: int = 4, rows: int = 120) -> dict[str, dict[str, Tensor]]:
    """Write logs of made-up numbers into a folder that is there."""
    flights = {f"{chr(97 + number)}.npz": made_up(rows + number, number) for number in range(count)}
    for name, flight in flights.items():
        save(folder / name, flight)
    return flights


def stacked(*windows: Windows) -> Windows:
    """Lead with an axis of runs."""
    return tree_map(lambda *leaf: torch.stack(leaf), *windows)
