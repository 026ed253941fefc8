"""Imports point down, hot code never waits for the host, and no data file can make uavlab run code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "uavlab"
FLOORS = {
    **dict.fromkeys(("core", "lean"), 0),
    **dict.fromkeys(("ops", "storage"), 1),
    **dict.fromkeys(("nets", "envs", "runtime", "workers"), 2),
    **dict.fromkeys(("profiling", "replay"), 3),
    **dict.fromkeys(("learners", "collectors"), 4),
    **dict.fromkeys(("training", "evaluation"), 5),
    "telemetry": 6,
    "experiment": 7,
    **dict.fromkeys(("live", "sweeps"), 8),
    **dict.fromkeys(("benchmarks", "registration"), 9),
    **dict.fromkeys(("arguments", "lab", "testing"), 10),
    **dict.fromkeys(("api", "interop", "measure", "presentation"), 11),
    "cli": 12,
    **dict.fromkeys(("__init__", "__main__"), 13),
}
HOMES = {
    **dict.fromkeys(("plotly", "ipywidgets", "av"), ("lab",)),
    "click": ("cli",),
    "pyulog": ("telemetry",),
    "sklearn": (),  # for tests
    "pyarrow": ("telemetry", "sweeps"),
    **dict.fromkeys(("numba", "cv2"), ("envs",)),
    **dict.fromkeys(("optuna", "ray"), ("sweeps",)),
    **dict.fromkeys(("gymnasium", "pettingzoo"), ("workers", "interop")),
    **dict.fromkeys(("torchrl", "tensordict"), ("interop",)),
    **dict.fromkeys(("wandb", "mlflow"), ("storage",)),
}
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
                yield from refuse_import(full, home)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from refuse_call(node, home, aliases)
        if isinstance(node, ast.Assert) and home in FLOORS:
            yield "assert"  # gone under python -O, so no guard


def refuse_import(full: str, home: str) -> Iterator[str]:
    root, _, rest = full.partition(".")
    part = rest.partition(".")[0]
    if root == "uavlab" and part in FLOORS and part != home and FLOORS[part] >= FLOORS.get(home, -1):
        yield f"{home} imports {part}"
    if root in HOMES and home not in HOMES[root]:
        yield f"{root} outside {' and '.join(HOMES[root])}"
    if {root, full} & UNSAFE:
        yield f"unsafe {full}"


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
    for file in sorted(PACKAGE.rglob("*.py")):
        path = str(file.relative_to(PACKAGE))
        problems[path] = list(complaints(file.read_text(), path))
        if path != "__init__.py" and path.removesuffix(".py").partition("/")[0] not in FLOORS:
            problems[path].append("no floor for this module")
    assert {path: texts for path, texts in problems.items() if texts} == {}


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("core/rng.py", "from uavlab.ops.geometry import angle", "core imports ops"),
        ("ops/sum_tree.py", "import uavlab.storage.files", "ops imports storage"),  # the same floor, another folder
        ("collectors/x.py", "from uavlab import learners", "collectors imports learners"),
        ("envs/x.py", "def f():\n    from uavlab.training import training", "envs imports training"),
        ("core/x.py", "from uavlab.api import train", "core imports api"),
        ("envs/x.py", "from .autoreset import advance", "relative import"),
        ("experiment/run.py", "import plotly.graph_objects as go", "plotly outside lab"),
        ("experiment/run.py", "from ipywidgets import Button", "ipywidgets outside lab"),
        ("lab/widgets.py", "import click", "click outside cli"),
        ("experiment/run.py", "def f():\n    from pyarrow import parquet", "pyarrow outside telemetry and sweeps"),
        ("experiment/run.py", "import ray", "ray outside sweeps"),
        ("envs/x.py", "from gymnasium.spaces import Box", "gymnasium outside workers and interop"),
        ("experiment/x.py", "import torchrl.envs", "torchrl outside interop"),
        ("envs/x.py", "from uavlab.telemetry import task", "envs imports telemetry"),
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
