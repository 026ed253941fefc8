"""Lessons show true differences: a diff fits the file that it names, and what it makes computes what it says."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.contracts.test_lean import FILES, PackageNoise, largest_difference, package_numbers
from uavlab.core.rng import Streams
from uavlab.experiment import build
from uavlab.lean import masac
from uavlab.runtime.toggles import RECORDS
from uavlab.training import training
from uavlab_lab.headless.strip_outputs import read_notebook

ROOT, LEAN = Path(__file__).parents[3], FILES[0]
UPDATES, ROUNDING = 24, 1e-9  # more than a round of 20 updates; the largest difference of a parameter in float64
NOT_SHOWN = {"memory_fraction": "needs a CUDA device; no lesson measures it", "threads": "no lesson measures it"}
EXACT = ["deterministic=on", "graph=update", "loader=per_item", "maps=overwritten", "placement=host", "ranks=2"]
EXACT += ["recompute=on", "scaler=conservative"]  # the bits of the lean file
ROUNDED = ["acting=loop", "adam=single", "compile=default", "maps=host", "micro_batches=4", "update=merged"]
ROUNDED += ["optimizers=many"]  # a fused Adam rounds the last numbers of a row in another way
SINGLE = {"precision=bf16": 1e-4}  # in float32, because bfloat16 has no effect on the package's float64
ANOTHER = ["interval=20", "prefetch=on", "prefetch=overlap", "priorities=mean", "ratio=4", "world_steps=20", *SINGLE]
DIFF = re.compile(r"^```diff\n--- ([^\n]+)\n\+\+\+ ([^\n]+)\n(.+?)^```$", re.DOTALL | re.MULTILINE)

NOTEBOOKS = [{cell["id"]: cell.source for cell in read_notebook(path).cells} for path in ROOT.glob("notebooks/*.ipynb")]
DIFFS = {
    diff[2]: (diff[1], diff[3], cells) for cells in NOTEBOOKS for diff in DIFF.finditer(cells.get("differences", ""))
}
PLAIN = Path(masac.__file__).read_text(encoding="utf-8")


def patch(title: str) -> str:
    place, hunks, cells = DIFFS[title]
    source = cells[place.removeprefix("cell ")] if place.startswith("cell ") else (ROOT / place).read_text("utf-8")
    for hunk in re.split(r"^@@ .*\n", hunks, flags=re.MULTILINE)[1:]:
        old, new = ("".join(re.findall(rf"^[ {sign}](.*\n)", hunk, re.MULTILINE)) for sign in "-+")
        assert source.count(old) == 1, f"{source.count(old)} times in {place}:\n{old}"
        source = source.replace(old, new)
    return source


def package_noise(dtype: torch.dtype) -> PackageNoise:
    noise = PackageNoise()
    noise.streams = Streams([0], dtype=dtype)
    return noise


def train(source: str, noise: Any) -> dict[str, torch.Tensor]:
    """Train by a lean file; return the parameters after the last update."""
    module: Any = ModuleType("lean_of_a_lesson")
    sys.modules[module.__name__] = module  # where torch.compile looks for it
    exec(compile(source.replace('"cuda"', '"cpu"'), module.__name__, "exec"), vars(module))
    module.Noise = lambda seed: noise  # of the thread
    settings = module.Settings(**vars(LEAN.settings(LEAN.config(updates=UPDATES))))
    *_, (_, learner, _) = module.train(settings, noise)
    return {name: table.detach() for name, table in LEAN.numbers(learner).items()}


@contextmanager
def record(graph: Any) -> Iterator[None]:
    """Note an update without running it, as the capture of a CUDA graph does; ``replay`` runs it."""
    kind: Any = sys.modules["lean_of_a_lesson"].MASAC
    update, kind.update = kind.update, lambda *inputs: setattr(graph, "replay", partial(update, *inputs))
    yield
    kind.update = update


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use float64, and what stands for a compiler, a CUDA graph and two equal ranks."""
    names = dict.fromkeys(("cuda.Stream", "cuda.set_stream", "cuda.CUDAGraph", "distributed.broadcast"), MagicMock())
    names |= {"distributed.all_reduce": lambda tensor: tensor.mul_(2), "distributed.get_world_size": lambda: 2}
    names |= {"cuda.graph": record, "compile": partial(torch.compile, backend="aot_eager")}
    for name, value in names.items():
        monkeypatch.setattr(f"torch.{name}", value)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


def test_every_toggle_is_shown_or_has_a_reason() -> None:
    assert {record.name for record in RECORDS} - {title.partition("=")[0] for title in DIFFS} == NOT_SHOWN.keys()
    assert {*EXACT, *ROUNDED, *ANOTHER, "loader=device"} == DIFFS.keys()


@pytest.mark.parametrize("title", EXACT + ROUNDED)
def test_results_are_those_of_the_lean_file(title: str) -> None:
    ours, plain = (train(source, masac.Noise(0)) for source in (patch(title), PLAIN))
    assert largest_difference(ours, plain) <= (ROUNDING if title in ROUNDED else 0)


@pytest.mark.parametrize("title", ANOTHER)
def test_results_are_those_of_the_package(title: str) -> None:
    torch.set_default_dtype(dtype := torch.float32 if title in SINGLE else torch.float64)
    name, _, value = title.partition("=")
    config = LEAN.config(**{name: int(value) if value.isdecimal() else value}, updates=UPDATES)
    rt, rng, most = build.runtime(config.run, config.toggles), Streams([0], dtype=dtype), SINGLE.get(title, ROUNDING)
    learner, source = config.task.build(config, rng, rt)
    assert len(list(training(source, learner, rng, rt, 0, UPDATES))) == UPDATES
    patched, plain = (train(source, package_noise(dtype)) for source in (patch(title), PLAIN))
    assert largest_difference(patched, package_numbers(learner)) <= most
    assert largest_difference(patched, plain) > most


def test_windows_are_those_of_the_cell() -> None:
    windows, rows = [], torch.rand(99, 3)
    for source in (DIFFS["loader=device"][2]["once-code"], patch("loader=device")):
        exec(source, names := {"torch": torch})
        windows.append(names["scaled_one_by_one"](rows, torch.arange(0, 80, 5), 10, rows.mean(0), rows.std(0)))
    assert torch.equal(*windows)


def test_a_diff_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIFFS, "a=2", ("cell x", "@@ a\n-a = 1\n+a = 2\n", {"x": "b = 1\n"}))
    with pytest.raises(AssertionError, match="0 times in cell x"):
        patch("a=2")
