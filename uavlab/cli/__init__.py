"""The command line: ``uavlab`` and ``python -m uavlab``. Each command is a thin layer over the package.

Exit codes: 0 ok, 1 a notebook failed or the output pipe is closed, 2 settings, 3 files, 4 diverged, 5 input/output
or memory, 130 and 143 signals.
"""

from uavlab.cli import flights, measure, notebooks, runs
from uavlab.cli.base import cli, main

__all__ = ["cli", "flights", "main", "measure", "notebooks", "runs"]
