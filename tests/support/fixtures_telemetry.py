"""Small flights for tests of learning from logs: random numbers, or simulated once for all tests of a process."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from uavlab.core.types import Scale, tree_map
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.flights import FEATURES, FlightDataset, Telemetry, Windows, concatenate, make_scale
from uavlab.telemetry.logs.columns import INPUTS, QUATERNION, TRUTH

SMALL = Telemetry(flights=4, least=300, most=360, window=40, horizon=10, stride=7)
CENTER = {
    **{"voltage": 15.0, "current": 20.0, "az": -9.8, **{f"motor_{n}": 0.6 for n in (1, 2, 3, 4)}},
    **{"payload": 1.0, "drag": 1.0, "motor_lag": 1.0, "battery_sag": 1.0},
}


def random_flight(rows: int, seed: int) -> dict[str, Tensor]:
    """Draw every column of a flight independently, each with plausible numbers."""
    dice = torch.Generator().manual_seed(seed)
    columns = {name: torch.randn(rows, generator=dice) for name in (*INPUTS, *TRUTH)}
    columns |= {name: center + 0.1 * columns[name] for name, center in CENTER.items()}
    attitude = normalize(torch.stack([columns[name] for name in QUATERNION]), dim=0)
    return columns | dict(zip(QUATERNION, attitude, strict=True))


def random_dataset(*rows: int) -> FlightDataset:
    """Put random flights of so many rows each end to end."""
    return concatenate([random_flight(count, seed) for seed, count in enumerate(rows)])


def input_scale(flights: FlightDataset) -> Scale:
    """Measure the scale of a dataset's inputs."""
    return make_scale(*flights.statistics(["inputs"]), FEATURES)


@cache
def simulated_flights() -> Mapping[int, Mapping[str, Tensor]]:
    """Simulate the flights of ``SMALL``; tests must not change them."""
    (chunk,) = fleet.simulate(SMALL)
    return chunk


def save_log(path: Path, flight: Mapping[str, Tensor]) -> None:
    """Write a log of 100 rows a second."""
    values = {name: column.numpy() for name, column in flight.items()}
    np.savez(path, allow_pickle=False, time=np.arange(len(values["x"])) / 100, **values)


def write_logs(folder: Path, count: int = 4, rows: int = 120) -> dict[str, dict[str, Tensor]]:
    """Write random flights into an existing folder, and return them by file name."""
    flights = {f"{chr(97 + number)}.npz": random_flight(rows + number, number) for number in range(count)}
    for name, flight in flights.items():
        save_log(folder / name, flight)
    return flights


def stack_runs(*windows: Windows) -> Windows:
    """Stack the windows of several runs along a leading axis."""
    return tree_map(lambda *leaf: torch.stack(leaf), *windows)
