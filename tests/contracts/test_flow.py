"""Runs with every way of storing, drawing and fetching rows, stopped again and again, end in a whole run's bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.support.fixtures_config import tiny, train_tiny
from tests.support.schedule_reference import InlineExecutor
from uavlab.experiment.run import Run
from uavlab.runtime.toggles import TOGGLES

FLOWS: list[dict[str, Any]] = [
    {"interval": 3, "ratio": 2},
    {"prefetch": "overlap", "interval": 2},
    {"priorities": "mean", "runs": 2},
    {"priorities": "max", "prefetch": "on", "placement": "host"},
    {"priorities": "mean", "prefetch": "overlap", "interval": 3, "ratio": 2, "placement": "host"},
]
UPDATES, POINTS = 10, (1, 2, 4, 5, 8, 10)  # replay is full after four cycles


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: " ".join(f"{k}={v}" for k, v in flow.items()))
def test_a_run_stopped_again_and_again_ends_in_the_same_bits(
    tmp_path: Path, flow: dict[str, Any], proof: Callable[[str, str], None]
) -> None:
    whole, folder = train_tiny(updates=UPDATES, **flow), tmp_path / "run"
    Run(tiny(updates=UPDATES, **flow), folder)
    for point in POINTS:
        run = Run.resume(folder)
        for progress in run.train():
            if progress.number == point:
                run.stop()
        assert json.loads((folder / "run.json").read_text())["update"] == point
    assert (run.digest, run.parts.not_exact_reasons) == (whole.digest, [])
    proof("exact resume of the data flow", f"{len(FLOWS)} ways, {len(POINTS) - 1} resume points, equal digests")


def test_every_value_is_met() -> None:
    hints = {name: toggle.kind for name, toggle in TOGGLES.items()}
    for name in ("prefetch", "priorities", "placement"):
        values = {flow.get(name) for flow in FLOWS} | {
            "off",
            "device",
            "pinned",
        }  # only a GPU has use for pinned memory
        assert set(get_args(hints[name])) <= values


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_on_a_gpu_streams_and_threads_change_nothing(flow: dict[str, Any]) -> None:
    run, twin = (Run(tiny(device="cuda", updates=60, **flow)) for _ in range(2))
    twin.source.executor = twin.source.executor and InlineExecutor()
    if twin.source.prefetcher is not None:
        twin.source.prefetcher.executor = twin.source.prefetcher.stream = None
    for each in (run, twin):
        for _ in each.train():
            pass
    assert run.digest == twin.digest


@pytest.mark.parametrize("flow", [{}, {"interval": 2, "ratio": 2}, {"interval": 3, "prefetch": "overlap"}], ids=str)
def test_a_plan_counts_the_steps_that_are_made(flow: dict[str, Any]) -> None:
    run = train_tiny(updates=7, world_steps=2, **flow)
    assert run.source.steps * run.config.source.worlds == run.config.task.plan(run.config)["world_steps_per_run"]
