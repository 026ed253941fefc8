"""The largest setting that fits was tried by whole updates; sizes that are searched for train under the limit."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from tests.support.fixtures_config import sizes, tiny
from uavlab.collectors import world_source
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.experiment import fit as module
from uavlab.experiment import sizes as automatic
from uavlab.experiment.config import Config, configure, parse_setting
from uavlab.experiment.fit import Fit, fit, largest, parse_memory
from uavlab.experiment.sizes import Sweep
from uavlab.profiling.batch_size import Budget


def peak(config: Config, setting: str, value: int) -> int:
    """Return the most bytes that two updates with this value hold at a time."""
    with Budget(10**12) as spent:

        def measure(make_step: Any, *bounds: Any) -> None:
            step = make_step(value)
            for _ in range(2):
                step()

        with mock.patch.object(module, "largest_batch", measure):
            largest(config, setting, 1, value)
    return spent.peak


def test_it_is_the_largest_that_fits() -> None:
    check_largest(tiny(capacity=1000, worlds=4, hidden=16), "batch", 908)


def check_largest(config: Config, setting: str, most: int) -> None:
    """Search between 8 less and 8 more than the most that fits into the memory of the most."""
    budget = peak(config, setting, most)
    search = largest(config, setting, most - 8, most + 8, margin=0.0, budget=budget)
    assert search.rows == most
    assert search.trials[search.rows]  # it was tried itself
    assert peak(config, setting, search.rows + 1) > budget


def test_what_is_refused() -> None:
    with pytest.raises(ResourceError, match="a step with 8 rows"):
        largest(tiny(capacity=4000), "batch", 8, 16, margin=0.0, budget=1000)
    with pytest.raises(ConfigError, match="unknown setting 'bach'"):
        largest(tiny(), "bach", 8, 16)
    with pytest.raises(ConfigError, match="batch 128 > capacity 32"):
        largest(tiny(), "batch", 64, 128)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take short samples of throughput, and survey few observations."""
    monkeypatch.setattr(world_source, "SURVEY_STEPS", 2)
    monkeypatch.setattr(automatic, "SAMPLE_S", 0.0)
    monkeypatch.setattr(automatic, "POOL_STEPS", 1)


NO_WORLDS = "worlds: none, because batches are read, not collected from worlds."
IN_MINIBATCHES = "batch: none, because an update learns from all steps of its worlds, in minibatches."


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("env", "learner", "names", "line"),
    [
        ("leader_follower", None, ["worlds", "batch"], "batch 3: fits"),
        ("spread", "mappo", ["worlds", "minibatches"], IN_MINIBATCHES),
        ("mapping", None, ["worlds", "minibatches"], IN_MINIBATCHES),
        ("pursuit", "masac", ["worlds", "batch"], "batch 3: fits"),
        ("telemetry", None, ["batch"], NO_WORLDS),
    ],
)
def test_every_task_trains_under_the_limit_with_the_sizes(
    env: str, learner: str | None, names: list[str], line: str
) -> None:
    config = configure(env, sizes(env, learner), {"learner": learner})
    lines: list[str] = []
    result = fit(config, memory="60MB", most=2, say=lines.append)
    assert (list(result.settings), str(result).splitlines()) == (names, lines)
    assert line in lines
    options = lines[-1].split()
    chosen = configure(env, config.values, dict(map(parse_setting, options[1::2])))
    assert options[::2] == ["--set"] * len(names)
    assert {name: chosen.values[name] for name in names} == result.settings
    with Budget(60_000_000):
        step = module._updates(chosen, {})
        step()
        step()


def fit_where(
    monkeypatch: pytest.MonkeyPatch, config: Config, rates: dict[int, float], holds: Callable[..., bool]
) -> Fit:
    """Search where a sweep has these rates, and a run fits if ``holds`` says so of its worlds and minibatches."""
    monkeypatch.setattr(module, "sweep_worlds", lambda *args: Sweep(rates, "agent-steps", "that is all"))
    monkeypatch.setattr(module, "_holds", lambda config, values, budget: holds(**{**config.values, **values}))
    return fit(config)


def test_worlds_are_halved_until_a_tenth_more_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("mapping", sizes("mapping"))
    result = fit_where(monkeypatch, config, {1: 1.0, 64: 64.0}, lambda worlds, **_: worlds <= 36)
    assert result.settings["worlds"] == 32  # 36 are tried for it
    assert result.trials[:4] == [
        {"setting": "worlds", "value": 1, "per_s": 1.0, "unit": "agent-steps"},
        {"setting": "worlds", "value": 64, "per_s": 64.0, "unit": "agent-steps"},
        {"setting": "worlds", "value": 64, "fits": False},
        {"setting": "worlds", "value": 32, "fits": True},
    ]
    assert fit_where(monkeypatch, config, {32: 1.0}, lambda worlds, **_: worlds <= 35).settings["worlds"] == 16
    with pytest.raises(ResourceError, match="an update with 1 world does not fit; lower"):
        fit_where(monkeypatch, config, {4: 1.0}, lambda **_: False)


@pytest.mark.parametrize(("least", "count"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)])
def test_minibatches_are_as_few_as_fit(least: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("mapping", sizes("mapping"), {"minibatches": 6})
    result = fit_where(monkeypatch, config, {4: 1.0}, lambda minibatches, **_: minibatches >= least)
    assert result.settings == {"worlds": 4, "minibatches": count}


def test_data_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"fit: [\d,]+ bytes of data do not fit into 1,000; allow more"):
        fit(configure("telemetry", sizes("telemetry")), 1000)


@pytest.mark.parametrize("text", ["lots", "0", "-1MB", "0.1B", "1XB", "MB", "1e9", True, "9" * 99])
def test_what_is_no_memory_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="expected a number of bytes above 0, such as 512MB or 2GiB"):
        parse_memory(text)
