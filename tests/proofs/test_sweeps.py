"""Sweeps whose trials and drivers are killed, here and on a Ray cluster, end in the table of an undisturbed one."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import sweep_harness as harness
from uavlab.experiment.run_dir import read_status
from uavlab.storage import checkpoint

Proof = Callable[[str, str], None]
KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "1" * 32}
GRID = {"grid": {"update": ["loop", "batched"]}, "seeds": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The table of a small sweep on this machine."""
    folder = tmp_path_factory.mktemp("whole")
    return harness.run(harness.write(folder / "s.yaml", **GRID), folder / "s")


def survives(folder: Path, whole: dict[str, Any], trials: int, drivers: list[signal.Signals], **keys: Any) -> str:
    """Kill trials and drivers of a sweep, and compare it with an undisturbed one; return the figure of the proof."""
    record = harness.kills(harness.write(folder / "s.yaml", **keys), folder / "killed", trials, drivers, 1, **TOKEN)
    assert (record["killed"], len(record["codes"])) == (trials, len(drivers))
    assert [code for _, code in record["codes"]] == [-number if number is KILL else 128 + number for number in drivers]
    assert record["table"]["complete"]
    assert harness.results(record["table"]) == harness.results(whole)
    assert harness.left_alone(folder / "killed") == []
    assert record["trained"] > 0
    return (
        f"{trials} trials ({record['trained']} in training), {len(drivers)} drivers, {len(whole['rows'])} equal digests"
    )


def test_a_sweep_survives_kills(whole: dict[str, Any], tmp_path: Path, proof: Proof) -> None:
    proof("kill -9 of trials and drivers of a sweep", survives(tmp_path, whole, 3, [KILL], **GRID))


@pytest.mark.soak
def test_a_large_sweep_survives_many_kills(tmp_path: Path, proof: Proof) -> None:
    """The table is the same with and without kills, in processes of its own and on Ray."""
    keys = {"grid": {"update": harness.UPDATES}, "seeds": 4}
    undisturbed = harness.run(harness.write(tmp_path / "s.yaml", **keys), tmp_path / "whole")
    for engine, drivers in {"local": [KILL, TERM, KILL, INT], "ray": []}.items():
        (tmp_path / engine).mkdir()
        figure = survives(tmp_path / engine, undisturbed, 20, drivers, engine=engine, **keys)
        proof(f"kill -9 of trials and drivers of a larger sweep, {engine}", figure)


def test_trials_of_a_driver_that_is_stopped_or_killed_are_saved(tmp_path: Path) -> None:
    file = harness.write(
        tmp_path / "s.yaml", presets=["spread"], seeds=1, settings={**harness.SWEEP["settings"], "updates": 10**6}
    )
    for number in (TERM, KILL):
        driver = harness.start(file, tmp_path / "s")
        (place,) = wait(lambda: [*(tmp_path / "s" / "trials").glob("*/run.json")])
        before = read_status(place.parent).get("update", 0)
        wait(lambda place=place, before=before: read_status(place.parent).get("update", 0) > before)
        driver.send_signal(number)
        out, _ = driver.communicate()
        assert harness.left_alone(tmp_path / "s") == []
        status = read_status(place.parent)
        assert (status["status"], status["update"] > before) == ("interrupted", True)
        assert checkpoint.newest(place.parent / "checkpoints").step == status["update"]
        if number is TERM:
            assert driver.returncode == 128 + TERM
            assert [row["status"] for row in json.loads(out.splitlines()[-1])["rows"]] == ["interrupted"]


def wait(look: Callable[[], Any]) -> Any:
    """Return what ``look`` returns once it is something."""
    until = time.monotonic() + 120
    while not (seen := look()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return seen


def ray_file(folder: Path, **keys: Any) -> Path:
    return harness.write(folder / "s.yaml", engine="ray", **GRID, **keys)


def test_ray_on_this_machine_makes_the_same_table(whole: dict[str, Any], tmp_path: Path, proof: Proof) -> None:
    table = harness.run(ray_file(tmp_path), tmp_path / "s", **TOKEN)
    assert harness.results(table) == harness.results(whole)
    proof("a sweep on Ray and in processes of its own", f"{len(whole['rows'])} equal digests")


@pytest.mark.soak
def test_a_cluster_of_two_nodes_makes_the_same_table_though_it_is_killed(
    whole: dict[str, Any], tmp_path: Path, proof: Proof
) -> None:
    with harness.ray_nodes(2) as (address, env):
        file = ray_file(tmp_path, address=address)
        record = harness.kills(file, tmp_path / "s", 3, [KILL, TERM], seed=2, **env)
        assert harness.results(record["table"]) == harness.results(whole)
        assert harness.left_alone(tmp_path / "s") == []
        refused = harness.start(file, tmp_path / "t", **{**env, "RAY_AUTH_TOKEN": "2" * 32})
        _, error = refused.communicate()
        assert (refused.returncode, error.count("\n")) == (2, 1), error
        assert not (tmp_path / "t").exists()
    proof("a sweep on a Ray cluster of two nodes", f"3 trials and 2 drivers killed, {len(whole['rows'])} equal digests")
