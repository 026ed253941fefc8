"""Headless runs of notebooks by papermill: parameters are checked first, and success means that every cell ran.

A notebook runs in its own folder, so relative paths inside it start there; a notebook of an installed package runs in
the working directory.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import Any

import nbformat
import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError
from traitlets import default

from uavlab.core import installation
from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.core.text import one_line, suggest
from uavlab.experiment.signals import graceful_stop
from uavlab_lab.headless.parameters import check_values
from uavlab_lab.headless.strip_outputs import EXECUTED, read_notebook

KERNEL_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PLOTLY_RENDERER": "plotly_mimetype"}
QUIETLY = ["--IPKernelApp.log_level=CRITICAL"]  # a kernel stopped within a cell logs errors of its closed sockets
# ipykernel polls for its parent in a thread, which a long C call in a cell blocks; so Linux ends the kernel, too.
WITH_PARENT = ["--IPKernelApp.exec_lines=if __import__('ctypes').CDLL(None).prctl(1, 9): pass"]
IOPUB_S = 60  # time limit for receiving what a cell has printed (s)


class OwnKernelManager(AsyncKernelManager):
    """Starts the kernel with this interpreter, not an installed kernel spec, with few log messages and one thread."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Return the spec of this interpreter's kernel; environment variables that are already set take precedence."""
        spec = get_kernel_dict()
        env = {name: os.environ.get(name, value) for name, value in KERNEL_ENV.items()}
        argv = [*spec["argv"], *QUIETLY, *(WITH_PARENT if sys.platform == "linux" else [])]
        return KernelSpec(resource_dir=RESOURCES, **spec | {"argv": argv, "env": env})

    @default("transport_encryption")
    def _encrypt_if_possible(self) -> str:
        return "auto"  # the kernel prints a warning into every run otherwise


@dataclass(frozen=True)
class NotebookRun:
    """How a run ended.

    Attributes:
        exit_code: 0 if and only if every cell ran, 130 or 143 for SIGINT or SIGTERM, and 1 for all else.
        reason: One line that explains the exit code.
        out: The executed notebook.
    """

    exit_code: int
    reason: str
    out: Path


def run_notebook(
    path: Path, parameters: Mapping[str, Any], out: Path, timeout_s: int | None = None, progress: bool = False
) -> NotebookRun:
    """Run a copy of a notebook with papermill, in this interpreter's environment and the notebook's folder.

    ``parameters`` are checked before a kernel starts, and ``out`` appears as a complete file when the run has ended.
    A cell may take ``timeout_s`` (s), without limit if None; ``progress`` shows a bar on stderr.

    The first SIGINT or SIGTERM ends the run as a time-out does: the kernel is shut down and the outputs so far are
    written. A second one ends this process at once, and the kernel with it.
    """
    path, out = Path(path).resolve(), Path(out).resolve()
    check_values(path, parameters)
    if out.is_dir() or (out.exists() and out.samefile(path)):
        what = "is a folder" if out.is_dir() else "is the notebook itself, which is never overwritten"
        raise ConfigError(f"Output {out} {what}; name another file.")
    if out.suffix != ".ipynb":  # the offline page beside it ends in .html
        raise ConfigError(f"Output {out} is not named like a notebook; let it end in .ipynb.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            part = Path(folder) / out.name
            code, cut_short = _execute(path, part, parameters, timeout_s, progress)
            return _conclude(part, path, out, code, cut_short)
    except OSError as e:
        raise ResourceError(f"{path.name} cannot be run to {out} ({e}); free some space, or name another file.") from e


def notebook_path(name: str | Path) -> Path:
    """Find a notebook by path or by its name, with or without the number that orders the series.

    Names are those in the nearest ``notebooks/`` at or above the working directory, or else in the package.
    """
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    here = Path.cwd()
    folders = (sorted((root / "notebooks").glob("*.ipynb")) for root in (here, *here.parents, installation.ROOT))
    known = next(filter(None, folders), [])
    stem = Path(name).name.removesuffix(".ipynb")
    matches = [p for p in known if p.stem == stem] or [p for p in known if short_name(p) == stem]
    if len(matches) == 1:
        return matches[0].resolve()
    stems = [short_name(p) for p in known]
    raise ConfigError(f"Unknown notebook '{name}'{suggest(stem, stems)}. Known: {', '.join(stems) or 'none'}.")


def short_name(path: Path) -> str:
    """Return a notebook's name without the number that orders the series."""
    return re.sub(r"^\d+_", "", path.stem)


def _execute(
    path: Path, part: Path, parameters: Mapping[str, Any], timeout_s: int | None, progress: bool
) -> tuple[int, str]:
    """Execute the notebook; return an exit code and what cut it short, 0 if it ran to its end or to an error."""
    handles = current_thread() is main_thread()  # no other thread may handle signals
    stop: AbstractContextManager[list[int]] = graceful_stop(_interrupt, os._exit) if handles else nullcontext([])
    with stop as received:
        try:
            papermill.execute_notebook(
                _escape(path),
                _escape(part),
                dict(parameters),
                kernel_name="python3",
                language="python",
                progress_bar=progress,
                cwd=_working_directory(path),
                execution_timeout=timeout_s,
                kernel_manager_class=OwnKernelManager,
                iopub_timeout=IOPUB_S,
            )
        except papermill.PapermillExecutionError:
            pass  # a cell shows an error, which may be intended
        except CellTimeoutError:
            return 1, f"no end within {timeout_s} s"
        except RuntimeError:  # the kernel gave no answer
            return 1, "the kernel died"
        except KeyboardInterrupt:
            try:
                read_notebook(part, EXECUTED)
            except FileError:  # not yet written, or not wholly
                sys.exit(128 + received[0])
            return 128 + received[0], "interrupted"
    return 0, ""


def _interrupt() -> None:
    raise KeyboardInterrupt


def _working_directory(path: Path) -> Path:
    """Return the folder in which a notebook runs; nothing is written into an installed package."""
    installed = installation.INSTALLED and path.is_relative_to(installation.ROOT)
    return Path.cwd() if installed else path.parent


def _conclude(part: Path, path: Path, out: Path, code: int, cut_short: str) -> NotebookRun:
    """Correct what papermill recorded, move the notebook to ``out`` and report how the run ended."""
    nb = read_notebook(part, EXECUTED)
    skipped = [cell for cell in nb.cells if "skip-execution" in cell.metadata.get("tags", [])]
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip() and cell not in skipped]
    started = [cell for cell in cells if cell.metadata.papermill.start_time is not None]
    for cell in nb.cells:
        if "papermill" in cell.metadata and (cell.metadata.papermill.start_time is None or cell in skipped):
            cell.metadata.papermill.status = "pending"  # papermill marks them as completed, even without a kernel
    last = f"cell {max(1, len(started))} of {len(cells)}"
    error = _error(started[-1]) if started else None
    if code:
        reason = f"{cut_short} {'in' if started else 'before'} {last}"
    elif error:
        code, reason = 1, f"{last} failed: {error.ename}: {error.evalue}"
    elif any(cell.metadata.papermill.status != "completed" for cell in cells):
        code, reason = 1, f"{last} failed without showing an error"
    else:
        reason = f"all {len(cells)} cells ran"  # an error in a cell tagged raises-exception is intended
        nb.cells = [cell for cell in nb.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    nb.metadata.papermill.update(input_path=path.name, output_path=out.name, exception=code != 0)
    if code and started:
        started[-1].metadata.papermill.update(status="failed", exception=True)
    nbformat.write(nb, part)
    part.replace(out)
    return NotebookRun(code, one_line(reason), out)


def _error(cell: Any) -> Any:
    """Return the error that ended this cell, None if there is none or the cell is tagged ``raises-exception``."""
    if "raises-exception" in cell.metadata.get("tags", []):
        return None
    return next((output for output in cell.outputs if output.output_type == "error"), None)


def _escape(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
