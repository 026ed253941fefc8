"""Default options of `pytest --nbval notebooks`, which works from any folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from uavlab_lab.headless.runner import short_name

HERE = Path(__file__).parent
PICTURE = "image/svg+xml"
SMALL: dict[str, dict[str, object]] = YAML(typ="safe").load(HERE / "small.yaml")
CELL_TIMEOUT = 240  # s; nbval waits that long for a kernel that died, and its own default is 2000 s

# Kernels inherit these; the first makes the order of sets the same in every run.
for name, value in {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PLOTLY_RENDERER": "plotly_mimetype",
}.items():
    os.environ.setdefault(name, value)


def pytest_configure(config: pytest.Config) -> None:
    """Fill in the options that nbval was not given."""
    option = config.option
    if not (option.nbval or option.nbval_lax):
        return
    option.nbval_sanitize_with = option.nbval_sanitize_with or str(HERE.parent / "tests" / "nbval_sanitize.cfg")
    option.nbval_current_env = not option.nbval_kernel_name
    option.nbval_cell_timeout = min(option.nbval_cell_timeout, CELL_TIMEOUT)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set small parameters, and compare no pictures, which were drawn from the figures beside them."""
    compared, cell = getattr(item.parent, "skip_compare", None), getattr(item, "cell", None)
    if compared is not None and PICTURE not in compared:
        item.parent.skip_compare = (*compared, PICTURE)  # type: ignore[union-attr]
    if cell is not None and "parameters" in cell.metadata.get("tags", ()):
        small = SMALL.get(short_name(item.path), {})
        cell.source += "".join(f"\n{name} = {value!r}" for name, value in small.items())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a cell that was interrupted at the time limit and went on; nbval would let it pass."""
    before = getattr(item.parent, "timed_out", False)
    yield
    if getattr(item.parent, "timed_out", False) and not before:
        limit = item.config.option.nbval_cell_timeout
        pytest.fail(f"the cell ran longer than {limit:g} s and was interrupted", pytrace=False)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore notebooks in subfolders, such as outputs."""
    return True if collection_path.suffix == ".ipynb" and collection_path.parent != HERE else None
