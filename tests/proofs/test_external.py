"""Environments that nobody here wrote are learned, evaluated and changed like ours; a resumed run starts anew."""

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

import uavlab as ul
from tests.support.registries import registered_outside
from uavlab.workers.pool import close_all
from uavlab.workers.registration import external

ROOT = Path(__file__).parents[2]
MEADOW = "tests.support.strangers:Meadow"
SMALL: dict[str, Any] = {"worlds": 6, "workers": 2, "copies": 24, "evaluate_episodes": 3, "hidden": 16}
OFF_POLICY = {"learning_starts": 48, "batch": 16, "capacity": 1000}
GONE = "worlds without a copy were truncated where they stood, and started again"
ON_POLICY = {"learner": "mappo", "rollout_steps": 8}


def run_of(name: str, updates: int, /, **settings: Any) -> ul.Run:
    given = {**SMALL, "evaluate_every": 10, "checkpoint_every": 10, "log_every": 5, **settings}
    return ul.start(name, updates=updates, settings=given)


def command(folder: Path, *words: str, code: int = 0) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = (sys.executable, "-m", "uavlab", *words)
    done = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def words_of(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def test_a_killed_run_goes_on_and_is_listed_as_not_exact(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    small = words_of({**SMALL, **OFF_POLICY, "evaluate_every": 50, "checkpoint_every": 10})
    train = ["train", "--env", f"{MEADOW},moves=false", "--updates", "100", *small]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "uavlab", *train, "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and len([*(tmp_path / "run" / "checkpoints").glob("ckpt-*")]) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert record(tmp_path / "run")["status"] == "running"
    refused = command(tmp_path, "resume", "run", code=2)
    assert f"--env {MEADOW},moves=false COMMAND" in refused  # a folder starts no code of its own
    assert "goes on from update" in command(tmp_path, "--env", f"{MEADOW},moves=false", "resume", "run")
    resumed = record(tmp_path / "run")
    assert (resumed["status"], resumed["update"], resumed["environment"]["gone"]) == ("complete", 100, SMALL["worlds"])
    assert resumed["not_exact"] == [f"{MEADOW},moves=false: {GONE}"]
    assert "return" in command(tmp_path, "--env", f"{MEADOW},moves=false", "evaluate", "run", "--episodes", "4")
    proof("a killed run of an external environment", "its worlds are truncated and start again")


def test_an_evaluation_beside_training_takes_no_copy_away() -> None:
    name = external(MEADOW, moves=False)
    for prefetch in ("off", "overlap"):
        flow = {**OFF_POLICY, "prefetch": prefetch, "evaluate_every": 1, "evaluate_episodes": 80}
        run = run_of(name, 6, **flow)
        for _ in run:
            ul.evaluate(run, episodes=30)
        assert "gone" not in run.source.record()
        assert run.source.inexact() == []


def test_changes_within_a_run_are_those_of_a_resumed_one(tmp_path: Path) -> None:
    name = external(MEADOW, moves=False)
    changed = {"worlds": 9, "workers": 1, "lr": 1e-3}
    run = ul.train(name, updates=10, settings={**SMALL, **OFF_POLICY}, out=tmp_path / "run", progress=False)
    ul.resume(tmp_path / "run", updates=20, settings=changed, progress=False)
    live = run_of(name, 20, evaluate_every=500, checkpoint_every=1000, log_every=100, **OFF_POLICY)
    for progress in live:
        if progress.number == 10:
            live.change(**changed)
    assert live.config.env.workers == 1
    assert live.source.worlds.obs.shape[0] == 9
    resumed = ul.load(tmp_path / "run", which="last")
    assert (resumed.parameters == live.learner.parameters()).all()
    assert run.number == 10


def test_a_learner_from_outside_learns_in_an_external_environment_and_resumes(tmp_path: Path) -> None:
    with registered_outside():
        name = external(MEADOW, moves=False)
        own = {"learner": "reinforce", **{key: value for key, value in SMALL.items() if key != "hidden"}}
        own |= {"evaluate_every": 1}  # so that no run is scored because it ends
        whole = ul.train(name, updates=8, settings=own, progress=False)
        ul.train(name, updates=3, settings=own, out=tmp_path / "run", progress=False)
        close_all()
        resumed = ul.resume(tmp_path / "run", updates=8, progress=False)
        assert (resumed.digest, resumed.status) == (whole.digest, "complete")  # whole episodes: no world waits
        assert ul.evaluate(tmp_path / "run", episodes=3).keys() >= {"return", "grazer_return", "wolf_return"}


def test_installed_environments_come_back_by_their_names(tmp_path: Path) -> None:
    small = words_of({**SMALL, **ON_POLICY, "evaluate_every": 2, "learner": "mappo"})
    command(tmp_path, "train", "--env", "pettingzoo:mpe2.simple_tag_v3", "--updates", "2", *small, "--out", "run")
    assert "goes on from update 2" in command(tmp_path, "resume", "run", "--updates", "3")
    shown = command(tmp_path, "evaluate", "run", "--episodes", "3")
    assert "adversary_return" in shown
    command(tmp_path, "fly", "run", "--out", "flight.html")
    command(tmp_path, "export", "run", "policy.pt2")
    play = command(tmp_path, "cross-play", "run", "--policy", "random", "--episodes", "3")
    assert "score of adversary by" in play
    command(tmp_path, "evaluate", "gymnasium:CartPole-v1", "--policy", "random", "--episodes", "3")


def learned(name: str, updates: int, **settings: Any) -> tuple[ul.Scores, ul.Scores]:
    """Return the scores of random actions, and of a team that trained."""
    run = ul.start(name, updates=updates, settings={"evaluate_every": 10, "evaluate_episodes": 50, **settings})
    for _ in run:
        pass
    return ul.evaluate(name, policy="random", episodes=200), ul.evaluate(run, episodes=200)


@pytest.mark.parametrize(
    ("module", "arguments", "updates", "chance", "goal"),
    [
        ("simple_spread_v3", {}, 50, -24.5, -22.0),  # three agents cover three landmarks
        ("simple_speaker_listener_v4", {"continuous_actions": True}, 60, -30.0, -24.0),  # one speaks, the other moves
    ],
    ids=["moves", "continuous"],
)
def test_a_team_of_pettingzoo_learns(
    module: str,
    arguments: dict[str, Any],
    updates: int,
    chance: float,
    goal: float,
    proof: Callable[[str, str], None],
) -> None:
    """The return of 25 steps, minus distances, is far above that of random actions; goals hold for seeds 0, 1, 2."""
    name = external(f"pettingzoo:mpe2.{module}", **arguments)
    random, team = learned(name, updates, learner="mappo", worlds=32)
    assert random["return"]["high"] < chance
    assert team["return"]["mean"] > goal
    kind = "continuous" if arguments else "moves"
    text = "{:.1f} -> {:.1f}".format(random["return"]["mean"], team["return"]["mean"])
    proof(f"mpe2.{module}, {kind}: return of random actions and after {updates} updates of MAPPO", text)


def test_compiled_updates_leave_the_stepping_out(only_traced: None) -> None:
    run = run_of(external(MEADOW, moves=False), 3, compile="default", evaluate_every=100, **OFF_POLICY)
    for _ in run:
        pass
    assert run.rt.fell_back == {}
