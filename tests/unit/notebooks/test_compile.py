"""Several ways to run one network give one gradient; what is missing is said; a warm-up is earned or it is not."""

import warnings
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import TINY
from uavlab.experiment.config import configure
from uavlab_notebooks import compile

CPU = torch.device("cpu")
PRESET = "leader_follower"
SCRIPTED = ("plain torch", "TorchScript")


class TestVariants:
    def test_torchscript_gives_the_same_gradient_from_as_many_operators(self) -> None:
        (plain, scripted), said = compile.variants(PRESET, TINY, rounds=2, ways=SCRIPTED)
        assert (plain["setting"], scripted["setting"]) == SCRIPTED
        assert (plain["over_first"], plain["difference"]) == (1, 0)
        assert scripted["difference"] < 1e-5
        assert abs(scripted["launches"] - plain["launches"]) <= 0.1 * plain["launches"]
        assert all(row["low"] <= row["over_first"] <= row["high"] and row["ms"] > 0 for row in (plain, scripted))
        assert set(said) <= {"TorchScript"}

    @pytest.mark.soak
    def test_compiled_code_starts_fewer(self) -> None:
        (plain, compiled), said = compile.variants(PRESET, TINY, rounds=2, ways=("plain torch", "torch.compile"))
        assert 2 * compiled["launches"] < plain["launches"]
        assert compiled["difference"] < 1e-4
        assert said == {}

    @pytest.mark.parametrize("error", [AttributeError("module has no attribute 'trace'"), RuntimeError("gone\nmore")])
    def test_what_is_not_there_is_said(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def refuse(*given: Any) -> Any:
            raise error

        monkeypatch.setitem(compile.WAYS, "TorchScript", refuse)
        rows, said = compile.variants(PRESET, TINY, rounds=2, ways=SCRIPTED)
        assert [row["setting"] for row in rows] == ["plain torch"]
        assert said == {"TorchScript": f"left out: {str(error).splitlines()[0]}"}

    def test_other_warnings_are_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def warns(loss: compile.Loss, *given: Any) -> compile.Loss:
            warnings.warn("recompiled too often", RuntimeWarning, stacklevel=1)
            return loss

        monkeypatch.setitem(compile.WAYS, "TorchScript", warns)
        with pytest.warns(RuntimeWarning, match="recompiled too often"):
            compile.variants(PRESET, TINY, rounds=2, ways=SCRIPTED)

    def test_a_wrong_gradient_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(compile.WAYS, "TorchScript", lambda loss, *given: lambda *x: 1.01 * loss(*x))
        rows, _ = compile.variants(PRESET, TINY, rounds=2, ways=SCRIPTED)
        assert rows[1]["difference"] == pytest.approx(0.01, rel=0.01)


def test_critics_are_two_for_each_agent() -> None:
    config = configure(PRESET, TINY, {"followers": 2})
    loss, theta, x = compile.critics(config, CPU)
    spec = config.env.spec
    assert theta.shape[0] == x.shape[0] == 6
    assert x.shape[1:] == (TINY["batch"], 3 * (spec.obs + spec.action))
    assert loss(theta, x).item() > 0


def test_launches_are_counted_per_call() -> None:
    x = torch.ones(3)
    assert compile.launches(lambda: (x + x) * x, CPU) == 2


def test_elapsed_begins_with_the_warm_up() -> None:
    rows = [{"setting": "a", "ms": 2.0, "first_call_s": 1.0}]
    found = compile.elapsed(rows, most=1000, points=2)
    assert [(row["calls"], row["seconds"]) for row in found] == [(0, 1.0), (500, 2.0), (1000, 3.0)]
