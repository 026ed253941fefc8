"""The commands ``train`` and ``resume`` as one rank of several: rank 0 speaks, the others print nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import SETTINGS, uavlab
from tests.support.fixtures_config import tiny
from uavlab.cli.runs import own_place
from uavlab.experiment import rank_runs
from uavlab.runtime.ranks import Ranks

Place = Callable[[int], None]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a function that makes this process a rank of two, which nothing connects."""

    def be(rank: int) -> None:
        values = {"WORLD_SIZE": 2, "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29_500}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return be


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the group by one rank, and return what would have connected it."""
    seen: list[Any] = []

    @contextmanager
    def connected(run: Any, device: str) -> Iterator[Ranks]:
        seen.append((run.rank_timeout_s, device))
        yield Ranks()

    monkeypatch.setattr(rank_runs, "connected", connected)
    return seen


def test_all_but_the_first_rank_print_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", before := sys.stderr)
    place(0)
    assert own_place() == (0, 2)
    assert sys.stderr is before
    place(1)
    assert own_place() == (1, 2)
    assert sys.stderr.name == sys.stdout.name == "/dev/null"
    sys.stderr.close()


def test_a_dry_run_says_what_all_ranks_have(place: Place) -> None:
    place(0)
    result = uavlab("train", "leader_follower", *SETTINGS, "--dry-run", "--json")
    assert result.code == 0
    assert (result.json["ranks"], result.json["batch_of_all_ranks"], result.json["worlds_of_all_ranks"]) == (2, 16, 8)
    assert "worlds_of_all_ranks    8" in result.out


def test_train_and_resume_connect_by_the_settings_of_the_run(place: Place, lone: list[Any], tmp_path: Path) -> None:
    place(0)
    result = uavlab("train", "leader_follower", *SETTINGS, "--set", "rank_timeout_s=7", "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert uavlab("resume", tmp_path / "run", "--updates", "9").code == 0
    assert lone == [(7.0, "cpu"), (7.0, "cpu")]


def test_a_run_that_torchrun_starts_again_goes_on(
    place: Place, lone: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(0)
    words = ["train", "leader_follower", *SETTINGS, "--out", tmp_path / "run"]
    assert uavlab(*words).code == 0
    again = uavlab(*words)
    assert (again.code, "not empty; choose a new folder, or" in again.err) == (2, True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    third = uavlab(*words)
    assert third.code == 0
    assert "and goes on from update 8" in third.out
    assert "holds a run with another seed" in uavlab(*words, "--seed", "3").err


def test_a_process_alone_has_no_totals() -> None:
    assert rank_runs.totals(tiny(), own_place()[1]) == {}
