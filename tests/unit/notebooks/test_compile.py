"""Plain and compiled networks have one gradient, launches are counted, and a warm-up is part of the time."""

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab.experiment.config import configure
from uavlab_notebooks import compile

CPU = torch.device("cpu")
PRESET = "leader_follower"


class TestCompareWays:
    @pytest.mark.soak
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what it imports to compile
    def test_compiled_code_starts_fewer_operators(self) -> None:
        plain, compiled = compile.compare_ways(PRESET, TINY, rounds=2)
        assert 2 * compiled["launches"] < plain["launches"]
        assert compiled["difference"] < 1e-4

    def test_the_same_function_has_the_same_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(compile.WAYS, "torch.compile", lambda loss: loss)
        rows = compile.compare_ways(PRESET, TINY, rounds=2)
        assert [row["setting"] for row in rows] == ["plain torch", "torch.compile"]
        assert [row["difference"] for row in rows] == [0, 0]
        assert rows[0]["over_first"] == 1
        assert rows[0]["launches"] == rows[1]["launches"]
        assert all(row["low"] <= row["over_first"] <= row["high"] and row["ms"] > 0 for row in rows)

    def test_a_wrong_gradient_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(compile.WAYS, "torch.compile", lambda loss: lambda *x: 1.01 * loss(*x))
        rows = compile.compare_ways(PRESET, TINY, rounds=2)
        assert rows[1]["difference"] == pytest.approx(0.01, rel=0.01)


def test_critics_are_two_for_each_agent() -> None:
    config = configure(PRESET, TINY, {"followers": 2})
    loss, theta, x = compile.build_critics(config, CPU)
    spec = config.env.spec
    assert theta.shape[0] == x.shape[0] == 6
    assert x.shape[1:] == (TINY["batch"], 3 * (spec.obs + spec.action))
    assert loss(theta, x).item() > 0


def test_launches_are_counted_per_call() -> None:
    x = torch.ones(3)
    assert compile.count_launches(lambda: (x + x) * x, CPU) == 2


def test_elapsed_begins_with_the_warm_up() -> None:
    rows = [{"setting": "a", "ms": 2.0, "first_call_s": 1.0}]
    points = compile.elapsed(rows, most=1000, points=2)
    assert [(row["calls"], row["seconds"]) for row in points] == [(0, 1.0), (500, 2.0), (1000, 3.0)]
