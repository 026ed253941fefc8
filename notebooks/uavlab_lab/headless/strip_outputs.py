"""Prepare executed notebooks for a commit, and list the reasons why one should not be committed.

    python -m uavlab_lab.headless.strip_outputs notebooks/*.ipynb

Sources, outputs, tags and cell ids are kept; what a reader cannot use or what differs from run to run is removed. Each
plotly figure gets a picture, for pages that run no JavaScript.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

from uavlab.core.errors import FileError
from uavlab.storage.files import read_regular
from uavlab_lab.headless import FIGURE, PICTURE

LARGEST = 30_000_000  # bytes; a larger notebook is refused
EXECUTED = 2_000_000_000  # the same for a notebook that this process has executed
MAX_BYTES = 1_500_000
MAX_LINES = 25  # lines of code in one cell
WIDGET = "application/vnd.jupyter.widget-view+json"
FOLDED = "hide-input"
COPY = "uavlab-last"  # the state of a live panel as HTML with drawings, which pages without styles show as loose text
PAPERMILL_TAGS = {"injected-parameters", "papermill-error-cell-tag"}
HOME = re.compile(r"(?<![\w+/.])(/home/\w|/Users/\w|/root/|[A-Z]:\\+Users\\)")  # base64 text does not match


def read_notebook(path: Path, most: int = LARGEST) -> Any:
    """Read a notebook of any version, of at most ``most`` bytes, as version 4.

    Raises:
        FileError: The file is missing or not a notebook.
    """
    try:
        return nbformat.reads(read_regular(path, most).decode(), as_version=4)
    except Exception as e:  # nbformat raises errors of many types for malformed files
        raise FileError(f"{path} is not a readable notebook: {type(e).__name__}: {str(e)[:200]}") from e


def strip(path: Path) -> tuple[int, int]:
    """Strip one notebook in place and return its size before and after (bytes).

    Widget state (5 MB per live figure), papermill's cells and volatile metadata are removed, also a widget's view, so
    that its text shows instead of an error; execution counts are renumbered from 1. Figures get pictures where one has
    none.

    Raises:
        FileError: The file is not a notebook.
        ResourceError: There is no browser to draw pictures.
    """
    before, nb = path.stat().st_size, read_notebook(path)
    nb.metadata = nbformat.from_dict(_kernel())
    nb.cells = [cell for cell in nb.cells if not PAPERMILL_TAGS & _tags(cell)]
    count = 0
    for cell in nb.cells:
        cell.metadata = _metadata(cell)
        if cell.cell_type != "code":
            continue
        if cell.execution_count is not None:
            cell.execution_count = count = count + 1
        cell.outputs = [each for each in cell.outputs if COPY not in str(each.get("data", {}).get("text/html", ""))]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            if len(output.get("data", {})) > 1:
                output.data.pop(WIDGET, None)
    if any(PICTURE not in bundle for bundle in figures(nb)):
        from uavlab_lab.headless.pictures import add_pictures  # plotly, only where it is needed

        add_pictures(figures(nb))
    write_notebook(nb, path)
    return before, path.stat().st_size


def _kernel() -> dict[str, Any]:
    """Return what JupyterLab writes about the kernel into a notebook that it opens.

    It would call a notebook with anything else unsaved; so it does where Python has another version.
    """
    from ipykernel.ipkernel import IPythonKernel  # late: notebooks import this module
    from ipykernel.kernelspec import get_kernel_dict

    spec = {"display_name": get_kernel_dict()["display_name"], "language": "python", "name": "python3"}
    return {"kernelspec": spec, "language_info": dict(IPythonKernel.language_info)}


def find_faults(path: Path) -> list[str]:
    """Return every reason not to commit this notebook; empty when it may be committed.

    Raises:
        FileError: The file is not a notebook.
    """
    nb, faults = read_notebook(path), []
    if (size := path.stat().st_size) > MAX_BYTES:
        faults.append(f"{size:,} bytes, more than {MAX_BYTES:,}")
    if "widgets" in nb.metadata or "papermill" in nb.metadata:
        faults.append("saved widget state or papermill metadata: run uavlab_lab.headless.strip_outputs")
    if home := HOME.search(path.read_text(encoding="utf-8")):
        faults.append(f"the path of somebody's home folder: {home[0]}...")
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    if code and sum("parameters" in _tags(cell) for cell in code) != 1:
        faults.append("not exactly one cell tagged 'parameters'")
    counts = [cell.execution_count for cell in code if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        faults.append(f"execution counts {counts}, expected 1 to {len(counts)}: run it whole, then strip it")
    if bare := sum(PICTURE not in bundle for bundle in figures(nb)):
        faults.append(f"{bare} figures without a picture: run uavlab_lab.headless.strip_outputs")
    for number, cell in enumerate(code, 1):
        if PAPERMILL_TAGS & _tags(cell):
            faults.append(f"code cell {number} was put in by papermill")
        if (lines := len(cell.source.splitlines())) > MAX_LINES:
            faults.append(f"code cell {number} has {lines} lines, more than {MAX_LINES}")
        if "raises-exception" not in _tags(cell) and any(o.output_type == "error" for o in cell.outputs):
            faults.append(f"code cell {number} shows an error")
    return faults


def figures(nb: Any) -> list[Any]:
    """Return the outputs' bundles that hold a plotly figure."""
    data = [output.get("data", {}) for cell in nb.cells for output in cell.get("outputs", [])]
    return [bundle for bundle in data if FIGURE in bundle]


def write_notebook(nb: Any, path: Path) -> None:
    """Write a notebook with each figure on one line, since indented lists take half as much space again."""
    texts = []
    for data in figures(nb):
        texts.append(json.dumps(data[FIGURE], separators=(",", ":"), ensure_ascii=False))
        data[FIGURE] = f"figure {len(texts) - 1} of this notebook"
    text = nbformat.writes(nb)
    for number, figure in enumerate(texts):
        text = text.replace(f'"figure {number} of this notebook"', figure)
    path.write_text(text + "\n", encoding="utf-8")


def _metadata(cell: Any) -> dict[str, Any]:
    """Return the metadata that a cell keeps; JupyterLab folds the code of one that is tagged ``hide-input``."""
    folded = {"jupyter": {"source_hidden": True}} if FOLDED in _tags(cell) else {}
    return folded | ({"tags": cell.metadata["tags"]} if _tags(cell) else {})


def _tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", []))


def main(names: list[str]) -> int:
    """Strip the named notebooks, print sizes and remaining faults, and return 1 if any remain."""
    status = 0
    for path in map(Path, names):
        before, after = strip(path)
        print(f"{path}: {before:,} -> {after:,} bytes")
        for fault in find_faults(path):
            status = 1
            print(f"  {fault}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
