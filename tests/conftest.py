"""What every test needs before torch is imported, which notebooks are checked, and the figures that proofs report."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FIGURES = pytest.StashKey[dict[str, dict[str, str]]]()

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")


class OnlyCommittedNotebooks:
    """A plugin, because a conftest's own hooks stop at its folder and outputs may lie anywhere."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="Add the figures that proofs report to this JSON file.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyCommittedNotebooks(), "only-committed-notebooks")
    config.stash[FIGURES] = {}


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Report a proof's figure, ``proof("kill -9", "300 of 300 resumed")``; call it after the assertions."""
    known, test = request.config.stash[FIGURES], request.node.nodeid
    if " " in test:  # a figure of all cases of a test together
        test = test.partition("[")[0]
    return lambda promise, figure: known.update({promise: {"figure": figure, "test": test}})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash[FIGURES]
    for promise, found in sorted(figures.items()):
        terminalreporter.write_line(f"proof: {promise}: {found['figure']}")
    if path := config.getoption("--figures"):
        from uavlab.app.machine import describe

        machine = describe("cpu")
        known = json.loads(path.read_text())["figures"] if path.exists() else {}
        new = {promise: {**found, "commit": machine["commit"]} for promise, found in figures.items()}
        record = {"machine": machine, "figures": known | new}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
