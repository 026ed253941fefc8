"""What goes wrong in an external environment ends a run in one line, which goes on once the environment is mended."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import uavlab as ul
from tests.support.cli_runner import Result, uavlab
from tests.support.registries import registered
from uavlab.core.errors import ConfigError, FallbackWarning
from uavlab.workers.pool import close_all

NAME = "mine.py:make"
FILE = """
from pathlib import Path
from tests.support.strangers import Meadow

class Mine(Meadow):
    def step(self, actions):
        self.fault = {fault!r} * Path("run/checkpoints").exists()  # not before training
        return super().step(actions)

def make():
    return Mine(at=6)
"""
SETTINGS: dict[str, Any] = {
    **{"rollout_steps": 2, "worlds": 4, "workers": 2, "hidden": 8, "timeout_s": 2.0},
    **{"evaluate_every": 100, "evaluate_episodes": 2, "checkpoint_every": 1},
}
UPDATES = 4  # the third update makes the steps 5 and 6
CLOSED = r"step raised ValueError: the meadow is closed at strangers\.py:\d+\. For its traceback: .*"
LOST = r"the worker was lost, because {}; expected an answer within timeout_s=2\. Set a longer one, .*"
FAULTS = {
    "raise": CLOSED,
    "shape": r"\w+ observed \d numbers; expected \d, as its space says: return the same shape .*",
    "fewer": "step returned no reward or end of wolf_0, which had not ended; expected .*: keep the agent, .*",
    "other": "step returned the new agent dog_0; expected those of possible_agents alone: list it there, .*",
    "die": LOST.format("it ended with exit code 3"),
    "hang": LOST.format("it did not answer in time"),
    "nan": r"training: reward of run 0, world \d, agent 2 is nan at update 3; expected a finite number .*",
}

PASSED: set[str] = set()  # faults that ended as they should


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in a folder of the test's own, which the environment's code comes from."""
    monkeypatch.chdir(tmp_path)
    close_all()
    with registered(), warnings.catch_warnings(action="ignore", category=FallbackWarning):
        yield
    close_all()


def write(fault: str) -> None:
    Path("mine.py").write_text(FILE.format(fault=fault))
    close_all()  # workers have the code with which they started


def train(folder: str, *before: str) -> Result:
    words = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return uavlab(*before, "train", "--env", NAME, "--updates", str(UPDATES), *words, "--out", folder)


def record(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "run.json").read_text())


def line(fault: str) -> str:
    """Return the pattern of the message of a fault."""
    text = FAULTS[fault]
    return text if fault == "nan" else rf"mine\.py:make: world \d, step 5, worker \d: {text}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_fails_goes_on_after_its_environment_is_mended(
    fault: str, proof: Callable[[str, str], None]
) -> None:
    write(fault)
    ended = train("run")
    kind, code, status = ("DivergedError", 4, "diverged") if fault == "nan" else ("ConfigError", 2, "failed")
    *_, last = ended.err.splitlines()
    assert ended.code == code
    assert re.fullmatch(f"{kind}: {line(fault)}", last), last
    assert "Traceback" not in ended.err
    failed = record("run")
    assert (failed["status"], failed["update"], f"{kind}: {failed['reason']}") == (status, 2, last)
    write("")
    assert "goes on from update 2" in uavlab("--env", NAME, "resume", "run").out
    mended = record("run")
    assert (mended["status"], mended["update"], mended["environment"]["gone"]) == ("complete", UPDATES, 4)
    assert mended["not_exact"] == [f"{NAME}: worlds without a copy were truncated where they stood, and started again"]
    PASSED.add(fault)
    proof("faults of an external environment in the middle of training", f"{len(PASSED)} kinds, each one line")


def test_python_and_the_command_line_show_the_traceback() -> None:
    write("raise")
    ended = train("run", "--traceback")
    assert 'raise ValueError("the meadow is closed")' in ended.err
    assert ended.err.splitlines()[-1].startswith("ConfigError: mine.py:make: world")
    shutil.rmtree("run")
    with pytest.raises(ConfigError, match="the meadow is closed") as caught:
        ul.train(NAME, updates=UPDATES, settings=SETTINGS, out="run", progress=False)
    assert 'raise ValueError("the meadow is closed")' in "\n".join(caught.value.__notes__)
