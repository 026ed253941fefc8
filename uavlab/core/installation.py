"""Version of this installation, where it keeps its notebooks and records, and how its commands begin."""

import shlex
import sys
from pathlib import Path

VERSION = "0.2.0"
PACKAGE = Path(__file__).parents[1]
DATA = PACKAGE.parent / "uavlab_lab" / "data"  # which a wheel brings
INSTALLED = DATA.is_dir()
ROOT = DATA if INSTALLED else PACKAGE.parent
"""Folder of ``notebooks`` and ``figures``: the checkout, or their copy in an installed package."""
LAB = DATA.parent if INSTALLED else ROOT / "notebooks" / "uavlab_lab"  # the package beside the notebooks

command_line = False  # whether ``uavlab.cli.main`` runs in this process, which sets it


def invocation() -> str:
    """Return the ``uavlab`` command line of this process; empty in a notebook or another program."""
    called = Path(sys.argv[0])
    ours = called.stem == "uavlab" or called.parts[-2:] == ("uavlab", "__main__.py")
    return shlex.join(["uavlab", *sys.argv[1:]]) if ours else ""


def program() -> str:
    """Return how a command begins: ``uavlab``, or the script that runs ``uavlab.cli.main`` in this process."""
    return f"python {shlex.quote(sys.argv[0])}" if _by_script() else "uavlab"


def entry() -> list[str]:
    """Return what Python runs for a command like those of this process: the script of ``program``, or the package."""
    return [str(Path(sys.argv[0]).resolve())] if _by_script() else ["-m", "uavlab"]


def _by_script() -> bool:
    called = Path(sys.argv[0])
    named = called.suffix == ".py" and called.name not in ("__main__.py", "ipykernel_launcher.py")
    return named and command_line
