"""Sweeps whose trials and drivers are killed, here and on a Ray cluster, end in the table of an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
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


GRID = {"grid": {"update": ["loop", "batched"]}, "seeds": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The table of a small sweep on this machine."""
    folder = tmp_path_factory.mktemp("whole")
    return harness.run(harness.write(folder / "s.yaml", **GRID), folder / "s")


def survives(folder: Path, whole: dict[str, Any], trials: int, drivers: list[signal.Signals], **keys: Any) -> str:
    """Kill trials and drivers of a sweep, and compare it with an undisturbed one; return the figure of the proof."""
    record = harness.kills(harness.write(folder / "s.yaml", **keys), folder / "killed", trials, drivers, 1)
    assert (record["killed"], len(record["codes"])) == (trials, len(drivers))
    assert (record["workers"] > 0) == (keys.get("engine") == "ray")
    assert [code for _, code in record["codes"]] == [-number if number is KILL else 128 + number for number in drivers]
    assert record["table"]["complete"]
    assert harness.results(record["table"]) == harness.results(whole)
    assert harness.left_alone(folder / "killed") == []
    assert record["trained"] > 0
    workers = record["workers"]
    lost = f"{trials - workers} trials{f', {workers} workers' if workers else ''} ({record['trained']} in training)"
    return f"{lost}, {len(drivers)} drivers, {len(whole['rows'])} equal digests"


def test_a_sweep_survives_kills(whole: dict[str, Any], tmp_path: Path, proof: Proof) -> None:
    proof("kill -9 of trials and drivers of a sweep", survives(tmp_path, whole, 3, [KILL], **GRID))


def test_a_search_survives_kills(tmp_path: Path, proof: Proof) -> None:
    """One trial at a time, so that proposals follow from the seed alone."""
    ranges = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "gamma": {"values": [0.9, 0.95]}}
    keys = {"presets": ["leader_follower"], "search": {"ranges": ranges, "trials": 3}, "seeds": 1, "workers": 1}
    undisturbed = harness.run(harness.write(tmp_path / "s.yaml", **keys), tmp_path / "whole")
    proof("kill -9 of trials and drivers of a search", survives(tmp_path, undisturbed, 2, [KILL], **keys))


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


OUTSIDE = {"updates": 30, "checkpoint_every": 1, "evaluate_every": 10, "evaluate_episodes": 3, "worlds": 4}
MINE = """
import uavlab as ul
from tests.support.outside import Drift

@ul.env("own", learner="reinforce")
class Own(Drift):
    pass

if __name__ == "__main__":
    ul.main()
"""


def test_what_a_user_wrote_trains_in_a_sweep_whose_trials_are_killed(tmp_path: Path, proof: Proof) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    keys = {"presets": ["own"], "settings": {**OUTSIDE, "doubled": 2}, "seeds": 1, "workers": 1}
    whole = harness.run(harness.write(tmp_path / "s.yaml", **keys), tmp_path / "whole")
    assert [(row["preset"], row["updates"]) for row in whole["rows"]] == [("own", 30)]
    what = "environment and learner of a file"
    proof(f"kill -9 in a sweep: {what}", survives(tmp_path, whole, 2, [], engine="ray", **keys))


def wait(look: Callable[[], Any]) -> Any:
    """Return what ``look`` returns once it is something."""
    until = time.monotonic() + 120
    while not (seen := look()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return seen


def test_ray_on_this_machine_makes_the_same_table_though_a_worker_is_lost(
    whole: dict[str, Any], tmp_path: Path, proof: Proof
) -> None:
    proof("a sweep on Ray and in processes of its own", survives(tmp_path, whole, 1, [], engine="ray", **GRID))


OWN_CLUSTER = """
import os, subprocess, sys
from tests.support.sweeps import small
from uavlab.sweeps.driver import open_engine
JOIN = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False); print('joined')"
with open_engine(small(engine="ray", workers=1)):
    import ray
    address = ray.get_runtime_context().gcs_address
    for own in ({}, {"RAY_AUTH_TOKEN": "2" * 32}, {"RAY_AUTH_MODE": "disabled"}):
        command = [sys.executable, "-c", JOIN, address]
        done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
        print(done.stdout.strip() or "refused", "InvalidAuthToken" in done.stderr)
"""


def test_a_cluster_that_starts_here_asks_for_a_token(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(harness.ROOT), os.environ.get("PYTHONPATH", "")])
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"PYTHONPATH": paths, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", OWN_CLUSTER], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["joined False", "refused True", "refused True"]
    assert [*tmp_path.glob(".ray*")] == []  # Ray stores no token of its own


@pytest.mark.soak
def test_a_cluster_of_two_nodes_makes_the_same_table_though_one_is_lost(
    whole: dict[str, Any], tmp_path: Path, proof: Proof
) -> None:
    with harness.ray_nodes(2) as (address, env, nodes):
        file = harness.write(tmp_path / "s.yaml", engine="ray", address=address, **GRID)
        record = harness.kills(file, tmp_path / "s", 3, [KILL, TERM], 2, nodes[1], **env)
        assert harness.results(record["table"]) == harness.results(whole)
        assert harness.left_alone(tmp_path / "s") == []
        refused = harness.start(file, tmp_path / "t", **{**env, "RAY_AUTH_TOKEN": "2" * 32})
        _, error = refused.communicate()
        assert (refused.returncode, "no Ray cluster at" in error) == (5, True), error
        assert not (tmp_path / "t").exists()
    lost = f"{3 - record['workers']} trials, {record['workers']} workers, 2 drivers and a node"
    proof("a sweep on a Ray cluster of two nodes", f"{lost} killed, {len(whole['rows'])} equal digests")
