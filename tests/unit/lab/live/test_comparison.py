"""Comparisons of speeds by hand: ratios, intervals, which settings alternate, and whole rounds in a slice."""

import math
from typing import Any

import pytest

from tests.support.fixtures_config import tiny
from uavlab.core.statistics import student
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change
from uavlab.runtime.toggles import TOGGLES
from uavlab_lab.live import trainer as comparison
from uavlab_lab.live.trainer import (
    INTERLEAVED,
    ONE_AFTER_THE_OTHER,
    Comparison,
    Sample,
    alternates,
    measured_rows,
    speed_ratio,
)

E = math.e
T5 = 2.5705818  # quantile 0.975 of Student's t with 5 degrees of freedom
T1 = 12.706205  # the same with 1


def close(got: dict[str, float], ratio: float, low: float, high: float) -> None:
    assert got == {
        "ratio": pytest.approx(ratio, abs=1e-4),
        "low": pytest.approx(low, abs=1e-4),
        "high": pytest.approx(high, abs=1e-4),
    }


class TestRatio:
    def test_of_pairs(self) -> None:
        """Logarithms of pairs 0, 1, 1, 2, 1, 1: mean 1, variance 2 / 5, so the reach is t sqrt(0.4 / 6)."""
        after = [E**n for n in (0, 1, 1, 2, 1, 1)]
        reach = T5 * math.sqrt(0.4 / 6)
        close(speed_ratio([1.0] * 6, after, paired=True), E, E ** (1 - reach), E ** (1 + reach))

    def test_a_machine_that_slows_down_cancels_in_pairs_alone(self) -> None:
        slower = [E**-n for n in range(6)]
        got = speed_ratio(slower, [2 * rate for rate in slower], paired=True)
        close(got, 2, 2, 2)
        assert speed_ratio(slower, [2 * rate for rate in slower], paired=False)["low"] < 1

    def test_of_two_sides(self) -> None:
        """Each side has the logarithms m - 1/2 and m + 1/2: a variance of 1/2, a reach of t / 2; both t / sqrt(2)."""
        before, after = [E**-0.5, E**0.5], [E**0.5, E**1.5]
        reach = T1 / 2 * math.sqrt(2)
        got = speed_ratio(before, after, paired=False)
        assert got["ratio"] == pytest.approx(E, abs=1e-4)
        assert got["low"] == pytest.approx(E ** (1 - reach), abs=1e-4)
        assert got["high"] == pytest.approx(E ** (1 + reach), rel=1e-3)

    def test_sides_may_differ_in_their_number(self) -> None:
        close(speed_ratio([2.0, 2.0, 2.0], [3.0, 3.0], paired=False), 1.5, 1.5, 1.5)

    @pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (1, 2), (2, 1)])
    def test_less_than_two_slices_have_no_interval(self, before: int, after: int) -> None:
        assert speed_ratio([1.0, 2.0][:before], [1.0, 2.0][:after], paired=False) == {}

    def test_the_means_of_rates_would_be_caught(self) -> None:
        """Speeds that double half of the time and halve the rest are no gain; the mean of ratios says 1.25."""
        before, after = [1.0] * 6, [2.0, 0.5] * 3
        assert speed_ratio(before, after, paired=True)["ratio"] == 1
        assert student([b / a for a, b in zip(before, after, strict=True)])[0] == 1.25


class TestAlternates:
    def test_what_leaves_the_algorithm_as_it_is(self) -> None:
        numeric = {name for name, toggle in TOGGLES.items() if toggle.equality != "algorithm"}
        assert {name for name in TOGGLES if alternates([name])} == numeric
        assert {"precision", "compile", "adam", "threads", "maps", "loader"} <= numeric

    @pytest.mark.parametrize("names", [["worlds"], ["lr"], ["prefetch"], ["interval"], ["ratio"], ["precision", "lr"]])
    def test_one_of_another_kind_is_enough(self, names: list[str]) -> None:
        assert not alternates(names)

    def test_several(self) -> None:
        assert alternates(["precision", "adam"])


def changed(settings: dict[str, Any], **base: Any) -> tuple[Run, Change]:
    run = Run(tiny(**base))
    change = run.change(**settings)
    assert change is not None
    return run, change


SAMPLES = [Sample(n, n, 10 * n) for n in range(9)]  # 10 updates per second


class TestSlices:
    @pytest.fixture(autouse=True)
    def slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "SLICE", 1.0)

    def test_one_is_left_out_then_a_second_of_updates_counts(self) -> None:
        run, change = changed({"worlds": 5})
        each = Comparison(run, change, SAMPLES, pairs=2)
        assert (each.how, each.before) == (ONE_AFTER_THE_OTHER, [10.0, 10.0])
        assert each.count(run, 30.0) is None  # warm-up
        for spent in (0.25, 0.25, 0.25, 0.25):
            assert each.count(run, spent) is None
        assert (each.warm_up, each.after, each.result) == (30.0, [4.0], None)
        assert each.count(run, 30.0) is None  # the first one of each slice
        assert each.count(run, 2.0) is None
        assert each.after == [4.0, 0.5]
        assert each.result is not None
        assert (each.result["how"], each.result["slices"], each.result["warm_up_s"]) == (each.how, 2, 30.0)
        assert each.result["ratio"] == pytest.approx(math.sqrt(4.0 * 0.5) / 10, abs=1e-4)
        assert (each.result["before"], each.result["after"]) == (10.0, 4.0)

    def test_to_and_fro(self) -> None:
        run, change = changed({"precision": "bf16"})
        each = Comparison(run, change, SAMPLES, pairs=2)
        assert (each.how, each.before, each.now) == (INTERLEAVED, [], True)
        new, old = {"precision": "bf16"}, {"precision": "fp32"}
        orders = []
        for spent in (1.0, 2.0, 4.0, 8.0):
            assert each.count(run, 9.0) is None
            orders.append(each.count(run, spent))
        assert orders == [old, new, old, new]  # it ends with the setting after the change
        assert (each.after, each.before) == ([1.0, 0.25], [0.5, 0.125])
        assert each.result is not None
        assert [each.result[key] for key in ("ratio", "low", "high")] == [2.0, 2.0, 2.0]

    @pytest.mark.parametrize(("interval", "ratio", "updates"), [(1, 1, 1), (2, 1, 2), (2, 3, 6)])
    def test_it_holds_whole_rounds(self, interval: int, ratio: int, updates: int) -> None:
        """In a round, some updates come after steps and some do not."""
        run, change = changed({"precision": "bf16"}, interval=interval, ratio=ratio)
        each, count = Comparison(run, change, [], pairs=1), 0
        while each.now:
            each.count(run, 0.9)
            count += 1
        slices = -(-2 // updates) * updates  # 1.8 s are the first to last a second
        assert count == updates + slices
        assert each.after == [pytest.approx(1 / 0.9)]

    def test_without_samples_there_is_a_reason_and_no_ratio(self) -> None:
        run, change = changed({"worlds": 5})
        each = Comparison(run, change, SAMPLES[:2], pairs=1)
        for spent in (1.0, 1.0):
            each.count(run, spent)
        assert each.result is not None
        assert "ratio" not in each.result
        assert each.result["stopped"] == "too few slices before it"

    def test_a_slice_knows_its_settings(self) -> None:
        run, change = changed({"precision": "bf16"})
        each = Comparison(run, change, [])
        assert each.holds(run)
        run.change(precision="fp32")
        assert not each.holds(run)
        each.now = False
        assert each.holds(run)


PER_UPDATE = [
    ({"worlds": 8}, {}, {"agent-steps": 2.0}),
    ({"batch": 12}, {}, {"rows": 1.5}),
    ({"ratio": 4}, {}, {"agent-steps": 0.25}),
    ({"worlds": 8, "ratio": 2}, {}, {}),
    ({"precision": "bf16"}, {}, {}),
]


@pytest.mark.parametrize(("settings", "base", "expected"), PER_UPDATE)
def test_how_much_more_an_update_stands_for(settings: Any, base: Any, expected: dict[str, float]) -> None:
    run, change = changed(settings, **base)
    assert Comparison(run, change, []).outcome()["per_update"] == expected


def test_rows_of_what_was_measured() -> None:
    got = {"ratio": 2.0, "low": 1.5, "high": 2.5, "how": INTERLEAVED}
    changes = [
        Change(1, {"adam": ("fused", "single"), "lr": (0.1, 0.2)}, measured=got),
        Change(2, {"lr": (0.2, 0.3)}, measured={"stopped": "training ended"}),
        Change(3, {"lr": (0.3, 0.4)}),
    ]
    expected = {"setting": "adam=single, lr=0.2", "over_first": 2.0, "low": 1.5, "high": 2.5, "how": INTERLEAVED}
    assert measured_rows(changes) == [expected]
