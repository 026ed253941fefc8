"""Training to the end, with a progress bar."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from uavlab.core.errors import ConfigError
from uavlab.core.text import one_line, quote
from uavlab.experiment.diagnostics import SCORE, progress_report
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Progress
from uavlab.runtime.runtime import Runtime

OnLog = Callable[[Run, dict[str, Any]], Any]


def finish(run: Run, progress: bool, on_log: OnLog | None) -> Run:
    """Train a run to its end and return it; ``on_log`` is called with the run and each row of logged metrics."""
    if not (on_log is None or callable(on_log)):
        raise ConfigError(f"on_log: got {quote(on_log)}; expected a function of the run and a row of metrics.")
    for step in watch(run) if progress else run:
        if on_log is not None and (step.metrics or step.score):
            on_log(run, run.recorder.rows[-1])
    return run


def watch(run: Run) -> Iterator[Progress]:
    """Train a run, drawing a progress bar with its rate and printing its scores."""
    config = run.config
    row, what = config.task.collector.data_per_update(config)
    live = sys.stderr.isatty() or "ipykernel" in sys.modules
    seconds = 0.5 if live else 60  # without a terminal or notebook, one line a minute
    bar = tqdm(total=config.run.updates, initial=run.number, unit="update", mininterval=seconds, maxinterval=seconds)
    every, since = config.run.report_every, run.number
    with (
        bar,
        _warnings_on_own_lines(bar),
        _log_on_own_lines(bar, config.run.log_level),
        _compilations_in_postfix(bar, run.rt),
    ):
        for progress in run:
            bar.update(progress.number - bar.n)
            if progress.metrics:
                rate, limit = row * run.number / run.seconds, config.run.minutes
                clock = f", {run.seconds / 60:.1f} of {limit:g} min" if limit else ""
                bar.set_postfix_str(f"{rate:,.0f} {what}/s{clock}", refresh=False)
            if progress.score:
                figures = [f"{name} {progress.score[f'{SCORE}{name}']:.3f}" for name in config.evaluation.score]
                bar.write(one_line(f"{progress.number:>8}  " + "  ".join(figures)))
            if every and progress.number % every == 0:
                bar.write(one_line(progress_report(run, since)))
                since = progress.number
            yield progress


@contextmanager
def _warnings_on_own_lines(bar: Any) -> Iterator[None]:
    """Clear a bar while a warning is shown, which would otherwise go on in the bar's line."""
    show = warnings.showwarning

    def show_alone(*args: Any, **options: Any) -> None:
        with bar.external_write_mode(file=sys.stderr):
            show(*args, **options)

    warnings.showwarning = show_alone
    try:
        yield
    finally:
        if warnings.showwarning is show_alone:
            warnings.showwarning = show


@contextmanager
def _compilations_in_postfix(bar: Any, rt: Runtime) -> Iterator[None]:
    """Show beside a bar which function is being compiled, and say once how long that may take."""

    def show(name: str) -> None:
        if not names:
            bar.write("compiling first: about a minute, or seconds where the code is kept from an earlier run")
        names.append(name)
        bar.set_postfix_str(f"compiling {name}")

    names: list[str] = []
    rt.on_compile.append(show)
    try:
        yield
    finally:
        rt.on_compile.remove(show)


class _Lines(logging.Handler):
    """Handler that writes records beside a bar."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self.bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        self.bar.write(one_line(f"{record.levelname.lower()}: {record.getMessage()}"), file=sys.stderr)


@contextmanager
def _log_on_own_lines(bar: Any, level: str) -> Iterator[None]:
    """Show what the package logs from a level on, in lines of its own beside a bar."""
    logger, lines = logging.getLogger("uavlab"), _Lines(bar)
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
