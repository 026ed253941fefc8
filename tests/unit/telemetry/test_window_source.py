"""Windows of the training flights by every loader: against each other, by hand, and on from where they stopped."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.fixtures_telemetry import SMALL, made_up
from uavlab.core.errors import FileError, ResourceError
from uavlab.core.rng import Streams
from uavlab.core.types import Batch, leaves
from uavlab.runtime import oom_retry
from uavlab.runtime.runtime import Runtime
from uavlab.runtime.stage_timer import Monitor
from uavlab.runtime.toggles import Toggles
from uavlab.telemetry import dataset, window_source
from uavlab.telemetry import flights as fleet
from uavlab.telemetry.dataset import ASTRAY, FEATURES, HIDDEN, Series
from uavlab.telemetry.disk_dataset import Spool
from uavlab.telemetry.task import Telemetry
from uavlab.telemetry.window_source import Loader, Sets, Windowed, WindowsConfig, loaded

CPU = torch.device("cpu")
LOADERS = ("device", "stream", "per_item")
WORKERS = [("device", 0), ("stream", 0), ("per_item", 0), ("per_item", 1)]
GROUPS = dataset.split(SMALL.flights, (SMALL.training, SMALL.validation), SMALL.split)
FLIGHTS = {number: made_up(300 + 20 * number, number) for number in range(SMALL.flights)}

Flights = Mapping[int, Mapping[str, Tensor]]


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Mapping[str, Tensor]]]:
    """Flights of made-up numbers in place of simulated ones, two at a time."""
    flights: dict[int, Mapping[str, Tensor]] = dict(FLIGHTS)

    def pairs(task: Telemetry) -> Iterator[Flights]:
        yield {number: flights[number] for number in (0, 1)}
        yield {number: flights[number] for number in (2, 3)}

    monkeypatch.setattr(fleet, "load", pairs)
    window_source._loaded.cache_clear()
    yield flights
    window_source._loaded.cache_clear()


def made(loader: Loader, workers: int = 0, seeds: tuple[int, ...] = (0, 1), **runtime: object) -> Windowed:
    rt = Runtime(requested=Toggles(loader=loader), **runtime)  # type: ignore[arg-type]
    return Windowed(SMALL, WindowsConfig(batch=6, workers=workers), Streams(seeds), rt)


def drawn(windows: Windowed, count: int) -> list[Batch]:
    return [windows.next() for _ in range(count)]


def assert_same(found: list[Batch], expected: list[Batch], close: float = 0.0) -> None:
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.index, b.index)
        for (name, x), (_, y) in zip(leaves(a.data), leaves(b.data), strict=True):
            torch.testing.assert_close(x, y, rtol=close, atol=close, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("loader", "workers"), WORKERS[1:])
def test_every_loader_brings_the_same(loader: Loader, workers: int) -> None:
    expected = drawn(made("device"), 5)
    assert_same(drawn(made(loader, workers), 5), expected, 1e-6 if loader == "per_item" else 0.0)
    assert not torch.equal(expected[0].index, expected[1].index)


@pytest.mark.parametrize("loader", LOADERS)
def test_windows_by_hand(loader: Loader) -> None:
    """Number m of a flight begins with its row 7 m; it ends where 10 rows are left that it cannot see."""
    flights = [FLIGHTS[number] for number in sorted(GROUPS[0])]
    counts = [(len(flight["x"]) - 40 - 10) // 7 + 1 for flight in flights]
    features = torch.cat([dataset.features(flight) for flight in flights]).double()
    center, spread = features.mean(0), features.std(0, correction=0)
    batch = made(loader).next()
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
            inputs = (dataset.features(flight)[first : first + 40] - center) / spread
            torch.testing.assert_close(batch.data.inputs[r, n].double(), inputs, rtol=1e-5, atol=1e-5)
            assert batch.data.truth[r, n].tolist() == [flight[name][first + 39] for name in HIDDEN]
            for h in range(10):
                row = first + 40 + h
                away = [flight[f"true_{axis}"][row] - flight[f"ref_{axis}"][row] for axis in "xyz"]
                assert batch.data.astray[r, n, h].tolist() == away
    assert met == {0, 1}


def test_runs_draw_from_their_own_streams() -> None:
    together = drawn(made("device"), 3)
    for r in range(2):
        for apart, both in zip(drawn(made("device", seeds=(r,)), 3), together, strict=True):
            assert torch.equal(apart.index[0], both.index[r])
            assert torch.equal(apart.data.inputs[0], both.data.inputs[r])
    assert not torch.equal(together[0].index[0], together[0].index[1])


def test_every_window_is_as_likely_as_any_other() -> None:
    windows = made("device")
    each = torch.stack([windows.draw() for _ in range(1000)]).flatten()
    counts = torch.stack([(each == start).sum() for start in windows.starts]).double()
    assert counts.sum() == 12_000
    mean = 12_000 / len(counts)
    assert ((counts - mean).square() / mean).sum() < 1.5 * len(counts)  # chi-square; 5 standard deviations
    assert counts.min() > 0.6 * mean


@pytest.mark.parametrize(("loader", "workers"), WORKERS)
def test_goes_on_exactly(loader: Loader, workers: int) -> None:
    windows = made(loader, workers)
    drawn(windows, 2)
    state = {key: value.clone() for key, value in windows.state_dict().items()}
    streams = windows.rng.state_dict()
    assert state["drawn"].shape == (2 * workers, 2, 6)  # each worker asks for two batches ahead
    expected = drawn(windows, 4)
    other = made(loader, workers)
    drawn(other, 1)
    for again in (other, windows):
        again.rng.load_state_dict(streams)
        again.load_state_dict(state)
        assert_same(drawn(again, 4), expected)


def test_what_was_drawn_ahead_is_needed_to_go_on() -> None:
    windows = made("per_item", 1)
    drawn(windows, 2)
    state, streams = windows.state_dict(), windows.rng.state_dict()
    expected = drawn(windows, 2)
    windows.rng.load_state_dict(streams)
    windows.load_state_dict({**state, "drawn": state["drawn"][:0]})
    with pytest.raises(AssertionError):
        assert_same(drawn(windows, 2), expected)


@pytest.mark.parametrize("loader", LOADERS)
def test_loading_is_timed_before_and_after_going_on(loader: Loader) -> None:
    monitor = Monitor("cpu")
    windows = made(loader, monitor=monitor)
    drawn(windows, 2)
    windows.load_state_dict(windows.state_dict())
    drawn(windows, 3)
    assert [(row["name"], row["calls"]) for row in monitor.read()] == [("load", 5), ("copy", 5)]


def test_other_flights_are_refused(given: dict[int, Mapping[str, Tensor]]) -> None:
    state = made("device").state_dict()
    made("stream").load_state_dict(made("stream").state_dict())
    number = GROUPS[0][0]
    given[number] = FLIGHTS[number] | {"voltage": FLIGHTS[number]["voltage"] + 0.01}
    window_source._loaded.cache_clear()
    with pytest.raises(FileError) as refusal:
        made("device").load_state_dict(state)
    assert str(refusal.value) == (
        "flights: others than those this run was trained on; bring those back, or train anew."
    )


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("group", "seen"), [(0, True), (1, False), (2, False)])
def test_scales_see_training_flights_alone(
    given: dict[int, Mapping[str, Tensor]], loader: Loader, group: int, seen: bool
) -> None:
    before = loaded(SMALL, CPU, loader)
    for number in GROUPS[group]:
        given[number] = {name: 3 * values + 1 for name, values in FLIGHTS[number].items()}
    window_source._loaded.cache_clear()
    after = loaded(SMALL, CPU, loader)
    assert after is not before
    for a, b in ((before.inputs, after.inputs), (before.hidden, after.hidden)):
        assert torch.equal(a.center, b.center) != seen
        assert torch.equal(a.spread, b.spread) != seen


def rows(flights: Series | Spool, name: str) -> Tensor:
    return flights._read(name, 0, flights.rows) if isinstance(flights, Spool) else getattr(flights, name)


@pytest.mark.parametrize("loader", LOADERS)
def test_flights_are_shared_out_and_scaled(loader: Loader) -> None:
    sets = loaded(SMALL, CPU, loader)
    assert [len(group) for group in GROUPS] == [2, 1, 1]
    found = dict(zip(("training", "validation", "test"), GROUPS, strict=True))
    for name, group in found.items():
        expected = dataset.series([FLIGHTS[number] for number in sorted(group)])
        flights = getattr(sets, name)
        assert torch.equal(flights.bounds, expected.bounds)
        assert torch.equal(rows(flights, "truth"), expected.truth)
        assert torch.equal(rows(flights, "astray"), expected.astray)
        if name == "training":
            check_scales(sets, expected)
        if name == "training" and loader != "per_item":
            normal = (expected.inputs - sets.inputs.center) / sets.inputs.spread
            torch.testing.assert_close(rows(flights, "inputs"), normal, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(rows(flights, "inputs"), expected.inputs)


def check_scales(sets: Sets, training: Series) -> None:
    hidden = torch.cat([training.truth, training.astray], 1)
    assert hidden.shape[1] == len(HIDDEN) + len(ASTRAY)
    for scale, values in ((sets.inputs, training.inputs), (sets.hidden, hidden)):
        torch.testing.assert_close(scale.center.double(), values.double().mean(0), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(scale.spread.double(), values.double().std(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("loader", ["device", "stream"])
def test_less_is_used_of_the_training_flights_alone(loader: Loader) -> None:
    every, half = loaded(SMALL, CPU, loader), loaded(replace(SMALL, used=0.5), CPU, loader)
    count = len(FLIGHTS[GROUPS[0][0]]["x"])
    assert half.training.bounds.tolist() == [0, count]
    assert len(every.training.bounds) == 3
    for name in ("validation", "test"):
        assert torch.equal(rows(getattr(half, name), "inputs"), rows(getattr(every, name), "inputs"))


def test_flights_are_not_made_twice_for_other_windows() -> None:
    sets = loaded(SMALL, CPU)
    assert loaded(replace(SMALL, window=30, horizon=3, stride=2), CPU) is sets
    assert loaded(replace(SMALL, split=1), CPU) is not sets


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"voltage": 0.0}, f"feature {FEATURES.index('voltage')} (voltage) has zero variance; nothing can be learned"),
        ({"drag": 0.0}, "feature 3 (drag) has zero variance; nothing can be learned"),
        ({"drag": torch.nan}, "feature 3 (drag) is not known of every row; nothing can be learned"),
    ],
)
def test_what_never_varies_is_refused(
    given: dict[int, Mapping[str, Tensor]], loader: Loader, change: dict[str, float], told: str
) -> None:
    for number in GROUPS[0]:
        constant = {name: torch.full_like(FLIGHTS[number][name], value) for name, value in change.items()}
        given[number] = {**FLIGHTS[number], **constant}
    with pytest.raises(FileError) as refusal:
        loaded(SMALL, CPU, loader)
    assert str(refusal.value) == f"flights: {told} of it. Leave such logs out."


def free(patch: pytest.MonkeyPatch, available: int) -> None:
    patch.setattr(oom_retry.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the flights that were made so far."""
    flights, met = fleet.load, []

    def watched(task: Telemetry) -> Iterator[Flights]:
        for some in flights(task):
            met.extend(some)
            yield some

    monkeypatch.setattr(fleet, "load", watched)
    return met


ALL = 4 * (33 + 6 + 3) * (300 + 360) // 2 * 4  # bytes of inputs, truth and errors of four flights, as far as expected


@pytest.mark.parametrize("loader", ["device", "per_item"])
def test_flights_without_room_are_refused_before_one_is_made(
    loader: Loader, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, ALL - 1)
    with pytest.raises(ResourceError) as refusal:
        made(loader)
    assert str(refusal.value) == (
        "flights: 221,760 bytes, 221,759 are free on cpu; lower their number, or --set loader=stream."
    )
    assert asked == []
    made("stream")
    asked.clear()
    free(monkeypatch, ALL)
    made(loader)
    assert asked == [0, 1, 2, 3]


def test_logs_without_room_are_refused_when_that_is_found(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two have 620 rows of 168 bytes, all four 1320."""
    monkeypatch.setattr(fleet, "count", lambda task: 4)
    monkeypatch.setattr(fleet, "file_stamp", lambda task: ())
    for available, bytes_, read in ((104_159, "104,160", [0, 1]), (221_759, "221,760", [0, 1, 2, 3])):
        asked.clear()
        free(monkeypatch, available)
        with pytest.raises(ResourceError, match=rf"^flights: {bytes_} bytes, {available:,} are free on cpu; lower "):
            loaded(replace(SMALL, logs="mine"), CPU)
        assert asked == read
    free(monkeypatch, 221_760)
    assert loaded(replace(SMALL, logs="mine"), CPU).training.bounds[-1] == 620


@pytest.mark.parametrize(("loader", "less"), [("device", "their number, or --set loader=stream"), ("stream", "most")])
@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("CUDA out of memory. Tried\nto"), ValueError()])
def test_memory_that_is_refused_midway_is_told(
    loader: Loader, less: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(flights: object) -> Series:
        raise error

    monkeypatch.setattr(dataset, "series", refused)
    with pytest.raises((ResourceError, ValueError)) as refusal:
        made(loader)
    said = {MemoryError: "no room", RuntimeError: "CUDA out of memory. Tried"}.get(type(error))
    expected = f"flights: memory was refused ({said}); lower {less}." if said else ""
    assert str(refusal.value) == expected


def test_nothing_else_is_kept() -> None:
    windows = made("device")
    windows.before_cycle()
    before = windows.state_dict()
    windows.feedback(windows.next(), None)  # type: ignore[arg-type]
    windows.after_cycle()
    assert sorted(before) == ["drawn", "flights"]
    for name, value in windows.state_dict().items():
        assert torch.equal(value, before[name])
    assert windows.segments([]) == windows.rows() == windows.tensors_to_check() == {}
