"""Commands are recorded and recommended as they would be typed."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from uavlab.cli import cli
from uavlab.core import installation
from uavlab.core.errors import ConfigError, DivergedError, FileError
from uavlab.experiment.config import configure
from uavlab.experiment.names import run_folder
from uavlab.experiment.run_dir import read_config, require_empty
from uavlab.runtime.finite_check import require_finite

COMMAND = re.compile(rf"\buavlab ({'|'.join(cli.commands)})\b")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/x/.venv/bin/uavlab", "train", "a b"], "uavlab train 'a b'"),
        (["/x/uavlab/__main__.py", "lab"], "uavlab lab"),
        (["/x/pytest/__main__.py", "-q"], ""),
        (["/x/ipykernel_launcher.py", "-f", "k.json"], ""),
    ],
)
def test_the_command_is_recorded_as_it_would_be_typed(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert installation.invocation() == command


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/x/.venv/bin/uavlab", "uavlab"),
        ("/x/uavlab/__main__.py", "uavlab"),
        ("/x/ipykernel_launcher.py", "uavlab"),
        ("spread.py", "python spread.py"),
        ("my files/spread.py", "python 'my files/spread.py'"),
    ],
)
def test_the_program_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch, called: str, program: str) -> None:
    monkeypatch.setattr(sys, "argv", [called, "train"])
    monkeypatch.setattr(installation, "command_line", True)
    assert installation.program() == program
    script = [] if program == "uavlab" else [str(Path(called).resolve())]
    assert installation.entry() == (script or ["-m", "uavlab"])
    monkeypatch.setattr(installation, "command_line", False)  # a script that trains has no commands
    assert installation.program() == "uavlab"
    assert installation.entry() == ["-m", "uavlab"]


def test_a_checkout_has_its_own_notebooks_and_records() -> None:
    assert not installation.INSTALLED
    assert list((installation.ROOT / "notebooks").glob("*_tour.ipynb"))
    assert (installation.ROOT / "figures" / "records" / "quick.json").exists()


def modules() -> list[Path]:
    """Return the modules of both packages."""
    return [*installation.PACKAGE.rglob("*.py"), *(installation.ROOT / "notebooks" / "uavlab_lab").rglob("*.py")]


def fixed_commands(source: str) -> list[str]:
    """Return the strings of a module, apart from docstrings, that advise a command of ``uavlab``."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in statements and COMMAND.search(node.value)]


def test_advice_names_the_program_that_runs() -> None:
    fixed = {str(path): fixed_commands(path.read_text()) for path in modules()}
    assert [text for texts in fixed.values() for text in texts] == [
        *("uavlab train", "uavlab claims --measure ")  # in rows of records
    ]


def test_fixed_advice_is_caught() -> None:
    source = '"""uavlab train"""\nraise X(f"try uavlab train {x}; {program()} check")'
    assert fixed_commands(source) == ["try uavlab train "]
    assert fixed_commands('raise X("import uavlab first")') == []


PLAIN = {"program()", "preset", "config.preset", "text", "rates", "'evaluate' if run.done else 'resume'"}
BESIDE = {"names", "good", "own"}  # after a command, not part of it


def unquoted(source: str) -> list[str]:
    """Return what stands in advised commands of a module without quotes, such as a folder that may hold a blank."""
    strings = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)]
    values = [[ast.unparse(v.value) for v in node.values if isinstance(v, ast.FormattedValue)] for node in strings]
    after = [each[each.index("program()") :] for each in values if "program()" in each]
    return [value for each in after for value in each if value not in PLAIN | BESIDE and not value.startswith("shlex.")]


def test_advised_commands_quote_their_arguments() -> None:
    each_file = {str(path): unquoted(path.read_text()) for path in modules()}
    assert {name: values for name, values in each_file.items() if values} == {}
    assert unquoted('f"{a}: `{program()} resume {folder}`, {shlex.quote(x)}"') == ["folder"]


def test_a_file_of_a_user_advises_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["spread.py", "evaluate", "leader_follower"])
    monkeypatch.setattr(installation, "command_line", True)
    with pytest.raises(ConfigError, match=r"train it first: python spread\.py train leader_follower"):
        run_folder("leader_follower")
    with pytest.raises(ConfigError, match=r"All settings: python spread\.py settings leader_follower\."):
        configure("leader_follower", {"nonsense": 1})
    (tmp_path / "run.json").touch()
    with pytest.raises(ConfigError, match=r"or `python spread\.py resume "):
        require_empty(tmp_path, run=True)
    with pytest.raises(FileError, match=r"a folder that `python spread\.py train` made"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(DivergedError, match=r"see `python spread\.py check PRESET`"):
        require_finite({"reward": (torch.tensor([torch.nan]), "R")})
