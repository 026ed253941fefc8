"""A progress bar of a training run."""

import sys
from collections.abc import Iterator

from tqdm.auto import tqdm

from uavlab.experiment.run import Progress, Run


def watch(run: Run) -> Iterator[Progress]:
    """Train a run, drawing a progress bar with its rate and printing its scores."""
    config = run.config
    row, what = config.task.collector.pace(config)
    live = sys.stderr.isatty() or "ipykernel" in sys.modules
    seconds = 0.5 if live else 60  # without a terminal or notebook, one line a minute
    bar = tqdm(total=config.run.updates, initial=run.number, unit="update", mininterval=seconds, maxinterval=seconds)
    with bar:
        for progress in run:
            bar.update(progress.number - bar.n)
            if progress.metrics:
                rate, limit = row * run.number / run.seconds, config.run.minutes
                clock = f", {run.seconds / 60:.1f} of {limit:g} min" if limit else ""
                bar.set_postfix_str(f"{rate:,.0f} {what}/s{clock}", refresh=False)
            if progress.score:
                figures = [f"{name} {progress.score[f'eval/{name}']:.3f}" for name in config.evaluation.score]
                bar.write(f"{progress.number:>8}  " + "  ".join(figures))
            yield progress
