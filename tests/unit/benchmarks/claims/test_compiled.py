"""The networks alone are compiled, and nothing of it stays behind."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.benchmarks.claims.test_measures import TINY
from uavlab.learners.masac import loop
from uavlab_lab.claims import compiled
from uavlab_lab.claims.compiled import compiled_networks
from uavlab_lab.claims.ledger import select
from uavlab_lab.claims.measures import Bench, NotTestable, lost
from uavlab_lab.claims.report import measure_claim

EVALUATIONS = 8 + 3 * 2 * 2  # of actors for two agents in both phases; of two critics each: targets and both losses


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compile nothing, and count the evaluations of compiled networks."""
    counted: list[int] = []

    def compile_function(function: Callable, name: str, mode: str, fall_back: Callable[[str], None]) -> Callable:
        assert (name, mode) == ("network", "max-autotune")
        return lambda *given: (counted.append(1), function(*given))[1]

    monkeypatch.setattr(compiled, "compile_function", compile_function)
    monkeypatch.setattr(compiled, "speedup_text", lambda bench, *_: "2.00x")
    return counted


def test_every_network_of_the_loop_is_compiled_and_nothing_else(evaluations: list[int]) -> None:
    plain, bench = loop.evaluate, Bench(7, **TINY)
    result = measure_claim(*select(["compile"]), bench)
    assert len(evaluations) == (1 + 1 + 7) * EVALUATIONS  # the first call, the warm-up, and the rounds
    assert loop.evaluate is plain
    assert result.rounds == 7
    assert result.note.endswith(" ms after; the first call takes 0 s; whole batched updates as one function: 2.00x")
    assert lost(bench, "compiled_networks", mode="max-autotune").value == pytest.approx(1 - 1 / result.value)
    assert len(evaluations) == 9 * EVALUATIONS  # measured once


def test_networks_that_cannot_be_compiled_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_function(function: Callable, name: str, mode: str, fall_back: Callable[[str], None]) -> Any:
        fall_back("network: no compiler")
        return function

    monkeypatch.setattr(compiled, "compile_function", compile_function)
    with pytest.raises(NotTestable, match="compile cannot be used: network: no compiler"):
        compiled_networks(Bench(3, **TINY), "default")
