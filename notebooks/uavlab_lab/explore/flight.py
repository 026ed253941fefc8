"""A flight of the newest policy of a run, while it trains or afterwards."""

from pathlib import Path

import plotly.graph_objects as go

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.experiment import policy
from uavlab.experiment.names import run_folder
from uavlab.experiment.run import Run
from uavlab.experiment.run_dir import newest_meta
from uavlab_lab.plots import flight


def flight_of(run: Run | str | Path, seed: int = 0) -> go.Figure:
    """Return an animated flight by the parameters of a run as they are now, not by the best ones so far.

    The run goes on as if nobody had looked: the flight has random streams of its own.

    Args:
        run: A run of this process, which may be amid training, or a folder, of which the newest checkpoint flies.
        seed: Seed of the flight.

    Raises:
        ConfigError: The task has no team that flies, it is no run, or the seed is no whole number from 0 up.
        FileError: The folder is no run, or has no intact checkpoint.
    """
    if not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"flight_of: got seed={quote(seed)}; expected a whole number from 0 up.")
    trained = run.trained("last") if isinstance(run, Run) else _load(run_folder(run))
    return flight.animate(trained.config.evaluation, [*policy.fly(trained, seed)])


def _load(folder: Path) -> policy.TrainedPolicy:
    """Return the newest policy of a folder; an exported copy has one alone."""
    return policy.load(folder, which="best" if newest_meta(folder).get("exported") else "last")
