"""The small parameters of notebook tests are names of the notebooks, fit their types, and reach the kernel."""

import ast
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from uavlab_lab.headless.parameters import declared_parameters
from uavlab_lab.headless.runner import short_name

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PATHS = {short_name(path): path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
CONFTEST = SimpleNamespace(**runpy.run_path(str(NOTEBOOKS / "conftest.py")))


class Cell:
    """An item of nbval: a cell, its notebook's path, and the keys that its notebook does not compare."""

    def __init__(self, path: Path, cell: Any) -> None:
        self.path, self.cell, self.parent = path, cell, self
        self.skip_compare = ("metadata",)


def test_every_notebook_with_parameters_has_small_ones() -> None:
    assert set(CONFTEST.SMALL) == {name for name, path in PATHS.items() if declared_parameters(path)}


@pytest.mark.parametrize("name", CONFTEST.SMALL)
def test_they_are_parameters_of_the_notebook(name: str) -> None:
    declared = declared_parameters(PATHS[name])
    assert {key: type(value) for key, value in CONFTEST.SMALL[name].items()}.items() <= declared.items()


@pytest.mark.parametrize("name", CONFTEST.SMALL)
def test_they_arrive_after_the_values_of_the_notebook(name: str) -> None:
    path = PATHS[name]
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    before = [cell.source for cell in code]
    for cell in code:
        CONFTEST.pytest_itemcollected(Cell(path, cell))
    changed = [cell.source for cell, source in zip(code, before, strict=True) if cell.source != source]
    assert len(changed) == 1
    values: dict[str, Any] = {}
    exec(compile(ast.parse(changed[0]), name, "exec"), values)
    assert CONFTEST.SMALL[name].items() <= values.items()


def test_no_picture_is_compared() -> None:
    item = Cell(Path("x.ipynb"), nbformat.v4.new_code_cell("1"))
    CONFTEST.pytest_itemcollected(item)
    assert "image/svg+xml" in item.skip_compare
