"""Imports point down and in no circle, hot code never waits for the host, and no data file makes uavlab run code."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import nbformat
import networkx
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "uavlab"
LAB = ROOT / "notebooks" / "uavlab_lab"
CIRCLES: list[str] = []  # modules that import each other, for type checkers or late
HOT = {"ops", "envs", "nets", "replay", "learners"}
SYNCS = {"item", "cpu", "numpy"}
UNSAFE = {
    *("pickle", "marshal", "shelve", "dill", "joblib", "eval", "exec", "__import__", "os.system", "os.popen"),
    *("torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("get_ipython.run_line_magic", "get_ipython.run_cell_magic", "get_ipython.system", "get_ipython.getoutput"),
}


def complaints(source: str, path: str) -> Iterator[str]:
    """Yield the rules that a module at ``path`` (relative to the package) breaks."""
    home, _, _ = path.removesuffix(".py").partition("/")
    aliases: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.level:
                yield "relative import"
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in node.names:
                full = prefix + name.name
                aliases[name.asname or name.name] = full
                if {full.partition(".")[0], full} & UNSAFE:
                    yield f"unsafe {full}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from refuse_call(node, home, aliases)
        if isinstance(node, ast.Assert) and home != "outside":
            yield "assert"  # gone under python -O, so no guard


def unsafe(source: str) -> list[str]:
    """Return the breaches of code outside the package: only those that let a file run code."""
    return [text for text in complaints(source, "outside.py") if text.startswith("unsafe")]


def outside() -> dict[str, str]:
    """Return the source of each tool, and of the code cells of each notebook as IPython understands them."""
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("tools/**/*.py")}
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        sources[str(path.relative_to(ROOT))] = "\n".join(map(TransformerManager().transform_cell, cells))
    return sources


def refuse_call(node: ast.Call, home: str, aliases: dict[str, str]) -> Iterator[str]:
    name = ast.unparse(node.func)
    head, dot, rest = name.replace("()", "").partition(".")
    full = aliases.get(head, head) + dot + rest
    if full in UNSAFE:
        yield f"unsafe {full}"
    for keyword in node.keywords:
        given = ast.unparse(keyword.value)
        if (keyword.arg in ("allow_pickle", "shell") and given != "False") or (keyword.arg, given) == (
            "typ",
            "'unsafe'",
        ):
            yield f"unsafe {keyword.arg}={given}"
    if home in HOT and (name == "print" or (isinstance(node.func, ast.Attribute) and node.func.attr in SYNCS)):
        yield f"{name.rpartition('.')[2]} in hot code"


def test_every_module_keeps_the_rules() -> None:
    problems = {}
    for package in (PACKAGE, LAB):
        for file in sorted(package.rglob("*.py")):
            path = str(file.relative_to(package))
            problems[f"{package.name}/{path}"] = list(complaints(file.read_text(), path))
    assert {path: texts for path, texts in problems.items() if texts} == {}


def circles(graph: Any) -> list[str]:
    """Return the groups of modules that import each other; imports for type checkers and late ones count."""
    edges = [(module, name) for module in graph.modules for name in graph.find_modules_directly_imported_by(module)]
    groups = networkx.strongly_connected_components(networkx.DiGraph(edges))
    return sorted(describe_circle(sorted(group)) for group in groups if len(group) > 1)


def describe_circle(modules: list[str]) -> str:
    folders = {module.rpartition(".")[0] for module in modules}
    if len(folders) > 1:
        return " ".join(modules)
    return f"{folders.pop()}: {' '.join(module.rpartition('.')[2] for module in modules)}"


def test_modules_import_each_other_in_no_new_circle() -> None:
    graph = grimp.build_graph("uavlab", "uavlab_lab", cache_dir=None)
    assert circles(graph) == CIRCLES
    graph.add_import(importer="uavlab.ops.sum_tree", imported="uavlab.replay.prioritized")
    assert [circle for circle in circles(graph) if circle.startswith("uavlab.ops.sum_tree uavlab.replay.")] != []


MUTANTS = {
    "uavlab/ops/sum_tree.py": ("def late():\n    import uavlab.replay.ring", "uavlab.ops is not allowed to import"),
    "uavlab/replay/ring.py": ("import plotly.graph_objects", "uavlab is not allowed to import plotly"),
    "uavlab/nets/mlp.py": ("import pyarrow", "uavlab.nets is not allowed to import pyarrow"),
    "uavlab/cli/base.py": ("import uavlab_lab.films", "uavlab is not allowed to import uavlab_lab"),
    "uavlab/learners/masac/masac.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import uavlab.experiment.run",
        "uavlab.learners is not allowed to import uavlab.experiment",
    ),
}


def test_the_linter_catches_what_points_up(tmp_path: Path) -> None:
    for package in (PACKAGE, LAB):
        shutil.copytree(package, tmp_path / package.name, ignore=lambda _, names: [n for n in names if "." in n[:-3]])
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert lint(tmp_path) == (0, "")
    for path, (line, _) in MUTANTS.items():
        with (tmp_path / path).open("a") as file:
            file.write(f"\n{line}\n")
    code, text = lint(tmp_path)
    assert code == 1
    assert [complaint for _, complaint in MUTANTS.values() if complaint not in text] == []


def lint(folder: Path) -> tuple[int, str]:
    """Run the linter on a copy of the packages; return its exit code and what it finds broken."""
    code = "import sys, importlinter.cli; sys.path.insert(0, '.'); importlinter.cli.lint_imports_command()"
    words = [sys.executable, "-c", code, "--no-cache"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.partition("Broken contracts")[2]


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("envs/x.py", "from .autoreset import advance", "relative import"),
        ("learners/x.py", "loss.mean().item()", "item in hot code"),
        ("ops/x.py", "y = x.detach().cpu()", "cpu in hot code"),
        ("nets/x.py", "x.numpy()", "numpy in hot code"),
        ("replay/x.py", "print(x)", "print in hot code"),
        ("experiment/x.py", "import pickle", "unsafe pickle"),
        ("experiment/x.py", "from joblib import load", "unsafe joblib.load"),
        ("experiment/x.py", "eval('1')", "unsafe eval"),
        ("lab/x.py", "exec(code)", "unsafe exec"),
        ("experiment/x.py", "import torch\ntorch.load(path, weights_only=True)", "unsafe torch.load"),
        ("experiment/x.py", "import torch as t\nt.load(path)", "unsafe torch.load"),
        ("experiment/x.py", "from torch import load", "unsafe torch.load"),
        ("experiment/x.py", "import yaml\nyaml.load(text, Loader)", "unsafe yaml.load"),
        ("experiment/x.py", "YAML(typ='unsafe')", "unsafe typ='unsafe'"),
        ("experiment/x.py", "np.load(path, allow_pickle=True)", "unsafe allow_pickle=True"),
        ("experiment/x.py", "subprocess.run(line, shell=True)", "unsafe shell=True"),
        ("experiment/x.py", "assert seed >= 0, seed", "assert"),
    ],
)
def test_each_rule_is_enforced(path: str, source: str, complaint: str) -> None:
    assert complaint in complaints(source, path)


def test_tools_and_notebooks_run_nothing_from_files() -> None:
    problems = {path: unsafe(source) for path, source in outside().items()}
    assert {path: texts for path, texts in problems.items() if texts} == {}


def test_magic_in_a_notebook_is_caught() -> None:
    read = TransformerManager().transform_cell
    for cell in ("!rm -r x", "%run x.py", "%%bash\nls", "names = !ls", "import pickle", "eval('1')"):
        assert unsafe(read(cell)) != [], cell
    assert unsafe(read("import torch\nprint(await display(1))\nfrom plotly import io")) == []


def test_what_is_allowed_is_not_refused() -> None:
    source = """
import json, subprocess, torch
import numpy as np
from uavlab import __version__
from uavlab.core.rng import Streams
from uavlab.envs.autoreset import advance
net.eval()
np.load(path, allow_pickle=False)
json.load(handle)
subprocess.run(["git"], shell=False)
"""
    assert list(complaints(source, "envs/leader_follower/env.py")) == []
    assert list(complaints("value = loss.item()\nprint(value)\nx.cpu().numpy()", "experiment/run.py")) == []
