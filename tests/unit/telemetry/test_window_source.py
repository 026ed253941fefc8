"""Windows of the training flights by every loader: against each other, by hand, and after a restored state."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import SMALL, random_flight
from uavlab.core.errors import FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, leaves
from uavlab.runtime import oom_retry
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles
from uavlab.telemetry import flights as fleet
from uavlab.telemetry import window_source
from uavlab.telemetry.flights import FEATURES, HIDDEN, TRACKING_ERROR, FlightDataset, Telemetry
from uavlab.telemetry.window_source import (
    DataSplit,
    Loader,
    WindowCollector,
    WindowsConfig,
    load_split,
)

CPU = torch.device("cpu")
LOADERS = ("device", "stream", "per_item")
WORKERS = [("device", 0), ("stream", 0), ("per_item", 0), ("per_item", 1)]
GROUPS = fleet.split(SMALL.flights, (SMALL.training, SMALL.validation), SMALL.split)
FLIGHTS = {number: random_flight(300 + 20 * number, number) for number in range(SMALL.flights)}

Flights = Mapping[int, Mapping[str, Tensor]]


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Mapping[str, Tensor]]]:
    """Random flights in place of simulated ones, two at a time."""
    flights: dict[int, Mapping[str, Tensor]] = dict(FLIGHTS)

    def pairs(task: Telemetry) -> Iterator[Flights]:
        yield {number: flights[number] for number in (0, 1)}
        yield {number: flights[number] for number in (2, 3)}

    monkeypatch.setattr(fleet, "load", pairs)
    window_source._load_split.cache_clear()
    yield flights
    window_source._load_split.cache_clear()


def new_source(
    loader: Loader,
    workers: int = 0,
    seeds: tuple[int, ...] = (0, 1),
    options: Mapping[str, Any] | None = None,
    **runtime: object,
) -> WindowCollector:
    rt = Runtime(requested=Toggles(loader=loader), **runtime)  # type: ignore[arg-type]
    return WindowCollector(SMALL, WindowsConfig(batch=6, workers=workers, **(options or {})), Streams(seeds), rt)


def draw(windows: WindowCollector, count: int) -> list[Batch]:
    return [windows.next() for _ in range(count)]


def assert_same(batches: list[Batch], expected: list[Batch], close: float = 0.0) -> None:
    for a, b in zip(batches, expected, strict=True):
        assert torch.equal(a.index, b.index)
        for (name, x), (_, y) in zip(leaves(a.data), leaves(b.data), strict=True):
            torch.testing.assert_close(x, y, rtol=close, atol=close, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("loader", "workers"), WORKERS[1:])
def test_every_loader_returns_the_same(loader: Loader, workers: int) -> None:
    expected = draw(new_source("device"), 5)
    assert_same(draw(new_source(loader, workers), 5), expected, 1e-6 if loader == "per_item" else 0.0)
    assert not torch.equal(expected[0].index, expected[1].index)


@pytest.mark.parametrize(
    ("loader", "workers", "options"),
    [
        ("stream", 0, {"cached": True}),
        ("stream", 0, {"pinned": False}),
        ("per_item", 0, {"cached": True}),
        ("per_item", 0, {"persistent_workers": False}),
        ("per_item", 1, {"persistent_workers": False, "cached": True}),
        ("per_item", 1, {"prefetch_factor": 1}),
        ("per_item", 2, {"prefetch_factor": 5, "pinned": False}),
    ],
)
def test_every_option_returns_the_same_bits(loader: Loader, workers: int, options: Mapping[str, Any]) -> None:
    expected = draw(new_source(loader), 20)  # more than two passes
    assert_same(draw(new_source(loader, workers, options=options), 20), expected)


def test_cached_flights_that_changed_would_be_noticed() -> None:
    """The mutant: a cache whose rows are one row away."""
    windows = new_source("stream", options={"cached": True})
    assert isinstance(windows.flights, FlightDataset)
    assert windows.flights.inputs.device == CPU
    windows.flights.inputs.copy_(windows.flights.inputs.roll(1, 0))
    with pytest.raises(AssertionError):
        assert_same(draw(windows, 1), draw(new_source("stream"), 1))


@pytest.mark.parametrize(("options", "ahead"), [({"prefetch_factor": 1}, 1), ({"prefetch_factor": 5}, 5)])
def test_an_option_changes_how_many_batches_are_drawn_ahead_and_a_run_goes_on_with_another(
    options: Mapping[str, Any], ahead: int
) -> None:
    windows = new_source("per_item", 1, options=options)
    draw(windows, 2)
    state, streams = windows.state_dict(), windows.rng.state_dict()
    assert len(state["drawn"]) == ahead
    expected = draw(windows, 8)
    other = new_source("per_item", 1)
    other.rng.load_state_dict(streams)
    other.load_state_dict(state)
    assert_same(draw(other, 8), expected)


def test_processes_are_started_anew_after_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    whole = window_source.DataLoader

    def loader(*given: Any, **options: Any) -> Any:
        passes.append(options["num_workers"])
        return whole(*given, **options)

    monkeypatch.setattr(window_source, "DataLoader", loader)
    windows = new_source("per_item", options={"persistent_workers": False})
    length = len(windows.starts) // 12
    draw(windows, 2 * length)
    assert len(passes) == 2
    draw(windows, 1)
    assert len(passes) == 3
    passes.clear()
    draw(new_source("per_item"), 2 * length + 1)
    assert len(passes) == 1


def test_copies_from_pinned_memory_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[torch.device, bool]] = []
    pinned: list[Tensor] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda leaf: pinned.append(leaf) or leaf)

    def to(leaf: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        copied.append((device, non_blocking))
        return leaf

    monkeypatch.setattr(Tensor, "to", to)
    window_source._copy(torch.ones(1), torch.device("cuda"), pin=True)
    window_source._copy(torch.ones(1), torch.device("cuda"), pin=False)
    assert copied == [(torch.device("cuda"), True), (torch.device("cuda"), False)]
    assert len(pinned) == 1
    assert not new_source("stream").pin  # of a CPU


@pytest.mark.parametrize("loader", LOADERS)
def test_windows_by_hand(loader: Loader) -> None:
    """Window m of a flight begins with row 7 m; the 10 rows after its end are ahead."""
    flights = [FLIGHTS[number] for number in sorted(GROUPS[0])]
    counts = [(len(flight["x"]) - 40 - 10) // 7 + 1 for flight in flights]
    features = torch.cat([fleet.features(flight) for flight in flights]).double()
    center, spread = features.mean(0), features.std(0, correction=0)
    batch = new_source(loader).next()
    assert batch.index.shape == (2, 6)
    assert batch.weight is None
    met = set()
    for r in range(2):
        for n in range(6):
            number = int(batch.index[r, n])
            which = 0 if number < counts[0] else 1
            met.add(which)
            first = 7 * (number - which * counts[0])
            flight = flights[which]
            inputs = (fleet.features(flight)[first : first + 40] - center) / spread
            torch.testing.assert_close(batch.data.inputs[r, n].double(), inputs, rtol=1e-5, atol=1e-5)
            assert batch.data.truth[r, n].tolist() == [flight[name][first + 39] for name in HIDDEN]
            for h in range(10):
                row = first + 40 + h
                away = [flight[f"true_{axis}"][row] - flight[f"ref_{axis}"][row] for axis in "xyz"]
                assert batch.data.tracking_error[r, n, h].tolist() == away
    assert met == {0, 1}


def test_runs_draw_from_their_own_streams() -> None:
    together = draw(new_source("device"), 3)
    for r in range(2):
        for apart, both in zip(draw(new_source("device", seeds=(r,)), 3), together, strict=True):
            assert torch.equal(apart.index[0], both.index[r])
            assert torch.equal(apart.data.inputs[0], both.data.inputs[r])
    assert not torch.equal(together[0].index[0], together[0].index[1])


def test_every_window_is_as_likely_as_any_other() -> None:
    windows = new_source("device")
    each = torch.stack([windows.draw() for _ in range(1000)]).flatten()
    counts = torch.stack([(each == start).sum() for start in windows.starts]).double()
    assert counts.sum() == 12_000
    mean = 12_000 / len(counts)
    assert ((counts - mean).square() / mean).sum() < 1.5 * len(counts)  # chi-square; 5 standard deviations
    assert counts.min() > 0.6 * mean


@pytest.mark.parametrize(("loader", "workers"), WORKERS)
def test_continues_exactly(loader: Loader, workers: int) -> None:
    windows = new_source(loader, workers)
    draw(windows, 2)
    state = {key: value.clone() for key, value in windows.state_dict().items()}
    streams = windows.rng.state_dict()
    assert state["drawn"].shape == (2 * workers, 2, 6)  # each worker asks for two batches ahead
    expected = draw(windows, 4)
    other = new_source(loader, workers)
    draw(other, 1)
    for again in (other, windows):
        again.rng.load_state_dict(streams)
        again.load_state_dict(state)
        assert_same(draw(again, 4), expected)


def test_indices_drawn_ahead_are_needed_to_continue() -> None:
    windows = new_source("per_item", 1)
    draw(windows, 2)
    state, streams = windows.state_dict(), windows.rng.state_dict()
    expected = draw(windows, 2)
    windows.rng.load_state_dict(streams)
    windows.load_state_dict({**state, "drawn": state["drawn"][:0]})
    with pytest.raises(AssertionError):
        assert_same(draw(windows, 2), expected)


@pytest.mark.parametrize("loader", LOADERS)
def test_loading_is_timed_before_and_after_going_on(loader: Loader) -> None:
    monitor = Monitor("cpu")
    windows = new_source(loader, monitor=monitor)
    draw(windows, 2)
    windows.load_state_dict(windows.state_dict())
    draw(windows, 3)
    assert [(row["name"], row["calls"]) for row in monitor.read()] == [("load", 5), ("copy", 5)]


def test_other_flights_are_refused(given: dict[int, Mapping[str, Tensor]]) -> None:
    state = new_source("device").state_dict()
    new_source("stream").load_state_dict(new_source("stream").state_dict())
    number = GROUPS[0][0]
    given[number] = FLIGHTS[number] | {"voltage": FLIGHTS[number]["voltage"] + 0.01}
    window_source._load_split.cache_clear()
    with pytest.raises(FileError) as refusal:
        new_source("device").load_state_dict(state)
    assert str(refusal.value) == (
        "flights: others than those this run was trained on; bring those back, or train anew."
    )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("group", "seen"), [(0, True), (1, False), (2, False)])
def test_scales_see_training_flights_alone(
    given: dict[int, Mapping[str, Tensor]], loader: Loader, group: int, seen: bool
) -> None:
    before = load_split(SMALL, CPU, loader)
    for number in GROUPS[group]:
        given[number] = {name: 3 * values + 1 for name, values in FLIGHTS[number].items()}
    window_source._load_split.cache_clear()
    after = load_split(SMALL, CPU, loader)
    assert after is not before
    for a, b in ((before.inputs, after.inputs), (before.hidden, after.hidden)):
        assert torch.equal(a.center, b.center) != seen
        assert torch.equal(a.spread, b.spread) != seen


@pytest.mark.parametrize("loader", LOADERS)
def test_flights_are_split_and_scaled(loader: Loader) -> None:
    sets = load_split(SMALL, CPU, loader)
    assert [len(group) for group in GROUPS] == [2, 1, 1]
    for name, group in zip(("training", "validation", "test"), GROUPS, strict=True):
        expected = fleet.concatenate([FLIGHTS[number] for number in sorted(group)])
        flights = getattr(sets, name)
        assert torch.equal(flights.bounds, expected.bounds)
        assert torch.equal(flights.truth, expected.truth)
        assert torch.equal(flights.tracking_error, expected.tracking_error)
        if name == "training":
            check_scales(sets, expected)
        if name == "training" and loader != "per_item":
            normal = (expected.inputs - sets.inputs.center) / sets.inputs.spread
            torch.testing.assert_close(flights.inputs, normal, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(flights.inputs, expected.inputs)


def check_scales(sets: DataSplit, training: FlightDataset) -> None:
    hidden = torch.cat([training.truth, training.tracking_error], 1)
    assert hidden.shape[1] == len(HIDDEN) + len(TRACKING_ERROR)
    for scale, values in ((sets.inputs, training.inputs), (sets.hidden, hidden)):
        torch.testing.assert_close(scale.center.double(), values.double().mean(0), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(scale.spread.double(), values.double().std(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("loader", ["device", "stream"])
def test_less_is_used_of_the_training_flights_alone(loader: Loader) -> None:
    every, half = load_split(SMALL, CPU, loader), load_split(replace(SMALL, used=0.5), CPU, loader)
    count = len(FLIGHTS[GROUPS[0][0]]["x"])
    assert half.training.bounds.tolist() == [0, count]
    assert len(every.training.bounds) == 3
    for name in ("validation", "test"):
        assert torch.equal(getattr(half, name).inputs, getattr(every, name).inputs)


def test_flights_are_not_made_twice_for_other_windows() -> None:
    sets = load_split(SMALL, CPU)
    assert load_split(replace(SMALL, window=30, horizon=3, stride=2), CPU) is sets
    assert load_split(replace(SMALL, split=1), CPU) is not sets


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voltage": 0.0}, f"feature {FEATURES.index('voltage')} (voltage) has zero variance; nothing can be learned"),
        ({"drag": 0.0}, "feature 3 (drag) has zero variance; nothing can be learned"),
        ({"drag": torch.nan}, "feature 3 (drag) is not known of every row; nothing can be learned"),
    ],
)
def test_a_constant_feature_is_refused(
    given: dict[int, Mapping[str, Tensor]], loader: Loader, change: dict[str, float], message: str
) -> None:
    for number in GROUPS[0]:
        constant = {name: torch.full_like(FLIGHTS[number][name], value) for name, value in change.items()}
        given[number] = {**FLIGHTS[number], **constant}
    with pytest.raises(FileError) as refusal:
        load_split(SMALL, CPU, loader)
    assert str(refusal.value) == f"flights: {message} of it. Leave such logs out."


def free(patch: pytest.MonkeyPatch, available: int) -> None:
    patch.setattr(oom_retry.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the flights that were loaded so far."""
    load, numbers = fleet.load, []

    def watch(task: Telemetry) -> Iterator[Flights]:
        for chunk in load(task):
            numbers.extend(chunk)
            yield chunk

    monkeypatch.setattr(fleet, "load", watch)
    return numbers


ALL = 4 * (33 + 6 + 3) * (300 + 360) // 2 * 4  # bytes of inputs, truth and errors of four flights, as far as expected


@pytest.mark.parametrize("loader", ["device", "per_item"])
def test_flights_without_room_are_refused_before_one_is_simulated(
    loader: Loader, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, ALL - 1)
    with pytest.raises(ResourceError) as refusal:
        new_source(loader)
    assert str(refusal.value) == (
        "flights: 221,760 bytes, 221,759 are free on cpu; lower their number, or --set loader=stream."
    )
    assert numbers == []
    new_source("stream")
    numbers.clear()
    free(monkeypatch, ALL)
    new_source(loader)
    assert numbers == [0, 1, 2, 3]


def test_logs_without_room_are_refused_when_that_is_found(numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two have 620 rows of 168 bytes, all four 1320."""
    monkeypatch.setattr(fleet, "count", lambda task: 4)
    monkeypatch.setattr(fleet, "file_stamp", lambda task: ())
    for available, bytes_, read in ((104_159, "104,160", [0, 1]), (221_759, "221,760", [0, 1, 2, 3])):
        numbers.clear()
        free(monkeypatch, available)
        with pytest.raises(ResourceError, match=rf"^flights: {bytes_} bytes, {available:,} are free on cpu; lower "):
            load_split(replace(SMALL, logs="mine"), CPU)
        assert numbers == read
    free(monkeypatch, 221_760)
    assert load_split(replace(SMALL, logs="mine"), CPU).training.bounds[-1] == 620


@pytest.mark.parametrize(("loader", "less"), [("device", "their number, or --set loader=stream"), ("stream", "most")])
@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("CUDA out of memory. Tried\nto"), ValueError()])
def test_memory_refused_midway_is_reported(
    loader: Loader, less: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(flights: object) -> FlightDataset:
        raise error

    monkeypatch.setattr(fleet, "concatenate", refused)
    with pytest.raises((ResourceError, ValueError)) as refusal:
        new_source(loader)
    reason = {MemoryError: "no room", RuntimeError: "CUDA out of memory. Tried"}.get(type(error))
    expected = f"flights: memory was refused ({reason}); lower {less}." if reason else ""
    assert str(refusal.value) == expected


def test_no_other_state_exists() -> None:
    windows = new_source("device")
    windows.before_cycle()
    before = windows.state_dict()
    windows.feedback(windows.next(), None)  # type: ignore[arg-type]
    windows.after_cycle()
    assert sorted(before) == ["drawn", "flights"]
    for name, value in windows.state_dict().items():
        assert torch.equal(value, before[name])
    assert windows.segments([]) == windows.rows() == windows.tensors_to_check() == {}
