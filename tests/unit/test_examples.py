"""Every public name has an example in its docstring, and the examples run."""

import doctest
from pathlib import Path

import pytest
import torch

import uavlab as ul

FIRST = ("make", "train")  # the examples of other names use what these define


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"ul": ul, "torch": torch}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    public = [name for name in ul.__all__ if name not in ("__version__", *FIRST)]
    for name in (*FIRST, *sorted(public, key=lambda name: name == "start")):
        (example,) = finder.find(getattr(ul, name), name, globs={})
        assert example.examples, f"ul.{name} has no example"
        example.globs = names
        assert runner.run(example, clear_globs=False).failed == 0, name


def test_a_wrong_example_fails() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(example, out=lambda text: None).failed == 1
