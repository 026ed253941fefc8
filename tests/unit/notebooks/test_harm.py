"""Harm: hand-computed intervals and powers, the order of a study, and its resumption."""

import math
from types import SimpleNamespace

import pytest
import torch

from uavlab.core.statistics import student
from uavlab_lab.lessons import harm
from uavlab_lab.lessons.harm import (
    BASE,
    VARIANTS,
    compare,
    draw,
    halves,
    judge,
    least_harm,
    quantile,
    read,
)

TINY = {"hidden": 8, "batch": 8, "worlds": 2, "learning_starts": 16, "evaluate_episodes": 2, "device": "cpu"}


@pytest.mark.parametrize(
    ("chance", "free", "value"), [(0.975, 9, 2.2622), (0.8, 9, 0.8834), (0.975, 127, 1.9788), (0.5, 5, 0.0)]
)
def test_quantiles_are_those_of_the_table(chance: float, free: int, value: float) -> None:
    assert quantile(chance, free) == pytest.approx(value, abs=1e-4)


def test_least_harm() -> None:
    assert least_harm([1.0, 2.0, 3.0, 4.0]) == pytest.approx((3.1824 + 0.9785) * 1.29099 / 2, abs=1e-3)


def test_least_harm_is_found_in_four_of_five_studies() -> None:
    d = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.tensor([1.0, -1.0] * 8).double()
    least = least_harm((spread / spread.std()).tolist())
    hits = [student(each)[2] < 0 for each in (d - least).numpy()]
    assert sum(hits) / len(hits) == pytest.approx(0.8, abs=0.03)


def test_halves() -> None:
    assert halves([[1, 2, 3, 4, 5], [0, 0, 6, 6, 6]]) == {"early": [1.5, 0], "late": [4, 6]}


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-2, -1, "worse"), (1, 2, "better"), (-1, 1, "not different"), (0, 0, "not different")]
)
def test_judge(low: float, high: float, verdict: str) -> None:
    assert judge(low, high) == verdict


def test_compare() -> None:
    base = [0.0, 10.0, 20.0, 30.0]
    (row,) = compare({BASE: base, "interval=20": [x - 1 - 0.1 * (-1) ** n for n, x in enumerate(base)]})
    assert (row["variant"], row["kind"], row["verdict"]) == ("interval=20", harm.OPEN, "worse")
    assert row["mean"] == pytest.approx(-1)
    assert row["low"] == pytest.approx(-1 - 3.1824 * 0.11547 / 2, abs=1e-3)
    assert row["unpaired"] > 100  # the seeds differ by 10, the pairs by 0.1


def test_equal_pairs_have_no_width() -> None:
    base = [1.0, 2.0, 4.0]
    (row,) = rows = compare({BASE: base, "micro_batches=2": base})
    assert (row["low"], row["high"], row["least"], row["verdict"]) == (0, 0, 0, "not different")
    assert row["unpaired"] == math.inf
    assert draw(rows, "t").layout.xaxis.range[0] < 0


def test_figure_marks_verdicts_and_places_far_differences_at_the_edge() -> None:
    far = {"mean": -20.0, "low": -21.0, "high": -19.0, "verdict": "worse"}
    near = {"mean": 0.1, "low": -0.5, "high": 0.7, "verdict": "not different"}
    common = {"kind": harm.OPEN, "least": 1.0}
    figure = draw([{"variant": "a", **far, **common}, {"variant": "b", **near, **common}], "t")
    by_name = {trace.name: trace for trace in figure.data if trace.name}
    assert by_name["worse"].x == (pytest.approx(-1.4),)
    assert by_name["worse"].marker.symbol == ("arrow-left",)
    assert by_name["not different"].marker.symbol == ("circle",)
    assert figure.data[-1].text[0] == "-20.00 (-21.00 to -19.00)"
    assert figure.layout.yaxis.categoryarray == (f"<b>{harm.OPEN}</b>", "a", "b")


def test_targets_are_rounded_to_bfloat16() -> None:
    learner = SimpleNamespace(target=torch.tensor([1.0, 1.001, 1.005]))
    harm.round_target(learner)
    assert learner.target.tolist() == [1.0, 1.0, 1.0078125]


@pytest.mark.parametrize(("name", "scores"), [(BASE, 13), ("an update every 20 steps", 2)])
def test_training_returns_scores_of_each_seed(name: str, scores: int) -> None:
    returns = harm.train(name, range(3, 5), 40, **TINY)
    assert (len(returns), len(returns[0])) == (2, scores)  # one every third update of 40, and one with each of 2


def test_the_record_has_equally_many_seeds_of_each_variant() -> None:
    means = read("late")
    assert list(means) == list(VARIANTS)
    assert {len(each) for each in means.values()} == {128}
