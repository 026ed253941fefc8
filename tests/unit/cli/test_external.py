"""Commands on environments of others: what was read stands on stderr, and folders have names that are accepted."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_runner import uavlab
from tests.support.registries import registered
from uavlab.core.errors import FallbackWarning
from uavlab.core.registry import ENVIRONMENTS
from uavlab.experiment.run_dir import default_name, run_name
from uavlab.testing import check_env
from uavlab.workers.pool import close_all
from uavlab.workers.registration import external

FLEET = "tests.support.foreign:Fleet"
READ = (
    "3 agents in 1 group by groups=names, 3 numbers, 3 moves, masked; an agent may end before the others; horizon 1000 "
    "by default, as the environment does not say"
)
SHORT = [
    word
    for pair in ("worlds=2", "hidden=8", "evaluate_episodes=2", "workers=1", "copies=2", "rollout_steps=4", "horizon=6")
    for word in ("--set", pair)
]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [("settings", "--env"), ("settings",), ("train", "--dry-run", "--env")])
def test_what_was_read_is_printed_once_beside_json(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uavlab.cli.runs._estimate", lambda config: {})
    with registered():
        ended = uavlab(*words, f"{FLEET},mask=third", "--json")
    assert (ended.code, ended.err) == (0, f"read {FLEET},mask=third: {READ}\n")
    assert isinstance(ended.json, dict)


def test_check_prints_what_was_read_and_what_is_not_used() -> None:
    with registered(), pytest.warns(FallbackWarning, match="key 'Mask_of_moves' is not used as a mask"):
        ended = uavlab("check", "--env", f"{FLEET},mask=other", "--set", "horizon=6", "--set", "workers=1")
    close_all()
    (read,) = ended.err.splitlines()
    assert read.endswith("5 numbers, 3 moves; an agent may end before the others; horizon 6 by the setting horizon")
    assert ended.code == 0


def test_a_file_in_a_folder_trains_into_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.support.foreign import Fleet\n\ndef make():\n    return Fleet()\n")
    with registered():
        ended = uavlab("train", "--env", "./mine.py:make", "--updates", "1", *SHORT, "--set", "groups=each", "--json")
    close_all()
    assert (ended.code, ended.json["run"]) == (0, "runs/mine.py-make-0")
    record = json.loads(Path("runs/mine.py-make-0/run.json").read_text())
    assert record["environment"]["read"].startswith("3 agents in 3 groups by groups=each: 1 uav_0 (2 numbers, 3 moves)")
    follow = shlex.split(ended.out.partition("; next: ")[2].splitlines()[0])
    assert follow == ["uavlab", "--env", "./mine.py:make", "evaluate", "runs/mine.py-make-0"]
    with registered():
        assert uavlab(*follow[1:], "--episodes", "1").code == 0
    close_all()


def stranger(name: str) -> Any:
    """Return an environment of ``tests.support.strangers`` with short episodes."""
    return ENVIRONMENTS[external(f"tests.support.strangers:{name}")].kind(horizon=6, workers=1)


def test_chance_that_does_not_follow_the_seed_trains_as_not_exact() -> None:
    name, words = "Chance,kind=always", "draw all chance from self.np_random"
    options = ["--env", f"tests.support.strangers:{name}", "--learner", "mappo", "--updates", "1", *SHORT]
    with registered(), pytest.warns(FallbackWarning, match=words):
        ended = uavlab("train", *options, "--out", "chance")
    close_all()
    assert ended.code == 0
    reasons = json.loads(Path("chance/run.json").read_text())["not_exact"]
    assert any("reset(seed=7) gave other numbers" in reason for reason in reasons)
    with registered(), pytest.warns(FallbackWarning, match=words):
        assert check_env(stranger(name), worlds=2, steps=8).not_exact
    close_all()


def test_a_game_that_raises_at_closed_moves_is_checked_and_trained() -> None:
    with registered():
        report = check_env(stranger("Turns"), worlds=2, steps=8)
        ended = uavlab("train", "--env", "tests.support.strangers:Turns", "--updates", "1", *SHORT, "--out", "turns")
    close_all()
    assert (set(report.returns), report.syncs, ended.code) == ({5.0}, (), 0)


def test_a_file_without_a_factory_is_no_preset() -> None:
    ended = uavlab("train", "--env", "mine.py")
    assert ended.code == 2
    assert "--env 'mine.py': expected gymnasium:ID, " in ended.err


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("leader_follower", "leader_follower-3"),
        ("./mine.py:make", "mine.py-make-3"),
        ("../x/mine.py:make,size=2", "mine.py-make-size-2-3"),
        ("/home/me/.hidden/mine.py:make,map=a/b", "mine.py-make-map-a-b-3"),
        ("gymnasium:ALE/Pong-v5", "gymnasium-ALE-Pong-v5-3"),
        ("./.py:make", "py-make-3"),
        ("/ä/ö.py:ü", "py-3"),
        ("_:_", "run-3"),
    ],
)
def test_a_derived_name_is_accepted(preset: str, name: str) -> None:
    assert run_name(default_name(preset, 3)) == name


def test_long_names_stay_apart() -> None:
    names = [default_name(f"mine.py:{'make' * 50},size={size}", 2**31) for size in (1, 2)]
    assert names[0] != names[1]
    assert [run_name(name) for name in names] == names
