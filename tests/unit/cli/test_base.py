"""Help, JSON output and exit codes of all commands."""

from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

from tests.support.cli_runner import uavlab
from uavlab import __version__, cli
from uavlab.cli import base
from uavlab.core.errors import FileError


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def test_help_and_version() -> None:
    assert uavlab("--version").out.endswith(f", version {__version__}\n")
    ended = uavlab("-h")
    assert ended.code == 0
    assert all(name in ended.out for name in cli.cli.commands)
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


DEEP = "a/" * 2000


@pytest.mark.parametrize("words", [("train", "leader_follower", "--out", DEEP), ("flights", "make", DEEP)])
def test_folders_nested_too_deeply_are_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = uavlab(*words)
    assert (ended.code, len(ended.err.splitlines()), list(tmp_path.iterdir())) == (2, 1, [])
    assert ended.err.endswith(": 2,000 nested folders; expected at most 200.\n")


def test_a_recursion_without_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> NoReturn:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(base, "cli", fail)
    assert (uavlab().code, len(uavlab().err.splitlines())) == (5, 1)
