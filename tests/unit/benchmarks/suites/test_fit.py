"""The rate at the chosen number is compared with the best of a longer sweep, which may lie beyond the first one."""

from typing import Any

import pytest

from uavlab.benchmarks.suites import fit
from uavlab.benchmarks.suites.fit import PRESETS, fit_suite
from uavlab.experiment.presets import presets
from uavlab.experiment.throughput import Sweep
from uavlab.workers.names import is_external


@pytest.mark.parametrize(
    ("most", "best", "of_best", "numbers"), [(8, 8, 0.8, [1, 4, 8]), (7, 4, 1.0, [1, 4]), (100, 8, 0.8, [1, 4, 8])]
)
def test_the_choice_is_compared_with_the_best(
    most: int, best: int, of_best: float, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(config: Any, worlds: int) -> tuple[float, float]:
        measured.append(worlds)
        return {1: 10.0, 4: 40.0, 8: 50.0}[worlds], 1.0

    monkeypatch.setattr(fit, "sweep_worlds", lambda *args: Sweep({1: 10.0, 4: 40.0}, "agent-steps", "slow"))
    monkeypatch.setattr(fit, "measure", measure)
    (row,) = fit_suite(3, "cpu", ["spread_quick"], most)["rows"]
    assert (row["preset"], row["worlds"], row["best"], row["of_best"]) == ("spread_quick", 4, best, of_best)
    assert row["rates"] == {str(n): {1: 10, 4: 40, 8: 50}[n] for n in numbers}
    assert measured == 3 * numbers


def test_its_presets_are_of_all_environments_with_worlds() -> None:
    tasks = {preset.env for preset in presets().values()} - {"telemetry", "slow_leader_follower"}
    tasks = {name for name in tasks if not is_external(name)}  # which other tests may have registered
    assert {presets()[name].env for name in PRESETS} == tasks
