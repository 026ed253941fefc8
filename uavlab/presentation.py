"""Flights, pages of runs, and sweeps, as ``ul.fly``, ``ul.report`` and ``ul.sweep``; all need packages that draw."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from uavlab.arguments import Trained, config_of, run_folders, trained_policy
from uavlab.core.extras import load_lab, require
from uavlab.core.protocols import Env
from uavlab.core.text import one_line
from uavlab.experiment import policy as policies
from uavlab.experiment import scores
from uavlab.experiment.config import Device
from uavlab.sweeps.driver import run_sweep
from uavlab.sweeps.spec import Sweep, read_sweep
from uavlab.sweeps.table import SweepTable


def fly(
    what: Trained | Env[Any],
    out: str | Path | None = None,
    *,
    policy: str | Callable[[Any], Tensor] | None = None,
    env: Env[Any] | None = None,
    seed: int = 0,
    mean_action: bool = False,
    run: int = 0,
) -> Any:
    """Return an animated flight of a team, a plotly figure, and write it to a file if one is named.

    >>> figure = ul.fly(run, "flight.html")
    >>> baseline = ul.fly(env, policy="random")

    Args:
        what: A run or its folder; with ``policy`` also a task.
        out: A page (``.html``), which needs no network, a film (``.gif``, ``.webp``, ``.mp4``), or one moment
            (``.png``, ``.svg``, ``.pdf``).
        policy: As in ``evaluate``.
        env: Environment to fly in, whose team may differ in size; None takes the evaluation task.
        seed: Seed of the flight.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.
        run: Number of the seed among those of the run.

    Raises:
        ConfigError: The environment cannot be drawn (``ul.scene``) or has no team that flies, or the file has another
            suffix.
        MissingPackageError: Packages that draw are not installed.
        ResourceError: The file cannot be written, or there is no browser to draw a film.
    """
    films, flight = load_lab("films", "fly"), load_lab("plots.flight", "fly")
    if out is not None:
        films.require_kind(Path(out))
    if policy is None:
        trained = trained_policy("fly", what)
        config, states = trained.config, policies.fly(trained, seed, mean_action, run, env)
    else:
        config = config_of(what)
        states = scores.fly_baseline(config, policy, seed, env)
    history = list(states)
    figure = flight.animate(env or config.evaluation, history).update_layout(meta={"steps": len(history) - 1})
    if out is not None:
        films.write(figure, Path(out))
    return figure


def report(
    runs: Trained | Iterable[Trained],
    out: str | Path | None = None,
    *,
    episodes: int = 200,
    seed: int = 0,
    mean_action: bool = False,
    device: Device | None = None,
) -> Path:
    """Write one page about runs, finished or not, and return it; what cannot be read of one is left out, and warned of.

    The page needs no network: scores, learning curves, flights, settings, machines, commands. Seeds of runs that differ
    by their seed alone are pooled, like those of one run.

    >>> ul.report("runs/first", "report.html", episodes=4).name
    'report.html'

    Args:
        runs: A run that has a folder, or the folder; or several of these.
        out: The page; None takes ``report.html`` in the folder of the run, of several in the folder above the first.
        episodes: Episodes by which each seed is scored.
        seed: Seed of the episodes and flights.
        mean_action: Use the mean action, or the likeliest move, instead of sampling.
        device: Where to evaluate; None takes the device of each run's settings.

    Raises:
        ConfigError: There is no run, one is kept in memory, or its environment is not registered here.
        FileError: A folder is no run, or its settings are damaged.
        MissingPackageError: Packages that draw are not installed.
        ResourceError: The page cannot be written.
    """
    scoring = load_lab("run_files", "report").Scoring(episodes, seed, mean_action, device)
    folders, page = run_folders("report", runs), None if out is None else Path(out)
    page, missing = load_lab("report", "report").write_report(folders, page, scoring)
    for note in missing:
        warnings.warn(one_line(note), stacklevel=2)
    return page


def sweep(what: Mapping[str, Any] | str | Path, out: str | Path, *, progress: bool = True) -> SweepTable:
    """Train all trials of a sweep, several at once, in processes of their own; write its table and its page.

    Trials that are complete in the folder are not trained again, others are resumed, so a second call goes on. An
    interrupt ends all trials after their updates. A sweep of which no trial has a score warns.

    >>> table = ul.sweep(many, "sweeps/rates", progress=False)  # goes on; nothing is left to do
    >>> mean, low, high = table.compare("lr=0.001", "lr=0.0003")

    Args:
        what: A YAML file, or a table with its keys; ``uavlab sweep --help`` lists them.
        out: Folder of the sweep: new, empty, or that of an earlier call.
        progress: Draw a progress bar.

    Raises:
        ConfigError: Keys or settings are unknown or wrong, the folder is in use or holds something else, or a Ray
            cluster cannot be joined.
        FileError: The result of a trial is damaged; the message says what to delete.
        MissingPackageError: Packages that draw, search or distribute are not installed.
        ResourceError: The folder cannot be written.
    """
    table, _ = run_and_report(read_sweep(what), Path(out), Event(), progress)
    if table.failure:
        warnings.warn(f"sweep: {table.failure}", stacklevel=2)
    return table


def run_and_report(spec: Sweep, out: Path, stop: Event, progress: bool = True) -> tuple[SweepTable, Path]:
    """Run a sweep, write its table and its page, and return both; ``stop`` ends it early."""
    require("sweep", "sweep", "pyarrow", "plotly")
    pages = load_lab("sweep_report", "sweep")  # before hours of trials
    rows, live = [], sys.stderr.isatty() or "ipykernel" in sys.modules
    seconds = 0.5 if live else 60
    bar = tqdm(total=spec.count, unit="trial", disable=not progress, mininterval=seconds, delay=1e-3)  # not yet
    with bar, closing(run_sweep(spec, out, stop, lambda n: bar.set_description_str(f"{n} at once"))) as ended:
        for row in ended:
            rows.append(row)
            bar.update()
            if row["status"] not in ("complete", "interrupted"):
                bar.write(one_line(f"{row['trial']}: {row['status']}: {row['reason']}"), file=sys.stderr)
    table = SweepTable(out.resolve(), spec, tuple(sorted(rows, key=lambda row: row["number"])))
    table.write()
    return table, pages.write_sweep_report(table)
