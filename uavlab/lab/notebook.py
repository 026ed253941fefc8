"""Notebooks as programs: strict parameters, a truthful runner, and the command that opens the laboratory.

A relative path inside a notebook counts from the notebook's own folder, whoever runs it.
"""

import ast
import keyword
import os
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

from uavlab.core import errors
from uavlab.core.errors import ConfigError
from uavlab.core.text import nearest, yaml_value

# nbformat, papermill and app.config are imported late: they would cost every notebook that calls `parameters` 2 s.

KINDS = {kind.__name__: kind for kind in (int, float, bool, str, list)}
KERNEL_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PLOTLY_RENDERER": "plotly_mimetype"}
TIMED_OUT, INTERRUPTED, DEAD_KERNEL = 124, 130, 138


def parameters(namespace: Mapping[str, Any], /, **declared: Any) -> SimpleNamespace:
    """Check a notebook's parameters and gather them in one object.

    In the second cell: ``P = parameters(globals(), seed=(int, 0, 99), device=("auto", "cpu"), out_dir=str)``. A bool is
    no int, an int serves as a float, and a float is finite. The names of papermill's injected cell are checked too; a
    notebook edited by hand has none.

    Args:
        namespace: The notebook's ``globals()``.
        declared: Per name a type, ``(type, low, high)`` with both ends allowed, or a tuple of choices.

    Raises:
        ConfigError: A name is unknown or missing, or a value does not fit; all problems are told at once.
    """
    unknown = [name for name in _injected(namespace) if name not in declared]
    problems = [f"unknown parameter '{name}'{nearest(name, declared)}" for name in unknown]
    values = {}
    for name, spec in declared.items():
        if name not in namespace:
            problems.append(f"'{name}' is missing from the parameters cell")
        elif not _meets(namespace[name], spec):
            problems.append(f"{name} = {reprlib.repr(namespace[name])}, expected {_wanted(spec)}")
        else:
            kind = spec[0] if isinstance(spec, tuple) else spec
            values[name] = float(namespace[name]) if kind is float else namespace[name]
    _refuse("this notebook", problems, declared)
    return SimpleNamespace(**values)


def declared_parameters(path: Path) -> dict[str, type]:
    """Read names and types from the cell tagged ``parameters``: ``name: type = value``; empty without such a cell.

    Raises:
        FileError: The file is not a notebook.
        ConfigError: The cell holds something else than literals of type int, float, bool, str or list.
    """
    from uavlab.lab.slim import read_notebook

    cells = [cell for cell in read_notebook(path).cells if "parameters" in cell.metadata.get("tags", [])]
    kinds: dict[str, type] = {}
    try:
        for name, annotation, value in _assignments(cells[0].source) if cells else ():
            kind = type(ast.literal_eval(value)).__name__
            kinds[name] = KINDS[ast.unparse(annotation) if annotation else kind]
    except (SyntaxError, ValueError, KeyError) as e:
        raise ConfigError(
            f"{path.name}: the parameters cell cannot be read ({type(e).__name__}: {e}); it may hold only lines like "
            f"'name: type = literal' with a type of {', '.join(KINDS)}."
        ) from e
    return kinds


def read_parameters(path: Path, pairs: Iterable[tuple[str, str]], files: Iterable[Path]) -> dict[str, Any]:
    """Gather what the command line sets for a notebook: YAML 1.2 files in order, then ``-p name text`` pairs.

    Text stays text where the notebook declares a str; elsewhere it is read as YAML, so ``1e-3`` is a float.

    Raises:
        ConfigError: A parameter file is missing, too large, or not a mapping from names to values.
    """
    kinds = declared_parameters(path)
    values: dict[str, Any] = {}
    for file in files:
        from uavlab.app.config import read_yaml

        values |= read_yaml(Path(file))
    for name, text in pairs:
        try:
            values[name] = text if kinds.get(name) is str else yaml_value(text, name)
        except ConfigError:
            values[name] = text  # a wrong type, which run_notebook reports together with the other problems
    return values


@dataclass(frozen=True)
class NotebookRun:
    """How a run ended.

    Attributes:
        exit_code: 0 if and only if every cell ran; the class's code for a uavlab error, 1 for any other failing cell,
            124 for a time-out, 138 for a dead kernel.
        reason: One line for people.
        out: The executed notebook, written in every case.
    """

    exit_code: int
    reason: str
    out: Path


def run_notebook(
    path: Path, parameters: Mapping[str, Any], out: Path, timeout_s: int | None = None, progress: bool = False
) -> NotebookRun:
    """Run a notebook with papermill, in this interpreter's environment and the notebook's folder, and tell the truth.

    Args:
        path: The notebook; it is never changed.
        parameters: Values for names of its ``parameters`` cell, checked before a kernel starts.
        out: Where the executed notebook goes; it appears there whole when the run has ended.
        timeout_s: Longest time for one cell (s); None for no limit.
        progress: Show a bar on stderr.

    Raises:
        ConfigError: A parameter is unknown or mistyped, or ``out`` would overwrite the notebook.
        FileError: The notebook is missing or not a notebook.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    path, out = Path(path).resolve(), Path(out).resolve()
    _check_values(path, parameters)
    if out.is_dir() or (out.exists() and out.samefile(path)):
        what = "is a folder" if out.is_dir() else "is the notebook itself, which is never overwritten"
        raise ConfigError(f"Output {out} {what}; name another file.")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.stem}.{os.getpid()}.part.ipynb")
    code = INTERRUPTED
    try:
        papermill.execute_notebook(
            _unformatted(path),
            _unformatted(part),
            dict(parameters),
            kernel_name="python3",
            language="python",
            progress_bar=progress,
            cwd=path.parent,
            execution_timeout=timeout_s,
            kernel_manager_class=ThisPython,
        )
        code = 0
    except papermill.PapermillExecutionError:
        code = 1
    except DeadKernelError:
        code = DEAD_KERNEL
    except CellTimeoutError:
        code = TIMED_OUT
    finally:  # an interrupt or a bug passes on, but what was executed is kept
        if part.exists():
            run = _conclude(part, path, out, code, timeout_s)
    return run


class ThisPython(AsyncKernelManager):
    """Starts the kernel with this interpreter, whatever kernels are installed, quietly and on one thread."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Describe this interpreter's kernel; variables that are set already win."""
        env = {name: os.environ.get(name, value) for name, value in KERNEL_ENV.items()}
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict() | {"env": env})

    @default("transport_encryption")
    def _encrypt_if_possible(self) -> str:
        return "auto"  # the kernel prints a warning into every run otherwise


def notebook_path(name: str | Path, root: Path | None = None) -> Path:
    """Find a notebook by path, by name or by its name without the number: ``00_tour`` or ``tour``.

    Args:
        name: What the person typed.
        root: Folder that holds ``notebooks/``; by default the nearest one at or above the working directory, and then
            the one beside the package.

    Raises:
        ConfigError: There is none of that name, or more than one.
    """
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name).resolve()
    here = Path.cwd()
    roots = [root] if root else [here, *here.parents, Path(__file__).parents[2]]
    known = next((found for r in roots if (found := sorted((r / "notebooks").glob("*.ipynb")))), [])
    stem = Path(name).name.removesuffix(".ipynb")
    matches = [p for p in known if p.stem == stem] or [p for p in known if p.stem.partition("_")[2] == stem]
    if len(matches) == 1:
        return matches[0].resolve()
    stems = [p.stem for p in known]
    raise ConfigError(f"Unknown notebook '{name}'{nearest(stem, stems)}. Known: {', '.join(stems) or 'none'}.")


def lab_command(root: Path, *extra: str) -> list[str]:
    """Give the command that serves JupyterLab from ``root`` to this machine alone; its token stays on."""
    fixed = ["--ServerApp.ip=127.0.0.1", "--KernelManager.transport_encryption=auto"]
    return [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={Path(root).resolve()}", *extra, *fixed]


def _conclude(part: Path, path: Path, out: Path, code: int, timeout_s: int | None) -> NotebookRun:
    """Correct what papermill recorded, publish the notebook and say how the run ended."""
    import nbformat

    from uavlab.lab.slim import read_notebook

    nb = read_notebook(part)
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    started = [cell for cell in cells if cell.metadata.papermill.start_time is not None]
    for cell in cells[len(started) :]:
        cell.metadata.papermill.status = "pending"  # papermill calls them completed when the kernel is gone
    where = f"cell {len(started)} of {len(cells)}"
    error = _error(started[-1]) if started else None
    if code == INTERRUPTED:
        reason = f"interrupted in {where}"
    elif code == DEAD_KERNEL:
        reason = f"the kernel died in {where}"
    elif code == TIMED_OUT:
        reason = f"{where} ran longer than {timeout_s} s"
    elif error:
        code = getattr(getattr(errors, error.ename, None), "exit_code", 1)
        reason = f"{where} failed: {error.ename}: {error.evalue}"
    elif any(cell.metadata.papermill.status != "completed" for cell in cells):
        code, reason = 1, f"{where} failed without showing an error"
    else:
        code, reason = 0, f"all {len(cells)} cells ran"  # an error in a cell tagged raises-exception is meant
        nb.cells = [cell for cell in nb.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    nb.metadata.papermill.update(input_path=path.name, output_path=out.name, exception=code != 0)
    if code and started:
        started[-1].metadata.papermill.update(status="failed", exception=True)
    nbformat.write(nb, part)
    part.replace(out)
    return NotebookRun(code, reason, out)


def _error(cell: Any) -> Any:
    """Return the error that ended this cell, None if there is none or it is shown on purpose."""
    if "raises-exception" in cell.metadata.get("tags", []):
        return None
    return next((output for output in cell.outputs if output.output_type == "error"), None)


def _check_values(path: Path, values: Mapping[str, Any]) -> None:
    kinds = declared_parameters(path)
    problems = []
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            problems.append(f"{reprlib.repr(name)} is no Python identifier")  # papermill would execute it
        elif name not in kinds:
            problems.append(f"unknown parameter '{name}'{nearest(name, kinds)}")
        elif not _meets(value, kinds[name]):
            problems.append(f"{name} = {reprlib.repr(value)}, expected {_wanted(kinds[name])}")
    if values and not kinds:
        problems.append("the notebook has no cell tagged 'parameters'")
    _refuse(path.name, problems, kinds)


def _refuse(where: str, problems: list[str], known: Iterable[str]) -> None:
    if problems:
        raise ConfigError(f"Parameters of {where}: {'; '.join(problems)}. Known: {', '.join(known) or 'none'}.")


def _meets(value: Any, spec: Any) -> bool:
    if not isinstance(spec, tuple):
        return _is_a(value, spec)
    if isinstance(spec[0], type):
        kind, low, high = spec
        return _is_a(value, kind) and low <= value <= high
    return any(_is_a(value, type(choice)) and value == choice for choice in spec)


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:  # compared rather than converted: a huge int does not overflow here, and nan fails
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, kind)


def _wanted(spec: Any) -> str:
    if not isinstance(spec, tuple):
        return f"{spec.__name__}{' (finite)' if spec is float else ''}"
    if isinstance(spec[0], type):
        return f"{spec[0].__name__} in [{spec[1]}, {spec[2]}]"
    return f"one of {', '.join(map(repr, spec))}"


def _injected(namespace: Mapping[str, Any]) -> list[str]:
    """List the names of papermill's injected cell, which IPython keeps in ``In`` like every cell."""
    sources = [source for source in namespace.get("In", []) if source.startswith("# Parameters\n")]
    try:
        return [name for name, _, _ in _assignments(sources[-1])] if sources else []
    except (SyntaxError, ValueError):  # somebody's own cell, which only begins alike
        return []


def _assignments(source: str) -> Iterator[tuple[str, ast.expr | None, ast.expr]]:
    """Yield name, annotation and value of each assignment in a cell."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.annotation, node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, None, node.value
        else:
            raise ValueError(f"line {node.lineno} is no assignment of one literal to one name")


def _unformatted(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
