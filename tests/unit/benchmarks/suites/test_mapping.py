"""Rows of the suites are complete, all paths run the same missions, and parts of a host profile are shares of it."""

from dataclasses import replace

import pytest
import torch

from tests.support.fixtures_config import SMALL_MISSION
from uavlab.core.errors import FallbackWarning
from uavlab.core.registry import ENVIRONMENTS
from uavlab.core.types import leaves
from uavlab.envs.mapping.env import Mapping
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.runtime.runtime import Runtime
from uavlab_lab.suites import mapping
from uavlab_lab.suites.mapping import PARTS, function_name, own_times, profile_host

SMALL = HostMapping(cells=41, cell=0.5, lattice=5, reach=12.0)
PROFILED = HostMapping(cells=64, cell=50 / 64)
HERE = "/some/where/uavlab/envs/mapping/numpy_reference.py"


def test_the_pool_steps_as_one_process_does() -> None:
    """The pool here has no processes, so that only the splitting and joining of missions is tested."""

    class Here:
        map = staticmethod(map)

    alone, split = mapping.team_step(SMALL, 2, Runtime()), mapping.team_step(SMALL, 2, Runtime(), Here())
    for call in (alone, split):
        for _ in range(3):
            call()
    states = [call.__closure__[[*call.__code__.co_freevars].index("state")].cell_contents for call in (alone, split)]
    for (name, one), (_, other) in zip(*map(leaves, states), strict=True):
        assert torch.equal(one, other), name


def test_training_steps() -> None:
    record = mapping.missions_suite(3, "cpu", {**SMALL_MISSION, "updates": 1})
    assert [row["setting"] for row in record["rows"]] == ["plain", "eager", "eager, bf16"]
    for row in record["rows"]:
        assert (row["moves"], row["passes"]) == (3 * 4 * 3, 2)
        assert row["low"] <= row["over_plain"] <= row["high"]
        assert row["s_per_300"] == pytest.approx(row["s"] * 300 / 36, rel=0.02, abs=0.01)
        assert row["over_original"] == pytest.approx(13.0 / row["s_per_300"], rel=0.1)


def test_a_setting_that_fell_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where plain has no maps on the host, and the ratios are to something else."""

    def no_host(env: Mapping, rt: Runtime) -> Mapping:
        if rt.toggles.maps == "host":
            rt.fall_back("maps", "no host here")
        return env

    entry = replace(ENVIRONMENTS["mapping"], implementation=no_host)
    monkeypatch.setitem(ENVIRONMENTS, "mapping", entry)
    with pytest.warns(FallbackWarning, match="maps=host fell back"):
        record = mapping.missions_suite(3, "cpu", {**SMALL_MISSION, "updates": 1})
    assert [row["fell_back"] for row in record["rows"]] == [{"maps": "no host here"}, {}, {}]


def test_parts_make_up_a_step() -> None:
    profile = profile_host(PROFILED, 3)
    rows = profile["parts"]
    assert {row["name"] for row in rows} == {*PARTS, "all else"}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["share"] > 0 for row in rows)  # a renamed function would show no time
    assert rows[-1]["name"] == "all else"
    shares = [row["share"] for row in rows[:-1]]
    assert shares == sorted(shares, reverse=True)
    assert profile["step_ms"] > 0


def test_every_named_function_is_called_as_often_as_the_task_requires() -> None:
    calls = {row["function"]: row["calls"] for row in profile_host(PROFILED, 3, top=1000)["own"]}
    uavs = PROFILED.uavs
    sensor, constant, fusion = (
        PARTS[part][0] for part in ("the sensor", "constant channels", "adding measurements up")
    )
    assert calls["resize"] == 2 * uavs + 1 + uavs + 1  # maps and footprints, each once; then who saw what
    assert (calls[sensor], calls[constant], calls[fusion]) == (uavs, 2 * uavs, 1)
    # all maps at once, and the team's map before; the team's map before and after, two channels of each UAV, one more
    assert (calls["belief"], calls["entropy"]) == (2, 2 + 2 * uavs + 1)


def test_own_times_are_per_step_most_first() -> None:
    stats = {(HERE, 3, "belief"): (4, 4, 0.2, 0.5, {}), ("~", 0, "{resize}"): (2, 2, 0.6, 0.6, {})}
    assert own_times(stats, 2) == [
        {"function": "resize", "calls": 1, "own_ms": pytest.approx(300)},
        {"function": "belief", "calls": 2, "own_ms": pytest.approx(100)},
    ]


def test_functions_of_other_files_are_named_with_their_file() -> None:
    assert function_name((HERE, 3, "entropy")) == "entropy"
    assert function_name(("/else/where.py", 3, "entropy")) == "where.py:entropy"
    assert function_name(("~", 0, "<built-in method numpy.array>")) == "numpy.array"
    assert (
        function_name(("~", 0, "{method 'astype' of 'numpy.ndarray' objects}")) == "'astype' of 'numpy.ndarray' objects"
    )
