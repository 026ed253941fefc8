"""The check of flights: sound ones pass, flights and functions broken in one place each are refused."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import sizes
from tests.support.fixtures_telemetry import SMALL, random_flight, save_log, write_logs
from uavlab.core.errors import ConfigError, FileError
from uavlab.telemetry import dataset, window_source
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.build import check_logs
from uavlab.telemetry.dataset import FEATURES, FlightDataset, Windows
from uavlab.telemetry.flights import Telemetry

LOADERS: tuple[window_source.Loader, ...] = ("device", "stream", "per_item")
ROWS = {number: 300 + 20 * number for number in range(4)}
SHARED = dataset.split(4, (SMALL.training, SMALL.validation), SMALL.split)
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
    assert report.compared == 4 * 10
    assert str(report).splitlines()[1:] == [
        "  flights   2 for training, 1 for validation, 1 for test",
        "  rows      620 for training, 360 for validation, 340 for test",
        "  windows   75 for training, 45 for validation, 42 for test",
        "  checked   every flight made twice, finite and in one group; every window within its flight, 40 equal its "
        "rows; 33 inputs vary, with mean 0 and deviation 1",
    ]
    assert str(report).startswith("Telemetry(logs='', ")


def test_flights_that_are_not_used_are_not_counted() -> None:
    report = check_logs(replace(SMALL, used=0.5))
    assert report.flights == (1, 1, 1)
    assert report.rows[0] == ROWS[SHARED[0][0]]


def nan_in_validation(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    flights[SHARED[1][0]]["voltage"][17] = torch.nan


def new_numbers_each_time(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    dice = torch.Generator().manual_seed(0)

    def again(task: Telemetry) -> Iterator[Flights]:
        yield {0: {**flights[0], "p": torch.randn(300, generator=dice)}, **{n: flights[n] for n in (1, 2, 3)}}

    patch.setattr(fleet, "simulate", again)


def the_same_flight_twice(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    flights[3] = flights[1]


def shared_flight(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dataset, "split", lambda count, shares, seed: ([0, 1], [2], [1, 3]))


def lost_flight(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dataset, "split", lambda count, shares, seed: ([0, 1], [2], []))


def judged_by_what_was_learned(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    load_split = window_source._load_split

    def leaking(*given: object) -> window_source.DataSplit:
        sets = load_split(*given)  # type: ignore[arg-type]
        first = sets.training.bounds[1]
        parts = (sets.training.inputs[:first], sets.training.truth[:first], sets.training.tracking_error[:first])
        return replace(sets, test=FlightDataset(*parts, sets.training.bounds[:2]))

    patch.setattr(window_source, "_load_split", leaking)


def shuffled_flights(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    for number in ROWS:
        flights[number] = {name: values[:300] for name, values in flights[number].items()}
    concatenate = dataset.concatenate

    def reverse(some: list[Mapping[str, Tensor]]) -> FlightDataset:
        return concatenate(some[::-1])

    patch.setattr(window_source.dataset, "concatenate", reverse)


def windows_across_flights(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    def all_starts(bounds: Tensor, rows: int, stride: int) -> tuple[Tensor, Tensor]:
        starts = torch.arange(0, int(bounds[-1]) - rows + 1, stride)
        return starts, torch.searchsorted(bounds, starts, right=True) - 1

    patch.setattr(dataset, "window_starts", all_starts)


def a_flight_without_windows(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    number = SHARED[2][0]
    flights[number] = {name: values[:49] for name, values in flights[number].items()}


def a_row_early(name: str) -> Callable[[Flights, pytest.MonkeyPatch], None]:
    def broken(flights: Flights, patch: pytest.MonkeyPatch) -> None:
        gather = FlightDataset.gather

        def off(self: FlightDataset, start: Tensor, window: int, horizon: int) -> Windows:
            right, early = (gather(self, begin, window, horizon) for begin in (start, (start - 1).clamp_min(0)))
            return replace(right, **{name: getattr(early, name)})

        patch.setattr(FlightDataset, "gather", off)

    return broken


def scales_of_all_flights(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    make_scale, every = dataset.make_scale, dataset.concatenate(list(flights.values()))

    def leaking(center: Tensor, spread: Tensor, names: tuple[str, ...]) -> dataset.Scale:
        return make_scale(*(every.statistics(["inputs"]) if names is FEATURES else (center, spread)), names)

    patch.setattr(dataset, "make_scale", leaking)


def normalise_twice(flights: Flights, patch: pytest.MonkeyPatch) -> None:
    once = FlightDataset.normalise

    def twice(self: FlightDataset, scale: dataset.Scale) -> None:
        once(self, scale)
        once(self, scale)

    patch.setattr(FlightDataset, "normalise", twice)


BROKEN: dict[Callable[[Flights, pytest.MonkeyPatch], None], str] = {
    nan_in_validation: f"flight {SHARED[1][0]}, column 'voltage', row 17: got nan; expected a finite number. Leave "
    "this flight out, or correct what makes it.",
    new_numbers_each_time: "flight 0, column 'p': got other numbers the second time; expected the same. Draw all that "
    "is random from the flight's own seed, and change no log meanwhile.",
    the_same_flight_twice: "flight 3: got the rows of flight 1 once more; expected every flight once. Leave one of "
    "them out, or training rows may be in the test.",
    shared_flight: "split: got flight 1 in training and test; expected each of 4 flights in one group. Correct "
    "uavlab.telemetry.dataset.split.",
    lost_flight: "split: got flight 3 in no group; expected each of 4 flights in one group. Correct "
    "uavlab.telemetry.dataset.split.",
    judged_by_what_was_learned: f"flight {SHARED[2][0]}: got … rows among the test flights; expected its "
    f"{ROWS[SHARED[2][0]]}. Correct uavlab.telemetry.window_source.load_split.",
    shuffled_flights: "flight …, inputs of its windows: got other numbers from the training flights; expected its own. "
    "Correct how flights are split, or how windows are gathered.",
    windows_across_flights: f"a window of flight {min(SHARED[0])}: got rows … to … of the training flights; expected "
    "rows of that flight alone. Correct uavlab.telemetry.dataset.window_starts.",
    a_flight_without_windows: f"flight {SHARED[2][0]}: got no window; expected at least 50 rows. Leave it out, or "
    "lower window or horizon.",
    **{
        a_row_early(name): f"flight 0, {name} of its windows: got other numbers from the … flights; expected its own. "
        "Correct how flights are split, or how windows are gathered."
        for name in ("inputs", "truth", "tracking_error")
    },
    scales_of_all_flights: "input …: got mean … and deviation …; expected 0 and 1 over the training "
    "flights. Measure scales on these flights alone, and apply them once.",
    normalise_twice: "input …: got mean … and deviation …; expected 0 and 1 over the training flights. Measure scales "
    "on these flights alone, and apply them once.",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_each_breach_is_refused(
    broken: Callable[[Flights, pytest.MonkeyPatch], None], flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(flights, monkeypatch)
    with pytest.raises(ConfigError) as refusal:
        check_logs(SMALL)
    assert re.fullmatch(re.escape(BROKEN[broken]).replace("…", ".+"), str(refusal.value)), refusal.value


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
