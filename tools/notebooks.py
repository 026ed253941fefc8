"""Execute notebooks with their own parameters, and write the index of the series and the links between its notebooks.

    python -m tools.notebooks [NAME... | --all]

Each named notebook gets the outputs of a run, which takes minutes and wants a quiet machine; the index says how long
it took. Without names only the index and the links are written.
"""

import base64
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import plotly.graph_objects as go
import plotly.io

from uavlab.core.errors import ConfigError
from uavlab.core.installation import ROOT
from uavlab.storage.machine import describe
from uavlab_lab.headless.pictures import stills
from uavlab_lab.headless.runner import notebook_path, run_notebook, short_name
from uavlab_lab.headless.strip_outputs import figures, read_notebook, strip, write_notebook

NOTEBOOKS = ROOT / "notebooks"
INDEX = NOTEBOOKS / "index.ipynb"
LINKS = "series"  # id of the cell with the links
TIMEOUT = 3600  # s, of a cell
HEAD = """# The notebooks

Each notebook asks one question. It opens with the answer and its picture, shows the mechanism in code that you can
change, measures the library's toggle on your machine, and ends with two exercises.

`make lab` opens them, `uavlab notebook NAME` runs one headless with parameters of your own, and
`pytest --nbval notebooks` tests them all with small ones."""


def main(names: list[str]) -> int:
    """Execute the named notebooks, then write index and links; return 1 if a notebook failed."""
    chosen = series() if names == ["--all"] else [notebook_path(name) for name in names]
    new = {short_name(path): execute(path) for path in chosen}
    failed = [name for name, text in new.items() if text is None]
    times, paths = read_times() | {name: text for name, text in new.items() if text}, series()
    for path, before, after in zip(paths, [None, *paths], [*paths[1:], None], strict=False):
        write_links(path, before, after)
    write_notebook(index(paths, times), INDEX)
    print(f"{len(paths)} notebooks in {INDEX}" + "".join(f"; {name} failed" for name in failed))
    return int(bool(failed))


def series() -> list[Path]:
    """Return the notebooks in the order of their numbers, without the index."""
    return sorted(path for path in NOTEBOOKS.glob("*.ipynb") if path != INDEX)


def read_times() -> dict[str, str]:
    """Return what the index says of the time of each notebook."""
    cells = read_notebook(INDEX).cells if INDEX.exists() else []
    return {cell.id: cell.source.rpartition("\n\n")[2] for cell in cells if "\n\nTakes " in cell.source}


def execute(path: Path) -> str | None:
    """Run a notebook with its own parameters, store its outputs, and return how long it took; None if a cell failed."""
    out = ROOT / "build" / "notebooks" / path.name
    start = time.perf_counter()
    ended = run_notebook(path, {}, out, TIMEOUT, progress=True)
    seconds = time.perf_counter() - start
    if ended.exit_code:
        print(f"{path.name}: {ended.reason}", file=sys.stderr)
        return None
    strip(out)  # before it replaces the notebook, because pictures need a browser
    path.write_bytes(out.read_bytes())
    machine = describe("cpu")
    return f"Takes {seconds / 60:.1f} minutes on {machine['cpu']}, {machine['cores']} cores."


def summary(path: Path) -> tuple[str, str]:
    """Return a notebook's title and its answer, the bold sentence below the title.

    Raises:
        ConfigError: The first cell has no title or no bold sentence.
    """
    text = read_notebook(path).cells[0].source
    match = re.match(r"# (.+)\n+\*\*(.+?)\*\*", text)
    if match is None:
        raise ConfigError(f"{path.name}: the first cell begins {text[:60]!r}; expected '# Title', then '**Answer**'.")
    return match[1], match[2]


def link(path: Path) -> str:
    """Return the text of a link to a notebook: its title up to the colon."""
    return f"[{summary(path)[0].partition(':')[0]}]({path.name})"


def write_links(path: Path, before: Path | None, after: Path | None) -> None:
    """Write the links to the neighbours as the last cell."""
    parts = [before and f"**Before**: {link(before)}", "[All notebooks](index.ipynb)"]
    parts.append(after and f"**Next**: {link(after)}")
    nb = read_notebook(path)
    cell = nbformat.v4.new_markdown_cell(" · ".join(filter(None, parts)), id=LINKS)
    nb.cells = [each for each in nb.cells if each.get("id") != LINKS] + [cell]
    write_notebook(nb, path)


def index(paths: list[Path], times: dict[str, str]) -> Any:
    """Return the index: a cell for each notebook with title, answer, time and its first figure."""
    cells = [nbformat.v4.new_markdown_cell(HEAD, id="head")]
    for path in paths:
        (title, answer), name = summary(path), short_name(path)
        lines = [f"## [{title}]({path.name})", answer]
        picture = first_picture(path)
        more = {"attachments": {f"{name}.png": {"image/png": picture}}} if picture else {}
        lines += [f"![First figure of the notebook {name}](attachment:{name}.png)"] if picture else []
        lines += [times[name]] if name in times else []
        cells.append(nbformat.v4.new_markdown_cell("\n\n".join(lines), id=name, **more))
    nb = nbformat.v4.new_notebook(cells=cells)
    nb.metadata = read_notebook(paths[0]).metadata
    return nb


def first_picture(path: Path) -> str | None:
    """Return a notebook's first figure as PNG in base64, None without figures."""
    bundles = figures(read_notebook(path))
    if not bundles:
        return None
    figure = stills(bundles[0])[0]
    return base64.b64encode(plotly.io.to_image(go.Figure(figure), format="png", width=640)).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
