"""Every remedy draws the same windows; paces come from what was timed, and each claim is judged by its number."""

from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes
from uavlab.experiment.config import configure
from uavlab_lab.claims import telemetry as measures
from uavlab_lab.claims.ledger import select
from uavlab_lab.claims.measures import Bench, Estimate, NotTestable
from uavlab_lab.claims.report import measure_claim
from uavlab_lab.measure.compare import CYCLES, IN_A_ROW, loading_calls


@pytest.fixture
def bench() -> Bench:
    return Bench(3, **{**sizes("telemetry"), "batch": 16})


@pytest.fixture
def times(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Answer for the paths from a table: seconds."""
    loader = {"per_item": 8.0, "once": 2.0, "cached": 1.0, "device": 0.1}
    answers = {f"{path} loader": [loader[path]] * 3 for path in measures.SOURCES}
    answers |= {f"{path} model": [0.5] * 3 for path in measures.SOURCES}
    answers |= {f"{path} both": [0.5 + loader[path]] * 3 for path in measures.SOURCES}
    monkeypatch.setattr(measures, "time_paths", lambda bench: (answers, {}))
    return answers


class TestRemedies:
    def test_draw_the_same_windows(self, bench: Bench) -> None:
        batches = []
        for path in measures.SOURCES:
            _, source, _ = loading_calls(measures.config(bench, path), measures.SOURCES[path])
            source.next()
            batches.append(source.next())
        for batch in batches[1:]:
            assert torch.equal(batch.index, batches[0].index)
            for name in ("inputs", "truth", "tracking_error"):
                torch.testing.assert_close(
                    getattr(batch.data, name), getattr(batches[0].data, name), rtol=1e-5, atol=1e-5
                )

    def test_cached_windows_are_copied(self, bench: Bench) -> None:
        _, source, _ = loading_calls(measures.config(bench, "cached"), measures.CachedSource)
        windows = source.windows  # type: ignore[attr-defined]
        assert len(windows.cache) == len(source.starts)
        first = int(source.starts[0])
        windows[first][0].zero_()
        assert windows[first][0].any()

    def test_nothing_is_scaled_again(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        _, source, _ = loading_calls(measures.config(bench, "once"))
        _, plain, _ = loading_calls(measures.config(bench, "per_item"))

        def refused(*given: object) -> None:
            raise RuntimeError("scaled")

        monkeypatch.setattr("uavlab.telemetry.window_source.ItemDataset._normal", refused)
        source.next()
        with pytest.raises(RuntimeError, match="scaled"):
            plain.next()


class TestTimed:
    def test_paces_by_hand(self, bench: Bench, times: dict[str, list[float]]) -> None:
        result = measures.window_rate(bench, "once")
        assert result.value == round(16 / 2.5)
        assert result.note.startswith(f"the loader alone {IN_A_ROW * 16 / 2:,.0f}, the model alone 32, on ")

    def test_loading_by_hand(self, bench: Bench, times: dict[str, list[float]]) -> None:
        result = measures.loading_gain(bench)
        assert (result.value, result.low, result.high, result.rounds) == (4.0, 4.0, 4.0, 3)
        assert result.note == "kept window by window 8x, gathered by index 80x"

    @pytest.mark.parametrize(("late", "value"), [(1.0, 1.0), (4.0, 0.25)])
    def test_a_fall_is_seen_where_there_is_one(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, late: float, value: float
    ) -> None:
        times = iter([9.0] + [1.0] * 4 * CYCLES + [late] * 4 * CYCLES)  # the first call is not counted
        monkeypatch.setattr(measures, "time_call", lambda call, device: next(times))
        result = measures.pace_drop(bench)
        assert (result.value, result.rounds) == (value, 4)
        assert result.note.endswith("as was printed, fall to 0.13 at any pace")

    def test_cpu_time_of_a_waiting_loop(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks, waits = iter([1.0, 2.5]), iter([9.0, 1.0, 1.0, 1.0])  # the first call is not counted
        monkeypatch.setattr(measures.time, "process_time", lambda: next(ticks))
        monkeypatch.setattr(measures, "time_call", lambda call, device: next(waits))
        assert measures.cpu_use(bench, "once") == Estimate(0.5, note="1 thread(s)", rounds=3)


class TestHere:
    """Small tasks, end to end: whatever the machine, numbers are there."""

    def test_every_path_is_timed(self, bench: Bench) -> None:
        seconds, sizes = measures.time_paths(bench)
        assert set(seconds) == {f"{path} {part}" for path in measures.SOURCES for part in ("loader", "model", "both")}
        assert all(len(each) == 3 and min(each) > 0 for each in seconds.values())
        assert measures.time_paths(bench)[0] is seconds
        assert sizes["per_item"] == 2 * sizes["once"] == 2 * sizes["device"]
        _, source, _ = loading_calls(measures.config(bench, "cached"), measures.CachedSource)
        window, horizon = source.task.shape
        assert sizes["cached"] == 4 * len(source.starts) * (33 * window + 6 + 3 * horizon)

    def test_without_a_gpu_utilisation_has_a_reason(self, bench: Bench) -> None:
        with pytest.raises(NotTestable, match="needs a GPU: device utilisation"):
            measures.telemetry_utilisation(bench, "once")

    def test_compiled_cycles(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        def compared(preset: str, settings: Any, **how: Any) -> list[dict[str, Any]]:
            assert preset == "telemetry_quick"
            assert [configure(preset, each).toggles.compile for each in settings.values()] == ["off", "reduce-overhead"]
            shared = {"low": 1.1, "high": 1.3, "first_call_s": 61.0, "rounds": 3, "fell_back": fell_back}
            return [{"ms": 12.0, **shared}, {"ms": 10.0, "over_first": 1.2, **shared}]

        monkeypatch.setattr("uavlab_lab.claims.measures.compare", compared)
        fell_back: dict[str, str] = {}
        [claim] = select(["tcn-compile"])
        result = measure_claim(claim, bench)
        assert (result.value, result.low, result.high) == (1.2, 1.1, 1.3)
        assert result.note == "12 ms before, 10 ms after; the first call takes 61 s"
        fell_back["compile"] = "no compiler"
        with pytest.raises(NotTestable, match="no compiler"):
            measure_claim(claim, Bench(3))
