"""Several ranks: equal to one process with all rows, and runs under torchrun that end together and go on together."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.contracts.test_ranks import TOLERANCE
from tests.proofs.test_survival import harness
from tests.support import gloo_twins
from tests.support.lockstep import CASES, distance, twins
from tests.support.rank_runs import SMALL, ended, launch, record, resume, train
from uavlab.core.errors import ConfigError, DivergedError, ResourceError
from uavlab.experiment.build import LEARNERS
from uavlab.experiment.run_dir import rank_folder, read_status
from uavlab.runtime.ranks import ALONE
from uavlab.storage import checkpoint

Proof = Callable[[str, str], None]
UPDATES = 100
BROKEN = [
    *[("masac", site) for site in ("__call__", "follow")],
    *[("masac, live marks", site) for site in ("weigh", "excess")],
    *[("mappo", site) for site in ("update_moments", "normalise", "row_weights", "update")],
    ("coma, live marks", "targets"),
    ("forecaster", "__call__"),
]
"""Functions that combine something, each with a case that shows when it does not."""


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_learn_what_one_process_learns_from_all_rows(name: str, proof: Proof) -> None:
    gap = twins(name).train(UPDATES)
    assert gap < TOLERANCE
    proof(f"two ranks and one process with all rows, {name}", f"equal up to {gap:.0e} after {UPDATES} updates")


@pytest.mark.parametrize(("name", "deaf"), BROKEN)
def test_what_ranks_do_not_combine_is_noticed(name: str, deaf: str) -> None:
    pair = twins(name, deaf)
    assert pair.train(10) > 1e3 * TOLERANCE
    assert deaf in pair.places[0].heard


def test_each_place_that_combines_has_a_broken_variant() -> None:
    heard = set()
    for name in CASES:
        (pair := twins(name)).train(2)
        heard |= pair.places[0].heard
    assert heard == {deaf for _, deaf in BROKEN}


BY_PROCESSES = ("masac", "mappo", "ippo", "coma, live marks", "forecaster")  # a case of each learner


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., float]:
    """Train cases by two processes in a gloo group, and here with all rows; return a function for how far they end."""
    folder = tmp_path_factory.mktemp("gloo")
    jobs = [*((name, UPDATES, "") for name in BY_PROCESSES), ("masac", 10, "__call__")]
    process = launch(str(folder), json.dumps(jobs), script="gloo_twins.py")
    alone = {(name, deaf): gloo_twins.train(name, updates, ALONE) for name, updates, deaf in jobs}
    assert ended(process, 0.0).code == 0

    def gap(name: str, deaf: str = "") -> float:
        return max(distance(state, alone[name, deaf]) for state in gloo_twins.read(folder, name, deaf))

    return gap


@pytest.mark.parametrize("name", BY_PROCESSES)
def test_two_processes_learn_what_one_learns_from_all_rows(name: str, ends: Callable, proof: Proof) -> None:
    assert {CASES[each][0] for each in BY_PROCESSES} == set(LEARNERS)
    assert ends(name) < TOLERANCE
    figure = f"equal up to {ends(name):.0e} after {UPDATES} updates in float64"
    proof(f"two processes by gloo and one with all rows, {name}", figure)


def test_a_process_that_steps_by_its_own_gradients_is_noticed(ends: Callable) -> None:
    assert ends("masac", "__call__") > 1e3 * TOLERANCE


FAULTS = {
    "nan": (
        "DivergedError: training: reward of run 0, world 0, agent 0 is nan at update {update}",
        DivergedError.exit_code,
    ),
    "memory": ("ResourceError: out of memory: tried to allocate 1 TiB", ResourceError.exit_code),
    "exception": ("ValueError: the simulator has no wind", 1),
    "kill": ("Signal 9 (SIGKILL)", -9),
}
"""What torchrun prints of the rank that fails: its reason and its exit code."""


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_rank_that_fails_ends_all_at_once(kind: str, count: int, tmp_path: Path, proof: Proof) -> None:
    reason, code = FAULTS[kind]
    for number in range(count):
        culprit, update, folder = (number + 1) % 2, 6 + number % 2, tmp_path / str(number)
        # a time limit that is never reached, else the reason would name it
        launched = train(folder, fault=f"{kind}:{culprit}:{update}", settings={**SMALL, "rank_timeout_s": 900.0})
        other = record(folder, 1 - culprit)
        assert other["status"] == "failed"
        assert other["reason"].startswith("another rank ended (")
        assert f"this is rank {1 - culprit} of 2." in other["reason"]
        assert reason.format(update=update) in launched.err.partition("FAILED")[2]  # the summary of torchrun
        assert f"exitcode  : {code} " in launched.err
        assert checkpoint.newest(folder / "checkpoints").step == 4
    proof(f"one rank of two fails: {kind}", f"{count} times, the other ended at once, and torchrun said why")


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_silent_rank_ends_the_run_after_the_time_limit(count: int, tmp_path: Path, proof: Proof) -> None:
    for number in range(count):
        folder, silent = tmp_path / str(number), (number + 1) % 2
        process = launch(*words(folder, rank_timeout_s=5.0), fault=f"stop:{silent}:6")
        while process.poll() is None and status(folder, 1 - silent) != "failed":
            time.sleep(0.1)
        for child in psutil.Process(process.pid).children():
            child.kill()  # torchrun itself waits 30 s for a process that was stopped
        process.communicate()
        reason = record(folder, 1 - silent)["reason"]
        assert reason.startswith("another rank did not answer for 5 s (")
    proof("one rank of two is stopped", f"{count} times, the other ended after the time limit of 5 s")


def words(folder: Path, **more: Any) -> list[str]:
    settings = {**SMALL, **more}
    return ["train", "leader_follower", *(f"--set={k}={v}" for k, v in settings.items()), "--out", str(folder)]


def status(folder: Path, rank: int = 0) -> str:
    return read_status(rank_folder(folder, rank)).get("status", "")


def test_torchrun_starts_a_run_again_to_the_same_bits(tmp_path: Path, proof: Proof) -> None:
    train(tmp_path / "whole")
    launched = train(tmp_path / "run", fault="kill:0:6", restarts=1)
    assert launched.code == 0
    assert "and goes on from update 4" in launched.out
    for rank in range(2):
        assert record(tmp_path / "run", rank)["digest"] == record(tmp_path / "whole", rank)["digest"]
    proof("torchrun starts ranks again", "a killed rank; both go on to the same bits")


def change(folder: Path) -> dict[str, torch.Tensor]:
    """Return how parameters changed between the two checkpoints of a run."""
    first, last = (checkpoint.load(folder / "checkpoints" / checkpoint.folder_name(step)) for step in (4, 8))
    now, before = last.groups["learner"], first.groups["learner"]
    return {name: now[name] - before[name] for name in now if name.endswith("parameter")}


@pytest.mark.parametrize("traced", ["1", pytest.param("", marks=pytest.mark.soak)])
def test_compiled_ranks_learn_what_others_learn(traced: str, tmp_path: Path, proof: Proof) -> None:
    train(tmp_path / "plain")
    launched = train(tmp_path / "compiled", settings={**SMALL, "compile": "default"}, TRACED=traced)
    assert launched.code == 0, launched.err
    assert record(tmp_path / "compiled")["toggles"]["fell_back"] == {}
    assert len({record(tmp_path / "compiled", rank)["learner_digest"] for rank in range(2)}) == 1
    pairs = zip(change(tmp_path / "compiled").values(), change(tmp_path / "plain").values(), strict=True)
    gap = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
    assert gap < 1e-3
    proof("compiled updates of two ranks", "changes of parameters within 1e-3 of those without compilation")


def test_a_rank_that_fails_ends_compiled_code_of_the_others(tmp_path: Path) -> None:
    train(tmp_path / "run", fault="exception:1:6", settings={**SMALL, "compile": "default"}, TRACED="1")
    assert record(tmp_path / "run")["reason"].startswith("another rank ended (")


def test_a_signal_ends_all_ranks_after_one_update(tmp_path: Path, proof: Proof) -> None:
    process, began = launch(*words(tmp_path / "run", updates=100_000)), time.monotonic()
    while status(tmp_path / "run") != "running" or not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    ended(process, began)
    records = [record(tmp_path / "run", rank) for rank in range(2)]
    assert {each["status"] for each in records} == {"interrupted"}
    assert len({each["update"] for each in records}) == len({each["learner_digest"] for each in records}) == 1
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").step == records[0]["update"]
    assert resume(tmp_path / "run", f"--updates={records[0]['update'] + 2}", ranks=3).code == 0
    record_3 = record(tmp_path / "run", 2)
    assert (record_3["status"], record_3["ranks"]) == ("complete", 3)
    proof("SIGTERM to torchrun", "two ranks end after one update, and go on as three")


def test_ranks_with_other_settings_create_nothing(tmp_path: Path) -> None:
    launched = train(tmp_path / "run", fault="settings:1:0")
    assert "ConfigError: ranks 0 and 1 have other settings: lr 0.001 and 0.5; start all by one command." in launched.err
    assert f"exitcode  : {ConfigError.exit_code} " in launched.err
    assert not (tmp_path / "run").exists()


def test_a_learner_of_a_users_own_file_is_trained_by_ranks(tmp_path: Path) -> None:
    settings = {"updates": 4, "evaluate_every": 2, "evaluate_episodes": 3, "checkpoint_every": 2, "device": "cpu"}
    launched = train(tmp_path / "run", "drift_quick", settings, OUTSIDE="1")
    assert launched.code == 0, launched.err
    assert "RankError" not in launched.err
    records = [record(tmp_path / "run", rank) for rank in range(2)]
    assert {each["status"] for each in records} == {"complete"}
    assert records[0]["learner_digest"] == records[1]["learner_digest"]
    assert launched.out.count("the run is kept in") == 1  # by rank 0 alone


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_ranks_killed_at_random_end_in_the_same_bits(count: int, proof: Proof) -> None:
    figures = harness("tests.support.rank_kills", str(count))
    assert figures["other"] == [], f"seed {figures['seed']}"
    assert figures["complete"]
    assert sum(figures["kills"].values()) == count
    proof(
        "kill -9 of a rank, or of torchrun",
        f"{figures['kills']} in {figures['runs']} runs, all went on to the same bits",
    )
