"""A run that somebody watches has the bits of one without; one that was changed has those of its script."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support.fixtures_config import sizes
from tests.support.live_runs import QUICK, finish, followed, step, trained, watch_threads
from tests.support.registries import registered_outside
from uavlab.experiment.config import Config, configure
from uavlab.experiment.run import Run
from uavlab_lab.live import pictures
from uavlab_lab.live import trainer as comparison
from uavlab_lab.live.panel import LivePanel
from uavlab_lab.live.trainer import Trainer

Settings = dict[str, Any]

FEW: Settings = {"updates": 30, "log_every": 4, "evaluate_every": 8, "evaluate_episodes": 1, "checkpoint_every": 100}
TASKS: dict[str, Settings] = {
    "leader_follower": {**sizes("leader_follower"), **FEW},
    "mapping": {**sizes("mapping"), **FEW, "updates": 16},
    "telemetry": {**sizes("telemetry"), **FEW},
    "drift_quick": QUICK,
}
# after so many updates these settings; those of the first change alternate, in slices of 2 updates
CHANGES: dict[str, list[tuple[int, Settings]]] = {
    "leader_follower": [(5, {"precision": "bf16"}), (9, {"batch": 12}), (6, {"adam": "single", "acting": "loop"})],
    "mapping": [(3, {"precision": "bf16", "maps": "device"}), (7, {"lr": 1e-4})],
    "telemetry": [(3, {"precision": "bf16", "loader": "per_item"}), (9, {"batch": 12}), (6, {"adam": "single"})],
    "drift_quick": [(5, {"adam": "single", "micro_batches": 2}), (11, {"worlds": 3})],
}


@pytest.fixture(autouse=True)
def quick_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(comparison, "SLICE", 1e-9)
    monkeypatch.setattr(comparison, "EVERY", 1e-9)
    with registered_outside(), watch_threads():
        yield


def watched(config: Config) -> Run:
    """Return a run that was trained by a trainer, with a panel that ticks."""
    each = Trainer(Run(config))
    panel = LivePanel(each)
    for _ in range(3):
        step(each, 3)
        panel.tick()
    each.start()
    while each.alive:
        panel.tick()
        time.sleep(0.02)  # else the thread waits for the interpreter after each of its operators
    each.join()
    return each.run


@pytest.mark.parametrize("preset", TASKS)
def test_watching_changes_no_bit(preset: str) -> None:
    config = configure(preset, TASKS[preset])
    run = watched(configure(preset, TASKS[preset], {"monitor": True}))
    assert run.digest == trained(config).digest
    assert run.changes == []


def test_a_panel_that_draws_random_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(run: Run) -> str:
        run.rng.normal("act", 1)
        return ""

    monkeypatch.setattr(pictures, "score_chart", draw)
    with pytest.raises(AssertionError):
        test_watching_changes_no_bit("leader_follower")


def changed(preset: str) -> Run:
    """Return a run whose settings were changed while it trained, with comparisons to and fro."""
    each = Trainer(Run(configure(preset, TASKS[preset])))
    for updates, settings in CHANGES[preset]:
        step(each, updates)
        each.change(**settings)
    finish(each)
    return each.run


@pytest.mark.parametrize("preset", TASKS)
def test_a_changed_run_is_its_script(preset: str) -> None:
    config, run = configure(preset, TASKS[preset]), changed(preset)
    assert {change.by for change in run.changes} == {"python", "comparison"}
    assert run.digest == followed(config, run.changes).digest


@pytest.mark.parametrize("preset", ["leader_follower", "telemetry"])
def test_a_slice_that_is_left_out_is_caught(preset: str) -> None:
    config, run = configure(preset, TASKS[preset]), changed(preset)
    slices = [number for number, change in enumerate(run.changes) if change.by == "comparison"]
    without = [change for number, change in enumerate(run.changes) if number not in slices[:2]]
    assert run.digest != followed(config, without).digest


def test_another_thread_computes_with_the_threads_of_the_run() -> None:
    """torch counts threads for each thread of Python, and sums depend on their number."""
    each, seen = Trainer(Run(configure("drift_quick", QUICK, {"threads": 3}))), []
    step(each, 1)
    each.order(lambda: seen.append(torch.get_num_threads())).result(10)
    each.stop(10)
    assert seen == [3]
