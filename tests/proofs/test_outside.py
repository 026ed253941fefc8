"""Commands serve what a user's own file registers, and contract tests collect it, though no file lists it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTSIDE = "tests.support.outside"
OWN = "(reinforce or drift or doubled) and not compile"  # compiling takes a minute, and is in the contracts


def command(folder: Path, *words: str) -> str:
    code = f"import sys, {OUTSIDE}; from uavlab.cli import main; sys.argv = ['uavlab', *sys.argv[1:]]; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_serve_what_a_file_registers(tmp_path: Path) -> None:
    small = [
        "--updates",
        "6",
        "--set",
        "evaluate_episodes=4",
        "--set",
        "evaluate_every=3",
        "--set",
        "checkpoint_every=2",
    ]
    assert "drift_quick" in command(tmp_path, "presets")
    assert "keeps the contract" in command(tmp_path, "check", "drift")
    assert "doubled" in command(tmp_path, "toggles")
    trained = command(tmp_path, "train", "drift_quick", "--out", "run", *small, "--toggle", "doubled=2", "--runs", "2")
    assert "complete: 6 updates" in trained
    assert json.loads((tmp_path / "run" / "config.json").read_text())["values"]["learner"] == "reinforce"
    assert "goes on from update 6" in command(tmp_path, "resume", "run", "--updates", "8", "--set", "lr=0.005")
    assert "distance" in command(tmp_path, "evaluate", "run", "--episodes", "4")
    second = command(tmp_path, "train", "leader_follower", "--out", "second", "--set", "learner=reinforce", *small)
    assert "complete: 6 updates" in second
    assert "wind" in command(tmp_path, "settings", "drift")
    assert "sum" in command(tmp_path, "bench", "adding", "--rounds", "3")


def test_contracts_find_them(proof: Callable[[str, str], None]) -> None:
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", OUTSIDE, "-m", "not soak"]
    done = subprocess.run([*words, "tests/contracts", "-k", OWN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    for name in ("drift", "reinforce", "doubled"):
        assert [line for line in passed if name in line.partition("[")[2]], name
    sources = [path for folder in ("uavlab", "tests/contracts") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in sources if re.search(r"drift_quick|\breinforce\b", path.read_text().lower())] == []
    proof(
        "an environment, a learner, a toggle, a suite and a preset from outside", f"{len(passed)} contract cases pass"
    )
