"""The index of names agrees with the registries of the package."""

import subprocess
import sys
from pathlib import Path

from uavlab.experiment.names import INDEX

TOOL = Path(__file__).parents[3] / "tools" / "names.py"


def test_the_index_lists_what_is_registered() -> None:
    # in a process of its own, because other tests register environments
    printed = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, check=True).stdout
    assert INDEX.read_text() == printed, "run `python tools/names.py --write`"
