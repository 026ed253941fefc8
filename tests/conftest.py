"""What every test needs before torch is imported, and the rule that only `notebooks/` holds notebooks to be checked."""

import os
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PLOTLY_RENDERER", "plotly_mimetype")


class OnlyCommittedNotebooks:
    """A plugin, because a conftest's own hooks stop at its folder and outputs may lie anywhere."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.suffix == ".ipynb" and collection_path.parent != NOTEBOOKS else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyCommittedNotebooks(), "only-committed-notebooks")
