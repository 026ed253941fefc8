"""A maker of tiny notebooks."""

from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

Write = Callable[..., Path]
PARAMETERS = (
    'seed: int = 0  # random seed\nlr: float = 0.5\nfast: bool = False\ndevice: str = "cpu"\nsizes: list = [1]',
    "parameters",
)


def write_notebook(folder: Path, *cells: str | tuple[str, str], name: str = "tiny.ipynb") -> Path:
    """Write a notebook of code cells, each a source or a (source, tag) pair."""
    nb = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, cell in enumerate(cells):
        source, *tags = [cell] if isinstance(cell, str) else cell
        nb.cells.append(new_code_cell(source, id=f"cell-{number}", metadata={"tags": tags} if tags else {}))
    nbformat.write(nb, folder / name)
    return folder / name
