"""Figures show the rows they were given, with their intervals and units, and refuse nothing that rows may hold."""

import json
from typing import Any

import pytest

from uavlab_lab.plots import charts, style

SPEEDUPS = [
    {"setting": "loop", "ms": 10.0, "over_first": 1.0, "low": 1.0, "high": 1.0, "agents": 2},
    {"setting": "batched", "ms": 4.0, "over_first": 2.5, "low": 2.25, "high": 3.0, "agents": 2},
    {"setting": "vmap", "ms": 12.5, "over_first": 0.8, "low": 0.75, "high": 0.875, "agents": 2},
    {"setting": "unknown", "ms": None, "over_first": None, "low": None, "high": None, "agents": 2},
]
GREEN, RED, GREY = (charts.OUTCOMES[name] for name in ("faster", "slower", "not different"))


def lists(values: Any) -> list[float]:
    return [float(v) for v in values]


class TestWords:
    @pytest.mark.parametrize(
        ("low", "high", "outcome"),
        [(1.01, 2.0, "faster"), (0.5, 0.99, "slower"), (0.9, 1.1, "not different"), (1.0, 1.2, "not different")],
    )
    def test_an_interval_that_holds_one_says_nothing(self, low: float, high: float, outcome: str) -> None:
        assert charts.outcome({"low": low, "high": high}) == outcome

    def test_a_speedup_comes_with_its_interval(self) -> None:
        assert charts.speedup(SPEEDUPS[1]) == "2.50x (2.25 to 3.00)"
        row = {"measured": 1.234, "low": 1.2, "high": 1.3}
        assert charts.speedup(row, "measured") == "1.23x (1.20 to 1.30)"


class TestBars:
    def test_a_bar_per_row_with_whiskers_coloured_by_outcome(self) -> None:
        bar, numbers, *legend = charts.bars(SPEEDUPS).data
        assert list(bar.y) == ["loop", "batched", "vmap"]  # what has no number is left out
        assert lists(bar.x) == [1.0, 2.5, 0.8]
        assert lists(bar.error_x.array) == [0, 0.5, 0.075]  # 3 - 2.5, 0.875 - 0.8
        assert lists(bar.error_x.arrayminus) == [0, 0.25, 0.05]
        assert list(bar.marker.color) == [GREY, GREEN, RED]
        assert list(numbers.text) == ["  1.00", "  2.50", "  0.80"]
        assert lists(numbers.x) == [1.0, 3.0, 0.875]  # behind the upper end of the interval, never under it
        assert [(each.name, each.marker.color) for each in legend] == [
            ("faster", GREEN),
            ("not different", GREY),
            ("slower", RED),
        ]

    def test_the_number_of_a_negative_bar_is_left_of_it(self) -> None:
        rows = [{"setting": "a", "r2": -0.5, "low": -0.75, "high": -0.25}, {"setting": "b", "r2": 1.0}]
        rows[1] |= {"low": -0.25, "high": 1.25}
        figure = charts.bars(rows, "r2", ends=("low", "high"))
        _, numbers = figure.data
        assert lists(numbers.x) == [-0.75, 1.25]
        assert list(numbers.textposition) == ["middle left", "middle right"]
        assert lists(figure.layout.xaxis.range) == [-0.75 - 0.28 * 2, 1.25 + 0.28 * 2]

    def test_names_are_words_in_short_lines(self) -> None:
        rows = [{"setting": "motor_lag", "ms": 1.0}, {"setting": "word " * 10, "ms": 2.0}]
        lag, long = charts.bars(rows, "ms").data[0].y
        assert lag == "motor lag"
        assert all(len(line) <= charts.NAME for line in long.split("<br>"))
        assert long.replace("<br>", " ") == ("word " * 10).strip()

    def test_the_first_row_is_on_top(self) -> None:
        axis = charts.bars(SPEEDUPS).layout.yaxis
        assert (axis.autorange, axis.categoryarray[0]) == ("reversed", "loop")

    def test_another_number_does_not_borrow_the_interval(self) -> None:
        bar, numbers = charts.bars(SPEEDUPS, "ms", axis="update (ms)").data
        assert lists(numbers.x) == [10, 4, 12.5]
        assert bar.error_x.array is None
        assert bar.marker.color == style.COLORS[0]

    def test_a_row_without_an_interval_takes_it_from_all(self) -> None:
        bar, _ = charts.bars([SPEEDUPS[0], SPEEDUPS[1] | {"low": None}]).data
        assert bar.error_x.array is None

    def test_groups(self) -> None:
        rows = [row | {"agents": agents} for agents in (2, 4) for row in SPEEDUPS]
        figure = charts.bars(rows, by="agents")
        bars = [trace for trace in figure.data if trace.type == "bar"]
        assert [bar.name for bar in bars] == ["agents 2", "agents 4"]
        assert len({bar.marker.color for bar in bars}) == 2
        assert [trace.offsetgroup for trace in figure.data] == ["0", "0", "1", "1"]  # numbers stand beside their bars

    def test_a_guide_at_one_for_speedups_and_a_band_for_claims(self) -> None:
        shapes = charts.bars(SPEEDUPS, claim=(1.4, 1.6)).layout.shapes
        assert [(s.x0, s.x1) for s in shapes] == [(1, 1), (1.4, 1.6)]
        assert charts.bars(SPEEDUPS, "ms").layout.shapes == ()

    def test_numbers_may_be_names(self) -> None:
        figure = charts.bars([{"batch": 64, "ms": 1.0}, {"batch": 128, "ms": 2.0}], "ms", label="batch")
        assert list(figure.data[0].y) == ["64", "128"]
        assert figure.layout.yaxis.type == "category"


class TestLines:
    ROWS = tuple({"agents": n, "ms": 2.0 * n, "rung": r, "a": 1.0, "b": 20.0} for r in ("x", "y") for n in (2, 4, 8))

    def test_a_line_per_group_told_apart_without_colour(self) -> None:
        figure = charts.lines(self.ROWS, "agents", "ms", by="rung", x_axis="agents", y_axis="update (ms)")
        assert [(line.name, lists(line.x), lists(line.y)) for line in figure.data] == [
            ("x", [2, 4, 8], [4, 8, 16]),
            ("y", [2, 4, 8], [4, 8, 16]),
        ]
        assert len({(line.line.dash, line.marker.symbol) for line in figure.data}) == 2
        assert list(figure.layout.xaxis.tickvals) == [2, 4, 8]
        assert figure.layout.yaxis.title.text == "update (ms)"

    def test_intervals(self) -> None:
        [line] = charts.lines(self.ROWS[:1], "agents", "ms", ends=("a", "b")).data
        assert (lists(line.error_y.array), lists(line.error_y.arrayminus)) == ([16], [3])  # 20 - 4, 4 - 1

    def test_logarithmic_axes(self) -> None:
        layout = charts.lines(self.ROWS, "agents", "ms", by="rung", log_x=True, log_y=True).layout
        assert (layout.xaxis.type, layout.yaxis.type) == ("log", "log")


class TestStages:
    def test_shares_add_up_to_the_whole(self) -> None:
        columns = {
            "plain": [{"name": "update", "share": 0.5}, {"name": "draw", "share": 0.25}],
            "batched": [{"name": "update", "share": 0.75}],
        }
        figure = charts.stages(columns)
        drawn = {bar.name: lists(bar.x) for bar in figure.data}
        assert drawn == {"update": [0.5, 0.75], "draw": [0.25, 0], "other": [0.25, 0.25]}
        assert list(figure.data[0].y) == ["plain", "batched"]
        assert figure.layout.barmode == "stack"

    def test_times_have_no_rest(self) -> None:
        figure = charts.stages({"plain": [{"name": "update", "mean_ms": 2.0}]}, "mean_ms", axis="time (ms)")
        assert [(bar.name, lists(bar.x)) for bar in figure.data] == [("update", [2.0])]
        assert figure.layout.xaxis.title.text == "time (ms)"


class TestRoofline:
    def test_points_lie_where_they_were_measured(self) -> None:
        # 8e8 FLOPs in 10 ms are 80 GFLOP/s; at 2 FLOPs per byte 50 GB/s allow 100 GFLOP/s
        point = {"name": "update", "flops": 8e8, "bytes": 4e8, "ms": 10.0}
        roof, mark = charts.roofline([point], rate=4e11, bandwidth=5e10).data
        assert (lists(mark.x), lists(mark.y)) == ([2], [80])
        assert mark.name == "update: 80% of the roof"
        assert lists(roof.x) == [0.25, 8, 64]  # the ridge: 4e11 / 5e10
        assert lists(roof.y) == [12.5, 400, 400]

    def test_right_of_the_ridge_arithmetic_is_the_roof(self) -> None:
        point = {"name": "update", "flops": 8e8, "bytes": 1e7, "ms": 10.0}
        assert charts.roofline([point], rate=4e11, bandwidth=5e10).data[1].name == "update: 20% of the roof"


class TestLearningCurves:
    ROWS = (
        {
            "setting": "plain",
            "first_update_s": 2.0,
            "curve": [
                {"update": 10, "seconds": 3.0, "each": {"completion": [0.0, 0.5]}},
                {"update": 20, "seconds": 5.0, "each": {"completion": [1.0, 1.0]}},
            ],
        },
    )

    def test_means_within_intervals_over_runs(self) -> None:
        area, line = charts.learning_curves(self.ROWS).data
        assert (lists(line.x), lists(line.y)) == ([10, 20], [0.25, 1])
        assert lists(area.x) == [10, 20, 20, 10]
        # t of one degree of freedom 12.706, standard error 0.25; up along the upper ends, back along the lower
        assert lists(area.y) == pytest.approx([0.25 + 3.17655, 1, 1, 0.25 - 3.17655], abs=1e-4)

    def test_a_wide_band_does_not_flatten_the_curves(self) -> None:
        assert lists(charts.learning_curves(self.ROWS).layout.yaxis.range) == [-0.05, 1.05]

    @pytest.mark.parametrize(("warm", "at"), [(False, [3, 5]), (True, [1, 3])])
    def test_seconds_with_and_without_warm_up(self, warm: bool, at: list[float]) -> None:
        figure = charts.learning_curves(self.ROWS, x="seconds", warm=warm)
        assert lists(figure.data[1].x) == at
        assert ("warm-up left out" in figure.layout.xaxis.title.text) is warm
        assert figure.layout.yaxis.title.text == "completion (mean of 2 runs)"

    def test_settings_of_other_numbers_of_runs(self) -> None:
        curve = [{"update": 10, "each": {"completion": [0.5]}}]
        rows = [*self.ROWS, {"setting": "alone", "first_update_s": 2.0, "curve": curve}]
        assert charts.learning_curves(rows).layout.yaxis.title.text == "completion (mean of up to 2 runs)"

    def test_updates_need_no_warming(self) -> None:
        assert lists(charts.learning_curves(self.ROWS, warm=True).data[1].x) == [10, 20]

    def test_without_a_score_yet(self) -> None:
        figure = charts.learning_curves([{"setting": "plain", "first_update_s": 1.0, "curve": []}])
        assert len(figure.data[1].x) == 0


def test_theory_has_the_range_of_poisson_counts() -> None:
    counts, theory = charts.against_theory([0, 1], [90, 30], [100, 25], x_axis="slot").data
    assert (lists(counts.y), lists(theory.y)) == ([90, 30], [100, 25])
    assert lists(theory.error_y.array) == [19.6, 9.8]


def test_a_timeline_has_lanes_and_a_colour_per_name() -> None:
    spans = [
        {"lane": "host", "name": "draw", "start": 0.0, "end": 2.0},
        {"lane": "device", "name": "update", "start": 2.0, "end": 6.0},
        {"lane": "host", "name": "draw", "start": 2.0, "end": 3.0},
    ]
    draw, update = charts.timeline(spans).data
    assert (lists(draw.base), lists(draw.x), list(draw.y)) == ([0, 2], [2, 1], ["host", "host"])
    assert (lists(update.base), lists(update.x)) == ([2], [4])
    assert draw.marker.color != update.marker.color


@pytest.mark.parametrize("words", [3, 60])
def test_long_titles_are_broken_and_given_room(words: int) -> None:
    figure = style.blank("finding " * words, "x (ms)", "y")
    lines = figure.layout.title.text.split("<br>")
    assert all(len(line) <= style.WIDE for line in lines)
    assert len(lines) == (1 if words == 3 else 8)  # eight words of eight letters fit a line of 70
    assert figure.layout.margin.t == 24 + 20 * len(lines)
    assert figure.layout.height - style.blank("").layout.height == 20 * (len(lines) - 1)


def test_figures_are_small() -> None:
    """Without their template, which plotly adds to every figure (7 kB)."""
    figure = charts.bars(SPEEDUPS, title="A finding")
    figure.layout.template = None
    assert len(json.dumps(figure.to_plotly_json(), default=list)) < 2500
