"""A maker of tiny notebooks."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a notebook of code cells, each a source or a (source, tag) pair."""

    def write(*cells: str | tuple[str, str], name: str = "tiny.ipynb") -> Path:
        nb = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
        for number, cell in enumerate(cells):
            source, *tags = [cell] if isinstance(cell, str) else cell
            nb.cells.append(new_code_cell(source, id=f"cell-{number}", metadata={"tags": tags} if tags else {}))
        nbformat.write(nb, tmp_path / name)
        return tmp_path / name

    return write
