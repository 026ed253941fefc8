"""Settings needed before torch is imported, the choice of notebooks, shared fixtures, and the figures of proofs."""

import gc
import json
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
PLACE = ("commit", "cpu", "cores", "torch", "python")  # of a figure of a proof

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "inductor"))  # shared by all runs
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a background job of a shell; the tests need Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


class OnlyCommittedNotebooks:
    """A plugin, because a conftest's own hooks stop at its folder and outputs may lie anywhere."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="Add the figures that proofs report to this JSON file.")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # a collection then passes over torch and all tests; some tests collect often


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyCommittedNotebooks(), "only-committed-notebooks")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes notebooks into the test's folder."""
    from tests.support.tiny_notebook import write_notebook

    return partial(write_notebook, tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run, for tests that only read it."""
    from tests.support.fixtures_config import train_tiny

    train_tiny(folder := tmp_path_factory.mktemp("runs") / "finished")
    return folder


@pytest.fixture(scope="module")
def one_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run that keeps one checkpoint, for tests that only read it."""
    from tests.support.fixtures_config import train_tiny

    train_tiny(folder := tmp_path_factory.mktemp("runs") / "finished", keep=1)
    return folder


@pytest.fixture
def only_traced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the compiler run the operators that it traced, which takes seconds; in a soak it generates code."""
    import torch

    if request.node.get_closest_marker("soak") is None:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def proof(record_property: Callable[[str, object], None]) -> Callable[[str, str], None]:
    """Report a proof's figure, ``proof("kill -9", "300 of 300 resumed")``; call it after the assertions."""
    return lambda promise, figure: record_property("proof", [promise, figure])


def proofs(reports: Iterable[pytest.TestReport]) -> dict[str, dict[str, str]]:
    """Return the figures that tests reported, in whatever process they ran, each with the test's id."""
    figures = {}
    for report in reports:
        # a case whose name a shell would split stands for all cases of its test
        test = report.nodeid.partition("[")[0] if " " in report.nodeid else report.nodeid
        pairs = [value for name, value in report.user_properties if name == "proof"]
        figures |= {promise: {"figure": figure, "test": test} for promise, figure in pairs}
    return figures


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = proofs(terminalreporter.getreports("passed"))
    for promise, entry in sorted(figures.items()):
        terminalreporter.write_line(f"proof: {promise}: {entry['figure']}")
    if path := config.getoption("--figures"):
        from uavlab.storage.machine import describe

        place = {key: value for key, value in describe("cpu").items() if key in PLACE}
        before = json.loads(path.read_text())["figures"] if path.exists() else {}
        record = {"figures": before | {promise: {**entry, **place} for promise, entry in figures.items()}}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
