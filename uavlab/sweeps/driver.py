"""The driver of a sweep: it starts trials, starts those again whose process was killed, and collects results."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import Any

from uavlab.core.errors import UavlabError, reason_of
from uavlab.core.text import one_line
from uavlab.experiment.run_dir import lock_run_dir, read_status, require_empty
from uavlab.storage.files import write_json
from uavlab.sweeps.engines import Engine, local_engine
from uavlab.sweeps.spec import Sweep
from uavlab.sweeps.trials import (
    RESULT,
    Result,
    Trial,
    grid_trials,
    last_result,
    read_result,
    require_configurable,
    search_trials,
)

FILE, TRIALS = "sweep.json", "trials"  # in the folder of a sweep
MOST_KILLS = 5  # processes of a trial in a row that end without a result and without a further checkpoint

Row = dict[str, Any]


def run_sweep(
    sweep: Sweep, folder: Path, stop: Event, begin: Callable[[int], object] = str
) -> Generator[Row, None, None]:
    """Train all trials that are not complete in ``folder``, and yield a row for each trial as soon as it has ended.

    ``stop`` asks all trials to end after their updates; the rows of those that did not end are ``interrupted``. The
    next call with the same sweep goes on. ``begin`` is called with the number of trials at once before the first one.
    """
    require_folder(folder)
    plan = search_trials(sweep) if sweep.search else grid_trials(sweep)
    batch = next(plan)
    require_configurable(batch, some=sweep.search is not None)  # a search may propose what does not fit
    folder = folder.resolve()
    with open_engine(sweep) as engine, lock_run_dir(folder):
        for trial in batch:
            read_result(folder / TRIALS / trial.name, sweep.episodes)  # refuses a damaged one before hours of training
        write_json(folder / FILE, sweep.stored())
        begin(engine.workers)
        pool, number = ThreadPoolExecutor(engine.workers), 0
        try:
            while batch:
                work = [pool.submit(_attend, engine, trial, sweep, folder, stop) for trial in batch]
                numbers = {future: at for at, future in enumerate(work)}
                for done in as_completed(work):
                    yield row_of(number + numbers[done], batch[numbers[done]], done.result())
                number += len(batch)
                batch = [] if stop.is_set() else _next(plan, [future.result() for future in work])
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def require_folder(folder: Path) -> Path:
    """Return the folder if it is of a sweep, new, or empty."""
    if not (folder / FILE).exists():
        require_empty(folder)
    return folder


def _next(plan: Any, results: Sequence[Result]) -> list[Trial]:
    try:
        return plan.send(results)
    except StopIteration:
        return []


def _attend(engine: Engine, trial: Trial, sweep: Sweep, folder: Path, stop: Event) -> Result:
    """Run the processes of a trial until it has a result, or ``stop`` is set, or they end again and again."""
    place, lost = folder / TRIALS / trial.name, 0
    if result := read_result(place, sweep.episodes):
        return result
    (place / RESULT).unlink(missing_ok=True)
    while not stop.is_set():
        before = read_status(place).get("update")
        try:
            engine.run(place, trial.request(sweep.episodes), stop)
        except UavlabError as error:
            return {"status": "failed", "reason": one_line(reason_of(error))}
        if result := last_result(place):
            return result
        lost = 0 if read_status(place).get("update") != before else lost + 1
        if lost == MOST_KILLS:
            why = (
                f"its process ended {lost} times without a result; the last words of {place}.log: {_last_words(place)}"
            )
            return {"status": "killed", "reason": one_line(why)}
    return {"status": "interrupted", "reason": ""}


def _last_words(place: Path) -> str:
    try:
        lines = place.with_name(f"{place.name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "none")


def row_of(number: int, trial: Trial, result: Result) -> Row:
    """Return the row of a trial in the table; ``number`` is its place in the order of the sweep."""
    own = {key: value for key, value in result.items() if key not in ("episodes", "status", "reason")}
    head = {
        "number": number,
        "trial": trial.name,
        "preset": trial.preset,
        "settings": dict(trial.varied),
        "seed": trial.seed,
    }
    return {**head, "status": result.get("status"), "reason": result.get("reason", ""), **own}


def open_engine(sweep: Sweep) -> AbstractContextManager[Engine]:
    if sweep.engine == "ray":
        from uavlab.sweeps.ray_engine import ray_engine

        return ray_engine(sweep)
    return local_engine(sweep)
