"""Commands of sweeps: sweep, and trial, which it starts."""

import os
import sys
from pathlib import Path
from threading import Event

import click

from uavlab.cli.base import Record, as_json, cli, echo, print_json
from uavlab.core.errors import UavlabError
from uavlab.core.text import one_line
from uavlab.experiment.signals import graceful_stop


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder; default sweeps/NAME of the file. It goes on there."
)
@as_json
def sweep(file: Path, out: Path | None) -> Record:
    """Train all trials that FILE names, several at once, and write one table and one page about them.

    \b
    FILE is YAML with these keys:
      presets: [NAME, ...]       what is trained
      settings: {NAME: VALUE}    of every trial; toggles: SET is a named set
      grid: {NAME: [VALUE, ...]} every combination is trained
      search: {ranges: {NAME: {low: A, high: B, log: true}}, trials: N}
                                 in place of grid, by Optuna
      seeds: N or [SEED, ...]    default 3
      episodes: N                by which trials are scored; default 100
      scale: {PRESET: [LOW, HIGH]}
      engine: local or ray, workers: N, address: HOST:PORT, gpus: SHARE

    A second call goes on where the first one was ended or killed: complete trials stay, others are resumed. Without a
    score of any trial, the exit code is 1.
    """  # noqa: D301
    from uavlab.presentation import run_and_report
    from uavlab.sweeps.spec import read_sweep

    spec, stop = read_sweep(file), Event()
    with graceful_stop(stop.set, os._exit) as received:  # trials end by themselves when this process does
        table, page = run_and_report(spec, out or Path("sweeps") / file.stem, stop)
    echo(table)
    echo(f"open {page}")
    record = {**table.record(), "page": str(page)}
    if received:
        print_json(record)
        sys.exit(128 + received[0])
    if table.failure:
        echo(f"sweep: {table.failure}", err=True)
        print_json(record)
        sys.exit(UavlabError.exit_code)
    return record


@cli.command("sweep-trial")
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def trial(folder: Path) -> Record:
    """Train one trial of a sweep in FOLDER; its description comes as a line of standard input, whose end stops it."""
    from uavlab.sweeps.trials import read_request, run_trial, watch_input

    request, stop = read_request(), Event()
    watch_input(stop.set)
    with graceful_stop(stop.set):
        result = run_trial(folder, request, stop)
    echo(
        one_line(f"{folder}: {(result or {}).get('status', 'interrupted')} {(result or {}).get('reason', '')}").strip()
    )
    return result or {"status": "interrupted"}
