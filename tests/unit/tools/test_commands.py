"""The page of commands is current."""

import subprocess
import sys

from tools import commands


def test_the_page_is_that_of_the_commands() -> None:
    """A new process has no commands and suites that other tests registered."""
    call = [sys.executable, "-m", "tools.commands"]
    printed = subprocess.run(call, cwd=commands.PAGE.parents[1], capture_output=True, text=True, check=True).stdout
    assert printed == commands.PAGE.read_text(encoding="utf-8"), "run `python -m tools.commands --write`"
