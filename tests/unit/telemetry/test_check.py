"""The check of flights: sound ones pass, flights and functions broken in one place each are refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import sizes
from tests.support.fixtures_telemetry import SMALL, random_flight, save_log, write_logs
from uavlab.core.errors import ConfigError, FileError
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import window_source
from uavlab.telemetry.build import check_logs
from uavlab.telemetry.flights import FEATURES

LOADERS: tuple[window_source.Loader, ...] = ("device", "stream", "per_item")
ROWS = {number: 300 + 20 * number for number in range(4)}
SHARED = fleet.split(4, (SMALL.training, SMALL.validation), SMALL.split)
VOLTAGE = FEATURES.index("voltage")

Flights = dict[int, dict[str, Tensor]]


@pytest.fixture(autouse=True)
def flights(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flights]:
    """Four random flights in place of simulated ones."""
    random: Flights = {number: random_flight(rows, number) for number, rows in ROWS.items()}
    monkeypatch.setattr(fleet, "simulate", lambda task: iter([random]))
    forget = window_source._load_split.cache_clear
    forget()
    yield random
    forget()


@pytest.mark.parametrize("loader", LOADERS)
def test_flights_that_can_be_learned_from(loader: window_source.Loader) -> None:
    """A window of 40 rows and 10 ahead begins every 7 rows: 36 times in 300, 39 in 320, 42 in 340 and 45 in 360."""
    report = check_logs(SMALL, loader)
    assert SHARED == ([0, 1], [3], [2])
    assert report.flights == (2, 1, 1)
    assert report.rows == (300 + 320, 360, 340)
    assert report.windows == (36 + 39, 45, 42)
    assert str(report).splitlines()[1:] == [
        "  flights   2 for training, 1 for validation, 1 for test",
        "  rows      620 for training, 360 for validation, 340 for test",
        "  windows   75 for training, 45 for validation, 42 for test",
        "  checked   no flight is there twice, and all inputs vary",
    ]
    assert str(report).startswith("Telemetry(logs='', ")


def test_flights_that_are_not_used_are_not_counted() -> None:
    report = check_logs(replace(SMALL, used=0.5))
    assert report.flights == (1, 1, 1)
    assert report.rows[0] == ROWS[SHARED[0][0]]


def test_a_flight_that_is_there_twice_is_refused(flights: Flights) -> None:
    flights[3] = flights[1]
    with pytest.raises(ConfigError) as refusal:
        check_logs(SMALL)
    assert str(refusal.value) == (
        "flight 3: got the rows of flight 1 once more; expected every flight once. Leave one of them out, or training "
        "rows may be in the test."
    )


def test_a_constant_input_is_refused(flights: Flights) -> None:
    for flight in flights.values():
        flight["voltage"][:] = 15
    with pytest.raises(FileError, match=rf"^flights: feature {VOLTAGE} \(voltage\) has zero variance"):
        check_logs(SMALL)


def settings(**given: object) -> list[str]:
    return [part for name, value in given.items() for part in ("--set", f"{name}={value}")]


@pytest.mark.parametrize(
    ("preset", "loader"),
    [("telemetry", "device"), ("telemetry_quick", "stream"), ("telemetry_quick", "per_item")],
)
def test_the_command(preset: str, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    small = sizes("telemetry") | {"loader": loader}
    ended = uavlab("check", preset, *settings(**small), "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.json["flights"] == [4, 1, 1]
    assert "windows   " in ended.out


def test_messages_name_the_log(tmp_path: Path) -> None:
    flights = write_logs(tmp_path, 3, 60)
    save_log(tmp_path / "c.npz", flights["a.npz"])
    ended = uavlab("check", "telemetry", *settings(logs=tmp_path, window=40, horizon=10, physics=0))
    assert ended.code == 2
    assert ended.err.startswith(f"ConfigError: {tmp_path}/c.npz: got the rows of {tmp_path}/a.npz once more; expected ")
