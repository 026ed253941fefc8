"""Small sweeps, and engines that train nothing."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from tests.support.fixtures_config import TINY
from uavlab.core.errors import FileError
from uavlab.storage import checkpoint
from uavlab.storage.files import write_json
from uavlab.sweeps import driver
from uavlab.sweeps.driver import RESULT, SCORED, Engine, last_result, run_sweep, write_signed
from uavlab.sweeps.spec import Sweep, Trial, read_sweep
from uavlab.sweeps.table import SweepTable

SETTINGS: dict[str, Any] = {key: value for key, value in TINY.items() if key not in ("formation_radius",)} | {
    **{"updates": 10, "checkpoint_every": 2, "evaluate_every": 5},
}
Work = Callable[[Path, dict[str, Any]], dict[str, Any] | None]


def small(**keys: Any) -> Sweep:
    """Return a sweep of tiny runs."""
    return read_sweep({"presets": ["leader_follower"], "settings": SETTINGS, "episodes": 3, "workers": 2, **keys})


def rows(folder: Path, sweep: Sweep | None = None, stop: Event | None = None, **keys: Any) -> list[dict[str, Any]]:
    """Run a sweep in a folder, by default a small one with these keys, and return its rows in order."""
    return sorted(run_sweep(sweep or small(**keys), folder, stop or Event()), key=lambda row: row["number"])


def result(score: float | None, status: str = "complete", **more: Any) -> dict[str, Any]:
    """Return the result of a trial as its process writes it."""
    figures = {"figures": {"completion": score}, "score": score, "digest": f"{score}"}
    figures |= {"updates": 1, "best_update": 1, "seconds": 1.0, "device": "none", "not_exact": []}
    return {"status": status, "reason": "", "episodes": 3, **(figures if status in SCORED else {}), **more}


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
            write_signed(folder / RESULT, done)
            if "digest" in done:
                write_json(folder / "run.json", {"digest": done["digest"]})
                checkpoint.save(folder / "checkpoints", 1, {"best": {}}, {"preset": "none"}, keep=1)

    @contextmanager
    def engine(sweep: Sweep) -> Iterator[Engine]:
        yield workers, run

    monkeypatch.setattr(driver, "open_engine", engine)
    return log


def flip_bits(path: Path, count: int, see: Callable[[], Any]) -> int:
    """Flip random bits of a file, one at a time; return how many ``see`` refuses. Others change nothing."""
    text, whole, dice, refused = path.read_bytes(), see(), random.Random(0), 0
    for _ in range(count):
        at, bit = dice.randrange(len(text)), dice.randrange(8)
        path.write_bytes(text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :])
        try:
            if see() != whole:
                raise AssertionError(f"bit {bit} of byte {at} of {path.name} changes what is read without a word")
        except FileError:
            refused += 1
    path.write_bytes(text)
    return refused


def flip_every_file(folder: Path, count: int) -> dict[str, int]:
    """Flip bits of every file of a trial; return how many are refused by the kind of its name."""
    refused: dict[str, int] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        refused[path.name] = refused.get(path.name, 0) + flip_bits(path, count, lambda: last_result(folder))
    return refused
