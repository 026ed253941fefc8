"""What every test needs before torch is imported, which notebooks are checked, and the figures that proofs report."""

import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BEGAN = time.time()
FIGURES = pytest.StashKey[dict[str, dict[str, str]]]()

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")


class OnlyCommittedNotebooks:
    """A plugin, because a conftest's own hooks stop at its folder and outputs may lie anywhere."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="Write the figures that proofs report to this JSON file.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyCommittedNotebooks(), "only-committed-notebooks")
    config.stash[FIGURES] = {}


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Report a proof's figure, ``proof("kill -9", "300 of 300 resumed")``; call it after the assertions."""
    known = request.config.stash[FIGURES]
    return lambda promise, figure: known.update({promise: {"figure": figure, "test": request.node.nodeid}})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash[FIGURES]
    for promise, found in sorted(figures.items()):
        terminalreporter.write_line(f"proof: {promise}: {found['figure']}")
    if path := config.getoption("--figures"):
        from uavlab.app.machine import describe

        record = {
            "seconds": round(time.time() - BEGAN),
            "command": f"pytest {shlex.join(config.invocation_params.args)}",
            "machine": describe("cpu"),
        }
        path.write_text(json.dumps({**record, "figures": figures}, indent=1, sort_keys=True) + "\n")
