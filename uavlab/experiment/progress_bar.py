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
    with bar, _lines_beside(bar, config.run.log_level, run.rt):
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


class _Lines(logging.Handler):
    def __init__(self, bar: Any) -> None:
        super().__init__()
        self.bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        self.bar.write(one_line(f"{record.levelname.lower()}: {record.getMessage()}"), file=sys.stderr)


@contextmanager
def _lines_beside(bar: Any, level: str, rt: Runtime) -> Iterator[None]:
    """Show warnings, the log from a level on, and what is compiled in lines of their own, not in that of a bar."""
    show, logger, lines, compiled = warnings.showwarning, logging.getLogger("uavlab"), _Lines(bar), list[str]()
    before = logger.level

    def show_alone(*args: Any, **options: Any) -> None:
        with bar.external_write_mode(file=sys.stderr):
            show(*args, **options)

    def show_compilation(name: str) -> None:
        if not compiled:
            bar.write("compiling first: about a minute, or seconds where the code is kept from an earlier run")
        compiled.append(name)
        bar.set_postfix_str(f"compiling {name}")

    warnings.showwarning = show_alone
    logger.setLevel(level.upper())
    logger.addHandler(lines)
    rt.on_compile.append(show_compilation)
    try:
        yield
    finally:
        rt.on_compile.remove(show_compilation)
        logger.removeHandler(lines)
        logger.setLevel(before)
        if warnings.showwarning is show_alone:
            warnings.showwarning = show
