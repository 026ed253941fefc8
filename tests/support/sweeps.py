"""Small sweeps, and engines that train nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from tests.support.fixtures_config import TINY
from uavlab.sweeps import driver
from uavlab.sweeps.engines import Engine
from uavlab.sweeps.spec import Sweep, read_sweep
from uavlab.sweeps.table import SweepTable
from uavlab.sweeps.trials import RESULT, Trial

SETTINGS: dict[str, Any] = {key: value for key, value in TINY.items() if key not in ("formation_radius",)} | {
    **{"updates": 10, "checkpoint_every": 2, "evaluate_every": 5},
}
Work = Callable[[Path, dict[str, Any]], dict[str, Any] | None]


def small(**keys: Any) -> Sweep:
    """Return a sweep of tiny runs."""
    return read_sweep({"presets": ["leader_follower"], "settings": SETTINGS, "episodes": 3, "workers": 2, **keys})


def result(score: float | None, status: str = "complete", **more: Any) -> dict[str, Any]:
    """Return the result of a trial as its process writes it."""
    figures = {} if score is None else {"figures": {"completion": score}, "score": score, "digest": f"{score}"}
    return {"status": status, "reason": "", "episodes": 3, **figures, **more}


def table(folder: Path, scores: dict[tuple[str, Any], list[float | None]], **keys: Any) -> SweepTable:
    """Return a table of these scores by preset and value of ``lr``."""
    rows: list[dict[str, Any]] = []
    for (preset, lr), own in scores.items():
        for seed, score in enumerate(own):
            trial = Trial(preset, {"lr": lr}, seed, {"lr": lr})
            row = {"number": len(rows), "trial": trial.name, "preset": preset, "settings": {"lr": lr}, "seed": seed}
            failed = {"status": "diverged", "reason": "<b>nan</b>"}
            rows.append(
                {**row, "status": "complete", "reason": "", "score": score, **({} if score is not None else failed)}
            )
    presets = list(dict.fromkeys(preset for preset, _ in scores))
    return SweepTable(folder, small(presets=presets, settings={}, **keys), tuple(rows))


def scripted(monkeypatch: Any, work: Work, workers: int = 2) -> list[str]:
    """Let trials be done by a function of folder and request, which returns a result or None; return the log."""
    log: list[str] = []

    def run(folder: Path, request: str, stop: Event) -> None:
        log.append(folder.name)
        done = work(folder, json.loads(request))
        if done is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RESULT).write_text(json.dumps(done))

    @contextmanager
    def engine(sweep: Sweep) -> Iterator[Engine]:
        yield Engine(workers, run)

    monkeypatch.setattr(driver, "open_engine", engine)
    return log
