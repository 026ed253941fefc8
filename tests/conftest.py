"""What every test needs before torch is imported, which notebooks are checked, and the figures that proofs report."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a background job of a shell; the tests need Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


class OnlyCommittedNotebooks:
    """A plugin, because a conftest's own hooks stop at its folder and outputs may lie anywhere."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="Add the figures that proofs report to this JSON file.")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyCommittedNotebooks(), "only-committed-notebooks")


@pytest.fixture
def proof(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Report a proof's figure, ``proof("kill -9", "300 of 300 resumed")``; call it after the assertions."""
    return lambda promise, figure: record_property("proof", [promise, figure])


def proofs(reports: Iterable[pytest.TestReport]) -> dict[str, dict[str, str]]:
    """Gather what tests reported, in whatever process they ran, with the test that did."""
    found = {}
    for report in reports:
        # names of cases that a shell would split mean a figure of all cases together
        test = report.nodeid.partition("[")[0] if " " in report.nodeid else report.nodeid
        told = [value for name, value in report.user_properties if name == "proof"]
        found |= {promise: {"figure": figure, "test": test} for promise, figure in told}
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = proofs(terminalreporter.getreports("passed"))
    for promise, found in sorted(figures.items()):
        terminalreporter.write_line(f"proof: {promise}: {found['figure']}")
    if path := config.getoption("--figures"):
        from uavlab.storage.machine import describe

        machine = describe("cpu")
        known = json.loads(path.read_text())["figures"] if path.exists() else {}
        new = {promise: {**found, "commit": machine["commit"]} for promise, found in figures.items()}
        record = {"machine": machine, "figures": known | new}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
