"""What all commands share: help, JSON, the code of each error, and signals, which leave a run that goes on."""

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

from tests.support.cli_runner import SETTINGS, Ended, uavlab
from uavlab import __version__, cli
from uavlab.cli import base
from uavlab.core.errors import FileError
from uavlab.storage import checkpoint


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_help_and_version() -> None:
    assert uavlab("--version").out.endswith(f", version {__version__}\n")
    shown = uavlab("-h")
    assert shown.code == 0
    assert all(name in shown.out for name in cli.cli.commands)
    for name, command in cli.cli.commands.items():
        assert uavlab(name, "--help").code == 0
        assert uavlab(name, "--no-such-option").code == 2
        assert command.help, name


def test_every_command_can_answer_in_json() -> None:
    single = {name: command for name, command in cli.cli.commands.items() if not isinstance(command, click.Group)}
    groups = [group for group in cli.cli.commands.values() if isinstance(group, click.Group)]
    for name, command in {**single, **{n: c for group in groups for n, c in group.commands.items()}}.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) is (name != "lab"), name  # `lab` becomes another program


def test_a_command_that_is_none() -> None:
    ended = uavlab("trian")
    assert (ended.code, "Traceback" in ended.err) == (2, False)


def test_each_error_has_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((FileError("f"), 3), (OSError(28, "full"), 5), (KeyboardInterrupt(), 130)):

        def fail(*given: Any, error: BaseException = error, **named: Any) -> NoReturn:
            raise error

        monkeypatch.setattr(base, "cli", fail)
        assert uavlab().code == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_that_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "uavlab", "train", "leader_follower", *SETTINGS, "--set", "updates=1000000"]
    process = subprocess.Popen(
        [*command, "--set", "evaluate_every=1000000", "--out", "run", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in itertools.count():
            if (tmp_path / "run" / "metrics.jsonl").exists():
                break
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        ended = Ended(0, *process.communicate(timeout=60))
    finally:
        process.kill()
    assert process.returncode == code
    assert (ended.told["status"], ended.told["score"]) == ("interrupted", [None])
    reached = ended.told["updates"]
    assert checkpoint.newest(tmp_path / "run" / "checkpoints").step == reached
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    assert uavlab("evaluate", "run", "--episodes", "2").code == 0
    resumed = uavlab("resume", "run", "--updates", str(reached + 3), "--json")
    assert (resumed.code, resumed.told["status"], resumed.told["updates"]) == (0, "complete", reached + 3)
