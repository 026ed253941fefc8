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


def test_a_traceback_is_printed_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> NoReturn:
        error = FileError("f\x1b[2J")
        error.add_note("a note\x1b[2J")
        raise error

    monkeypatch.setattr(base, "cli", fail)
    assert uavlab().err == "FileError: f\\x1b[2J\n"
    first, *middle, note, _, last = uavlab("--traceback").err.splitlines()
    assert (first, note, last) == ("Traceback (most recent call last):", "a note\\x1b[2J", "FileError: f\\x1b[2J")
    assert any(", in fail" in line for line in middle)


DEEP = "a/" * 2000


@pytest.mark.parametrize("words", [("train", "leader_follower", "--out", DEEP), ("flights", "make", DEEP)])
def test_folders_nested_too_deeply_are_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = uavlab(*words)
    assert (ended.code, len(ended.err.splitlines()), list(tmp_path.iterdir())) == (5, 1, [])
    assert ended.err.endswith("free some memory or space, or check paths.\n")


def test_a_recursion_without_end_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> NoReturn:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(base, "cli", fail)
    assert (uavlab().code, len(uavlab().err.splitlines())) == (5, 1)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("evaluate finished --out folder", 2, "'folder' is a folder; name a file in it."),
        ("fly finished --out .", 2, "'.' is a folder; name a file in it."),
        ("profile leader_follower --out file/x.json", 5, "file/x.json: cannot be written (file is a file)"),
        ("bench update --out /proc/version/x.json", 5, "(/proc/version is a file)"),
        ("report finished --out folder", 2, "'folder' is a folder"),
        ("profile leader_follower --trace x.txt", 2, "'x.txt' must end in one of .json, .json.gz."),
        ("claims --out folder", 2, "'folder' is a folder"),
        ("flights predict finished log.csv --out folder", 2, "'folder' is a folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_first(
    words: str, code: int, message: str, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ended = uavlab(*(finished if word == "finished" else word for word in words.split()))
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_record_makes_its_folder(finished: Path, tmp_path: Path) -> None:
    assert uavlab("evaluate", finished, "--episodes", "2", "--out", "a/b/c.json").code == 0
    assert (tmp_path / "a" / "b" / "c.json").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("train", "`uavlab presets` lists them."),
        ("evaluate", "Runs here: mine, runs/first."),
        ("resume", "Runs here: mine, runs/first."),
        ("export mine", "See `uavlab export --help`."),
        ("train leader_follower --gamma 0.9", "Settings are given by --set NAME=VALUE. See `uavlab train --help`."),
        ("train leader_follower --set gamma 0.9", "(0.9). Settings are given by --set NAME=VALUE."),
        ("bench", "Missing argument 'SUITE'. Choose from: "),
        ("leader_follower train", "is a preset, expected a command, such as `uavlab train leader_follower`."),
        ("runs/first", "is a run, expected a command, such as `uavlab evaluate runs/first`."),
        ("train mine", "is a run, expected a preset; continue it by `uavlab resume mine`, or name its preset, lead"),
        ("fly frist", "neither a run nor a preset (did you mean 'runs/first'?)"),
        ("evaluate runs/frist", "is no run (did you mean 'runs/first'?); expected"),
        ("evaluate mine/config.json", "is no run (did you mean 'mine'?)"),
        ("evaluate elsewhere/mine", "is no run (did you mean 'mine'?)"),
        ("evaluate runs", "is no run; runs in it: runs/first."),
    ],
)
def test_the_next_step(words: str, hint: str, tmp_path: Path) -> None:
    for name in ("mine", "runs/first"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"preset": "leader_follower", "values": {}}')
    ended = uavlab(*words.split())
    assert ended.code in (2, 3)
    assert hint in ended.err
