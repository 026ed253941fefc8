"""Calls are timed in turn, and ratios compare rounds with themselves."""

from functools import partial

import pytest
import torch

from uavlab.profiling import timing
from uavlab.profiling.timing import best_time, median, ratio, time_call, time_in_turn, time_steps
from uavlab_lab.measure.compare import break_even_calls

CPU = torch.device("cpu")
SLOW = {"ms": 3.0, "first_call_s": 0.5}


def test_calls_take_turns_and_warm_up_is_not_counted() -> None:
    order: list[str] = []
    seconds = time_in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 4, CPU, warm_up=2)
    assert "".join(order) == "abba" * 3  # none is always the first of a round
    assert {name: len(each) for name, each in seconds.items()} == {"a": 4, "b": 4}


def test_each_call_has_every_place_in_a_round_equally_often() -> None:
    order: list[str] = []
    time_in_turn({name: partial(order.append, name) for name in "abc"}, 6, CPU, warm_up=0)
    rounds = ["".join(order[place : place + 3]) for place in range(0, 18, 3)]
    assert rounds == ["abc", "bca", "cab"] * 2


@pytest.mark.parametrize(("enough_s", "calls", "counted"), [(0.0, 4, 3), (4.5, 5, 3), (5.5, 6, 4), (100.0, 7, 5)])
def test_what_takes_long_is_repeated_less(
    monkeypatch: pytest.MonkeyPatch, enough_s: float, calls: int, counted: int
) -> None:
    """Each round takes a second; two of at most seven warm up, and an interval needs three."""
    clock, starts = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def call() -> None:
        starts.append(clock[0])
        clock[0] += 1.0

    seconds = time_in_turn({"a": call}, 5, CPU, warm_up=2, enough_s=enough_s)
    assert (len(starts), seconds["a"]) == (calls, [1.0] * counted)


def test_a_call_is_timed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = iter([10.0, 12.5]), list[int]()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert time_call(lambda: calls.append(1), CPU, 7) == 2.5
    assert len(calls) == 7


def test_the_best_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ROUND_S", 0.01)
    asked: list[int] = []
    #        prepares, tells 2 ms: rounds of 5; the quickest took 7.5 ms
    scripted = iter([9.0, 0.002, 0.010, 0.0075, 0.05, 0.011, 0.009])
    monkeypatch.setattr(timing, "time_call", lambda call, device, times=1: (asked.append(times), next(scripted))[1])
    assert best_time(lambda: None, CPU) == pytest.approx(0.0015)
    assert asked == [1, 1, 5, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("enough_s", "fewest", "most", "timed"),
    [(0.0, 1, 9, 1), (2.5, 1, 9, 3), (0.0, 2, 9, 2), (99.0, 1, 4, 4), (99.0, 1, 9, 5)],
)
def test_steps_are_timed_for_a_while(
    monkeypatch: pytest.MonkeyPatch, enough_s: float, fewest: int, most: int, timed: int
) -> None:
    """Each of five steps takes a second."""
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert time_steps(iter(range(5)), CPU, enough_s, fewest, most) == [1.0] * timed


def test_medians() -> None:
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([4.0, 1.0, 2.0, 3.0]) == 3


def test_a_slow_round_slows_both_sides() -> None:
    """Each round is a ratio of 2, though one of them took a hundred times as long."""
    assert ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]) == {"median": 2, "low": 2, "high": 2}


def test_the_interval_holds_the_median_and_shows_the_spread() -> None:
    interval = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert interval["low"] < interval["median"] == 3 < interval["high"]
    assert ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5) == interval  # drawn from a fixed seed


def test_few_rounds_give_their_range() -> None:
    """Five ratios lie on one side of the median with 2 / 2^5, so that even their range is no 95 % interval."""
    assert ratio([1.0, 2.0, 3.0, 4.0, 9.0], [1.0] * 5) == {"median": 3, "low": 1, "high": 9}
    six = ratio([1.0, 2.0, 3.0, 4.0, 5.0, 9.0], [1.0] * 6)
    assert (six["low"], six["high"]) != (1, 9)


class TestPaidBack:
    def test_after_enough_calls(self) -> None:
        # 20 s more, 1 ms earned per call; and rounded up
        assert break_even_calls(SLOW, {"ms": 2.0, "first_call_s": 20.5}) == 20_000
        assert break_even_calls(SLOW, {"ms": 0.0, "first_call_s": 0.504}) == 2

    def test_never_if_calls_are_not_faster(self) -> None:
        assert break_even_calls(SLOW, {"ms": 3.0, "first_call_s": 20.5}) is None

    def test_at_once_if_the_first_call_is_not_longer(self) -> None:
        assert break_even_calls(SLOW, {"ms": 9.0, "first_call_s": 0.5}) == 0


def test_medians_of_times_instead_of_ratios_would_be_seen() -> None:
    """The mutant: with noise that moves both sides, the ratio of medians is not the median of ratios."""
    slow, fast = [2.0, 40.0, 6.0], [1.0, 20.0, 2.0]
    assert median(slow) / median(fast) == 3
    assert ratio(slow, fast)["median"] == 2
