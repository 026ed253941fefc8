"""The panel of a live run in JupyterLab for minutes: a compilation, what the panel costs, and what it leaves behind."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import linear_regression
from typing import Any

import psutil
import pytest

from tests.support.lab_browser import OpenNotebook, Watched, browsing, busy_cores, serving
from tests.support.live_panel import LivePage
from tests.support.tiny_notebook import write_notebook
from uavlab_lab.live.trainer import speed_ratio

pytestmark = [pytest.mark.browser, pytest.mark.soak]

PATIENCE_MS = 600_000
MINUTES = float(os.environ.get("UAVLAB_PANEL_MINUTES", "30"))  # of the last test
WARM_UP = 1 / 3  # of its samples: buffers fill, and the curve gets its points
PAIRS, SLICE = 12, 5.0  # slices of each side, and their length (s)
MIB = 2**20
MOST_GROWTH = {"kernel": 30, "heap": 6, "nodes": 300}  # in all; a checkpoint takes memory once
SETUP = """import asyncio, json, os, time
from pathlib import Path
import uavlab as ul
from uavlab_lab import panel
run = ul.start("leader_follower_quick", out="run", settings={"updates": 10_000_000, "evaluate_every": 1000})
shown = panel(run)
Path("pid").write_text(str(os.getpid()))"""
COST = f"""history, rates = shown.trainer.history, {{True: [], False: []}}
for number in range(2 * {PAIRS}):
    ticks = number % 4 in (0, 3)
    shown.follow() if ticks else shown.rest()
    await asyncio.sleep(1)
    updates, seconds = run.number, history.net
    await asyncio.sleep({SLICE})
    rates[ticks].append((run.number - updates) / (history.net - seconds))
    shown.rest()
Path("rates").write_text(json.dumps([rates[False], rates[True]]))"""


@contextmanager
def training(folders: pytest.TempPathFactory, *cells: str, busy: bool) -> Iterator[tuple[Path, Watched, LivePage]]:
    """Open a notebook whose first cell shows the panel of a run, start that, and look at the page at the end."""
    root = folders.mktemp("notebook")
    write_notebook(root, SETUP, *cells)
    context = busy_cores() if busy else nullcontext()
    with context, browsing() as watched, serving(root, folders.mktemp("jupyter")) as url:
        watched.page.set_default_timeout(PATIENCE_MS)
        notebook = OpenNotebook(watched.page, url, "tiny.ipynb")
        notebook.run("cell-0")
        live = LivePage(notebook, "cell-0")
        live.press("Start")
        live.goes_on(200)
        yield root, watched, live
        assert watched.errors == []
        assert watched.outside(url) == []


def test_code_is_compiled_while_the_panel_says_so(
    tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    with training(tmp_path_factory, busy=True) as (_, _, live):
        live.choose("compile", "default")
        live.wait("now.status.includes('compiling')")
        live.goes_on(10)  # by code that is not compiled yet
        seconds = live.wait("!now.status.includes('compiling')", PATIENCE_MS)
        assert live.shown()["alert"] == ""
        live.wait("/measuring the last change, slice [2-6]/.test(now.status)")
        live.goes_on(10)
        live.wait(
            "cell.querySelector('.uavlab-live table')?.textContent.includes('interleaved, 6 slices')", PATIENCE_MS
        )
        assert live.control("compile").input_value() == "default"
    proof(
        "a compilation from the panel on busy cores",
        f"training goes on meanwhile, {seconds:.0f} s, and the panel shows it",
    )


def test_a_panel_costs_little(tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]) -> None:
    with training(tmp_path_factory, COST, busy=False) as (root, _, live):
        live.notebook.run("cell-1")
        without, with_panel = json.loads((root / "rates").read_text())
    ratio = speed_ratio(without, with_panel, paired=True)
    assert len(without) == len(with_panel) == PAIRS
    figure = f"{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}) of the speed without, {PAIRS} pairs"
    proof("speed with a panel that follows", figure)


def read_memory(root: Path, devtools: Any, page: Any) -> dict[str, float]:
    """Return the memory of kernel and page (MiB), and the page's nodes without the dots of scores, which get more."""
    dots = page.locator("circle").count()
    devtools.send("HeapProfiler.collectGarbage")
    now = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    kernel = psutil.Process(int((root / "pid").read_text())).memory_info().rss
    return {"kernel": kernel / MIB, "heap": now["JSHeapUsedSize"] / MIB, "nodes": now["Nodes"] - dots}


def slope(values: Sequence[float]) -> float:
    """Return how much values taken each minute grow per minute, after the first ones."""
    late = values[int(WARM_UP * len(values)) :]
    return linear_regression(range(len(late)), late).slope


def test_a_panel_leaves_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, proof: Callable[[str, str], None]
) -> None:
    samples = []
    with training(tmp_path_factory, busy=False) as (root, watched, live):
        page = watched.page
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable")
        for _ in range(round(MINUTES)):
            page.wait_for_timeout(60_000)
            samples.append(read_memory(root, devtools, page))
            print(samples[-1], live.shown()["update"], flush=True)
        live.goes_on()
    growth = {name: slope([each[name] for each in samples]) for name in samples[0]}
    figures = [f"kernel {growth['kernel']:+.2f} MiB", f"page {growth['heap']:+.3f} MiB, {growth['nodes']:+.1f} nodes"]
    proof(f"growth per minute in {MINUTES:.0f} min of a panel", ", ".join(figures))
    assert {name: each for name, each in growth.items() if each * len(samples) > MOST_GROWTH[name]} == {}, samples
