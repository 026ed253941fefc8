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


@pytest.mark.parametrize(("engine", "trials", "drivers"), [("local", 3, [KILL]), ("ray", 1, [])], ids=["local", "ray"])
def test_a_sweep_survives_kills(
    whole: dict[str, Any], tmp_path: Path, proof: Proof, engine: str, trials: int, drivers: list[signal.Signals]
) -> None:
    figure = survives(tmp_path, whole, trials, drivers, engine=engine, **GRID)
    proof(f"kill -9 of trials and drivers of a sweep, {engine}", figure)


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
