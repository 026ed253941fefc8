"""The examples in the docstrings of public names run; names without one stand in the code of the pages."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import uavlab as ul

ROOT = Path(__file__).parents[2]
FIRST = ("make", "train")  # the examples of other names use what these define


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"ul": ul, "torch": torch}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = {name: finder.find(getattr(ul, name), name, globs={}) for name in ul.__all__ if name != "__version__"}
    with_example = {name: each[0] for name, each in tests.items() if each and each[0].examples}
    text = "".join(
        (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/python.md", "docs/environment.md")
    )
    page = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert [name for name in tests if name not in with_example and not re.search(rf"\bul\.{name}\b", page)] == []
    for name in (*FIRST, *sorted(with_example.keys() - {*FIRST}, key=lambda name: (name == "start", name))):
        example = with_example[name]
        example.globs = names
        assert runner.run(example, clear_globs=False).failed == 0, name


def test_the_page_on_other_libraries_runs(tmp_path: Path) -> None:
    """The second part needs BenchMARL, in an environment of its own."""
    first, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/interop.md").read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", first], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "{'group_0': ['agent_0'], 'group_1': ['agent_1', 'agent_2']}\n"), (
        done.stderr
    )


def test_a_wrong_example_fails() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(example, out=lambda text: None).failed == 1
