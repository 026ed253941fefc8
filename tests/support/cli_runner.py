"""Run the command line in this process, with the words that a person types."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

from tests.support.fixtures_config import TINY
from uavlab import cli

SETTINGS = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object of the last line."""
        return json.loads(self.out.splitlines()[-1], parse_constant=not_json)


def not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def uavlab(*arguments: str | Path) -> Result:
    """Run the command line in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    called = mock.patch.object(sys, "argv", ["/bin/uavlab", *map(str, arguments)])
    with called, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())
