"""A profile's parts are shares of the whole, and its functions are found by their names."""

import pytest

from uavlab.bench.suites.mapping_host_profile import PARTS, bare, host_parts, own
from uavlab.envs.mapping.numpy_reference import HostMapping

HERE = "/some/where/uavlab/envs/mapping/numpy_reference.py"
SMALL = HostMapping(cells=64, cell=50 / 64)


def test_parts_make_up_a_step() -> None:
    found = host_parts(SMALL, 3)
    rows = found["parts"]
    assert {row["name"] for row in rows} == {*PARTS, "all else"}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["share"] > 0 for row in rows)  # a renamed function would show no time
    assert rows[-1]["name"] == "all else"
    shares = [row["share"] for row in rows[:-1]]
    assert shares == sorted(shares, reverse=True)
    assert found["step_ms"] > 0


def test_every_named_function_is_called_as_often_as_the_task_says() -> None:
    calls = {row["function"]: row["calls"] for row in host_parts(SMALL, 3, top=1000)["own"]}
    uavs = SMALL.uavs
    assert calls["resize"] == 2 * uavs + 1 + uavs + 1  # maps and footprints, each once; then who saw what
    assert (calls["_told"], calls["_even"], calls["_fused"]) == (uavs, 2 * uavs, 1)


def test_own_time_is_laid_out_per_step_most_first() -> None:
    stats = {(HERE, 3, "belief"): (4, 4, 0.2, 0.5, {}), ("~", 0, "{resize}"): (2, 2, 0.6, 0.6, {})}
    assert own(stats, 2) == [
        {"function": "resize", "calls": 1, "own_ms": pytest.approx(300)},
        {"function": "belief", "calls": 2, "own_ms": pytest.approx(100)},
    ]


def test_functions_of_other_files_are_not_taken_for_ours() -> None:
    assert bare((HERE, 3, "entropy")) == "entropy"
    assert bare(("/else/where.py", 3, "entropy")) == "where.py:entropy"
    assert bare(("~", 0, "<built-in method numpy.array>")) == "numpy.array"
    assert bare(("~", 0, "{method 'astype' of 'numpy.ndarray' objects}")) == "'astype' of 'numpy.ndarray' objects"
