"""What a user's own file registers is served by commands and by contract tests that do not name it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = "tests.support.outside"
OWN = "(reinforce or drift or doubled) and not compile"  # compiling takes a minute
LONG = [f"tests/proofs/test_{name}.py" for name in ("export", "fake_device", "gpu", "graph_runs")]
CONTRACTS = ["tests/contracts", *LONG]

SIZES = ("evaluate_episodes=4", "evaluate_every=3", "checkpoint_every=2", "worlds=4")
TINY = [word for size in SIZES for word in ("--set", size)]


FILE = """
from dataclasses import dataclass

import uavlab as ul
from tests.support.outside import Drift


@ul.env("own", learner="reinforce")
class Own(Drift):
    strength: float = 1.0

    def transition(self, state, action, noise):
        return super().transition(state, self.strength * action, noise)


@ul.baseline("own")
def pushed(env, state, noise):
    return 0.5 + 0 * noise[..., None]


if __name__ == "__main__":
    import own_file

    assert own_file.Own is Own and own_file is not __import__("__main__")
    from uavlab.cli import main

    main()
"""


def arguments(*words: str) -> list[str]:
    code = f"import sys, {OUTSIDE}; from uavlab.cli import main; sys.argv = ['uavlab', *sys.argv[1:]]; main()"
    return [sys.executable, *(["-c", code] if words[0] != "own_file.py" else []), *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(arguments(*words), cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_commands_know_what_a_file_registers(tmp_path: Path) -> None:
    assert "drift_quick" in command(tmp_path, "presets")
    assert "keeps the contract" in command(tmp_path, "check", "drift")
    assert "doubled" in command(tmp_path, "toggles")
    assert "wind" in command(tmp_path, "settings", "drift")
    assert "sum" in command(tmp_path, "bench", "adding", "--rounds", "3")
    assert "still" in command(tmp_path, "evaluate", "drift", "--policy", "still", "--episodes", "4")


def test_commands_train_what_a_file_registers(tmp_path: Path) -> None:
    six = [*TINY, "--updates", "6"]
    assert "complete: 6 updates" in command(
        tmp_path, "train", "drift_quick", *six, "--out", "run", "--toggle", "doubled=2", "--runs", "2"
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text())["values"]["learner"] == "reinforce"
    assert "goes on from update 6" in command(tmp_path, "resume", "run", "--updates", "8", "--set", "lr=0.005")
    assert "distance" in command(tmp_path, "evaluate", "run", "--episodes", "4")
    command(tmp_path, "fly", "run", "--out", "flight.html")
    assert '"frames":[' in (tmp_path / "flight.html").read_text()
    assert "1 run(s); open run/report.html" in command(tmp_path, "report", "run", "--episodes", "4")
    assert "complete: 6 updates" in command(
        tmp_path, "train", "leader_follower", *six, "--out", "second", "--set", "learner=reinforce"
    )


def test_a_killed_run_of_three_seeds_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    small = ["drift_quick", "--updates", "150", "--runs", "3", *TINY]
    command(tmp_path, "train", *small, "--out", "whole")
    words = arguments("train", *small, "--out", "run")
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    while process.poll() is None and len([*(tmp_path / "run" / "checkpoints").glob("ckpt-*")]) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert record(tmp_path / "run")["status"] == "running"
    assert "goes on from update" in command(tmp_path, "resume", "run")
    assert record(tmp_path / "run")["digest"] == record(tmp_path / "whole")["digest"]


def test_a_file_that_is_executed_and_imported(tmp_path: Path) -> None:
    (tmp_path / "own_file.py").write_text(FILE)
    small = [*TINY, "--updates", "4", "--set", "strength=0.5", "--out", "run"]
    assert "complete: 4 updates" in command(tmp_path, "own_file.py", "train", "own", *small)
    assert "complete: 6 updates" in command(tmp_path, "own_file.py", "resume", "run", "--updates", "6")
    assert "pushed" in command(tmp_path, "own_file.py", "evaluate", "own", "--policy", "pushed", "--episodes", "4")


def test_contracts_find_them(proof: Callable[[str, str], None]) -> None:
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", OUTSIDE, "-m", "not soak"]
    done = subprocess.run([*words, *CONTRACTS, "-k", OWN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    for name in ("drift", "reinforce", "doubled"):
        assert [line for line in passed if name in line.partition("[")[2]], name
    folders = ("uavlab", "notebooks/uavlab_lab", "tests/contracts")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    sources += [ROOT / name for name in LONG]
    assert [path for path in sources if re.search(r"drift_quick|\breinforce\b", path.read_text().lower())] == []
    proof(
        "an environment, a learner, a toggle, a suite and a preset from outside", f"{len(passed)} contract cases pass"
    )
