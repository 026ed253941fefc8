"""Whole runs with emulated graphs have the digests of plain runs, also after a resume or a failed capture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_graph_emulator import Emulator
from tests.support.fixtures_config import sizes, tiny, train_run, train_tiny
from uavlab.core.errors import DivergedError, FallbackWarning
from uavlab.envs.mapping import fusion
from uavlab.experiment.config import configure
from uavlab.experiment.run import Run
from uavlab.learners.masac.masac import MASAC
from uavlab.runtime import cuda_graph
from uavlab.runtime import toggles as toggle_records
from uavlab.runtime.cuda_graph import WARM_UP
from uavlab.runtime.toggles import EAGER

TASKS = [("mapping", "coma"), ("telemetry", "forecaster"), ("spread", "mappo"), ("pursuit", "masac")]
GRAPHS = pytest.mark.parametrize("graph", ["update", "cycle"])


@pytest.fixture(autouse=True)
def emulators(monkeypatch: pytest.MonkeyPatch) -> list[Emulator]:
    backends: list[Emulator] = []
    monkeypatch.setattr(cuda_graph, "CudaBackend", lambda: backends.append(Emulator()) or backends[-1])
    monkeypatch.setattr(toggle_records, "_cuda", lambda what, device: None)
    return backends


@GRAPHS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"runs": 3, "world_steps": 2, "evaluate_every": 7},
        {"priorities": "mean", "critic": "shared", "followers": 2},
        {"lr_to": 0.1, "lr_updates": 9, "n_step": 1, "critic": "own"},
        {"log_episodes": True, "log_every": 3},
    ],
    ids=str,
)
def test_a_run_with_graphs_is_the_same_run(
    graph: str, changes: dict[str, Any], tmp_path: Path, emulators: list[Emulator], proof: Callable
) -> None:
    plain = train_tiny(tmp_path / "plain", updates=14, **changes)
    fast = train_tiny(tmp_path / "fast", updates=14, graph=graph, **changes)
    assert fast.rt.fell_back == {}
    assert sum(tape.replays for emulator in emulators for tape in emulator.tapes) == 14 - WARM_UP
    assert fast.digest == plain.digest
    ends = []
    for folder in ("plain", "fast"):
        run = Run.resume(tmp_path / folder, {"updates": 18})
        for _ in run.train():
            pass
        ends.append(run.digest)
    assert ends[0] == ends[1]
    proof("runs with graphs (emulated)", "5 kinds of run x 2 graphs, 14 updates, resumed for 4 more, equal digests")


def run_of(env: str, folder: Path | None = None, **changes: Any) -> Run:
    """Train a small run of an environment."""
    return train_run(configure(env, sizes(env, changes.get("learner")), EAGER, {"updates": 8}, changes), folder)


@GRAPHS
@pytest.mark.filterwarnings("ignore:mapping. numba")
@pytest.mark.parametrize(
    ("env", "learner", "changes"), [*((*task, {}) for task in TASKS), ("spread", "mappo", {"memory": 6})]
)
def test_runs_of_every_learner_are_the_same(
    graph: str,
    env: str,
    learner: str,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    emulators: list[Emulator],
) -> None:
    """Metrics and counters are part of the digest, so those of another minibatch or of a recording are seen."""
    monkeypatch.setattr(fusion, "NUMBA", False)  # as on a GPU
    plain = run_of(env, tmp_path / "plain", learner=learner, **changes)
    fast = run_of(env, tmp_path / "fast", learner=learner, graph=graph, **changes)
    assert fast.rt.fell_back == {}
    assert sum(tape.replays for emulator in emulators for tape in emulator.tapes) > 0
    assert fast.recorder.rows[-1]["update"] == plain.recorder.rows[-1]["update"]
    for one, other in zip(fast.recorder.rows, plain.recorder.rows, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert fast.digest == plain.digest
    ends = [train_on(Run.resume(tmp_path / folder, {"updates": 10})).digest for folder in ("plain", "fast")]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("loader", ["stream", "per_item"])
def test_a_loader_that_cannot_be_captured_leaves_the_digest(loader: str) -> None:
    plain = run_of("telemetry", loader=loader)
    with pytest.warns(FallbackWarning, match="graph=cycle fell back"):
        fast = run_of("telemetry", loader=loader, graph="cycle")
    assert fast.digest == plain.digest


def train_on(run: Run) -> Run:
    for _ in run.train():
        pass
    return run


@GRAPHS
def test_what_cannot_be_recorded_falls_back_with_the_same_digest(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, update = train_tiny(updates=10), MASAC._update

    def asks(self: MASAC, batch: Any, noise: Any) -> Any:
        result = update(self, batch, noise)
        assert result.metrics["target"].isfinite().all()  # waits for the value
        return result

    monkeypatch.setattr(MASAC, "_update", asks)
    with pytest.warns(FallbackWarning, match=f"graph={graph} fell back"):
        fast = train_tiny(updates=10, graph=graph)
    assert "waits for the device" in fast.rt.fell_back["graph"]
    assert fast.digest == plain.digest


@GRAPHS
def test_a_run_that_diverges_in_a_graph_says_when(graph: str) -> None:
    run = Run(tiny(updates=60, graph=graph, log_every=20, evaluate_every=60, checkpoint_every=60))
    with pytest.raises(DivergedError) as raised:  # noqa: PT012
        for progress in run.train():
            if progress.number == 23:
                run.learner.critic.parameter.data[0, 3] = float("nan")
    assert raised.value.record.items() >= {"tensor": "critic.parameter", "update": 23, "checked": 40}.items()
