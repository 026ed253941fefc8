"""Strict parameters of notebooks, declared in one tagged cell and checked before a kernel starts and inside it."""

import ast
import keyword
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from uavlab.core.errors import ConfigError, FileError
from uavlab.core.text import quote, suggest, yaml_value

# nbformat and experiment.config are imported late: they would cost every notebook that calls `parameters` 2 s.

KINDS = {kind.__name__: kind for kind in (int, float, bool, str, list)}
MISSING = object()
COMMON = {"seed": (int, 0, 2**31), "device": ("auto", "cpu", "cuda"), "threads": (int, 1, 64)}
"""Declarations that `parameters` adds for those of these names that the notebook's parameters cell sets."""


def parameters(namespace: Mapping[str, Any], /, **declared: Any) -> SimpleNamespace:
    """Check a notebook's parameters and return them as attributes of one object.

    In the second cell: ``P = parameters(globals(), updates=(int, 1, 99), mode=("fast", "exact"), out_dir=str)``.
    Each name is declared by a type, ``(type, low, high)`` with both ends allowed, or a tuple of choices; ``seed``,
    ``device`` and ``threads`` need none (see ``COMMON``). A bool is not accepted as an int; an int is accepted as a
    float, a whole float as an int, and a float must be finite. Text is read as YAML where a list or a bool is declared,
    because ``papermill -p agents "[2, 4]"`` passes it as text. The names of papermill's injected cell are checked too.

    Raises:
        ConfigError: Names are unknown or missing, or values do not fit; one message lists all problems.
    """
    declared = {name: spec for name, spec in COMMON.items() if name in namespace} | declared
    unknown = {name: None for name in _injected(namespace) if name not in declared}
    values = {name: _convert(namespace.get(name, MISSING), spec) for name, spec in declared.items()}
    _refuse("this notebook", list(_problems(unknown | values, declared)), declared)
    return SimpleNamespace(**values)


def declared_parameters(path: Path) -> dict[str, type]:
    """Read names and types from the cell tagged ``parameters``: ``name: type = value``; empty without such a cell."""
    cells = [cell for cell in _read_valid(path).cells if "parameters" in cell.metadata.get("tags", [])]
    kinds: dict[str, type] = {}
    try:
        for name, annotation, value in _assignments(cells[0].source) if cells else ():
            kind = type(ast.literal_eval(value)).__name__
            kinds[name] = KINDS[ast.unparse(annotation) if annotation else kind]
    except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError) as e:  # the last two: too deeply nested
        raise ConfigError(
            f"{path.name}: the parameters cell cannot be read ({str(e)[:100]}); it may hold only lines like "
            f"'name: type = literal' with a type of {', '.join(KINDS)}."
        ) from e
    return kinds


def read_parameters(path: Path, pairs: Iterable[tuple[str, str]], file: Path | None = None) -> dict[str, Any]:
    """Gather the values that the command line sets: those of a YAML 1.2 file, then ``-p name text`` pairs.

    Text stays text where the notebook declares a str; elsewhere it is read as YAML, so ``1e-3`` is a float.
    """
    kinds = declared_parameters(path)
    values: dict[str, Any] = {}
    if file is not None:
        from uavlab.experiment.config import read_yaml

        values |= read_yaml(file)
    for name, text in pairs:
        try:
            values[name] = text if kinds.get(name) is str else yaml_value(text, name)
        except ConfigError:
            values[name] = text  # a wrong type, which run_notebook reports together with the other problems
    return values


def check_values(path: Path, values: Mapping[str, Any]) -> None:
    """Check the values to be set in a notebook, by the types of its parameters cell and the ranges that it declares."""
    kinds = declared_parameters(path)
    declared = kinds | {name: spec for name, spec in _declared_ranges(path).items() if name in kinds}
    converted = {name: _convert(value, declared[name]) if name in kinds else value for name, value in values.items()}
    problems = list(_problems(converted, declared))
    if values and not kinds:
        problems.append("the notebook has no cell tagged 'parameters'")
    _refuse(path.name, problems, kinds)


def _declared_ranges(path: Path) -> dict[str, Any]:
    """Return what the notebook's call of ``parameters`` declares, without running it; {} where that cannot be read."""
    for cell in _read_valid(path).cells:
        try:
            nodes = list(ast.walk(ast.parse(cell.source))) if cell.cell_type == "code" else []
            calls = [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "parameters"]
            if calls:
                return COMMON | {str(keyword.arg): _literal(keyword.value) for keyword in calls[0].keywords}
        except (SyntaxError, ValueError, KeyError, RecursionError, MemoryError):
            continue
    return {}


def _literal(node: ast.expr) -> Any:
    """Evaluate a declaration: a type, a constant, a power such as ``10**6``, or a tuple of these."""
    if isinstance(node, ast.Name):
        return KINDS[node.id]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(element) for element in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = ast.literal_eval(node.left), ast.literal_eval(node.right)
        return base ** min(power, 64)
    return ast.literal_eval(node)


def _read_valid(path: Path) -> Any:
    """Read a notebook; refuse damaged cells, on which a run would fail."""
    import nbformat

    from uavlab_lab.headless.strip_outputs import read_notebook

    nb = read_notebook(path)
    try:
        nbformat.validate(nb)
    except nbformat.ValidationError as e:
        why = str(e).splitlines()[0]
        raise FileError(f"{path} is not a sound notebook: {why}; open and save it in JupyterLab.") from e
    return nb


def _refuse(where: str, problems: list[str], known: Iterable[str]) -> None:
    if problems:
        raise ConfigError(f"Parameters of {where}: {'; '.join(problems)}. Known: {', '.join(known) or 'none'}.")


def _problems(values: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            yield f"{quote(name)} is no Python identifier"  # papermill would execute it
        elif name not in declared:
            yield f"unknown parameter '{name}'{suggest(name, declared)}"
        elif value is MISSING:
            yield f"'{name}' is missing from the parameters cell"
        elif not _fits(value, declared[name]):
            yield f"{name} = {quote(value)}, expected {_describe(declared[name])}"


def _convert(value: Any, spec: Any) -> Any:
    """Return a value as one of the declared type, where that changes no number; other values stay as they are."""
    kind = spec[0] if isinstance(spec, tuple) else spec
    if isinstance(value, str) and kind in (bool, list):
        with suppress(ConfigError):
            return yaml_value(value, "a parameter")
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and _is_a(value, float):
        return float(value)
    return value


def _fits(value: Any, spec: Any) -> bool:
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


def _describe(spec: Any) -> str:
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
    except (SyntaxError, ValueError):  # a cell of the notebook that begins with the same comment
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
