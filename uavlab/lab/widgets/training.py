"""A run inside a notebook: the row of choices that drives it, and the panel in which it is watched and stopped."""

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from uavlab.experiment.config import configure
from uavlab.experiment.run import Progress, Run
from uavlab.lab.plots.leader_follower import curve_lines, curves
from uavlab.lab.widgets.panel import Panel, Stop, guard
from uavlab.train import training

WARM_UP, TRIAL_UPDATES = 10, 40  # updates before and while a few are timed to tell how long a run will take


class Choices(widgets.VBox):
    """Widgets for some settings of a run; headless they hold the notebook's parameters."""

    def __init__(self, followers: int, obstacles: int, seed: int, updates: int) -> None:
        """Show the parameters and, measured here, the minutes that the updates will take."""
        narrow = widgets.Layout(width="230px")
        self.followers = widgets.BoundedIntText(followers, min=1, max=16, description="followers", layout=narrow)
        self.obstacles = widgets.BoundedIntText(obstacles, min=1, max=8, description="obstacles", layout=narrow)
        self.seed = widgets.BoundedIntText(seed, min=0, max=2**31, description="seed", layout=narrow)
        self.updates = widgets.BoundedIntText(updates, min=1, max=10**6, step=500, description="updates", layout=narrow)
        self.status = widgets.HTML()
        fields = [self.followers, self.obstacles, self.seed, self.updates]
        super().__init__([widgets.HBox(fields), self.status])
        for field in fields:
            field.observe(guard(self.status)(self._estimate), "value")
        self._estimate()

    def values(self) -> dict[str, Any]:
        """Give the chosen settings.

        The run trains on one follower and flies any number, because followers share one network. Beyond the one
        published obstacle the agents see the offset to the two nearest.
        """
        obstacles = self.obstacles.value
        return {
            "eval_followers": self.followers.value,
            "obstacles": obstacles,
            "sight": 2 if obstacles > 1 else 0,
            "seed": self.seed.value,
            "updates": self.updates.value,
        }

    def _estimate(self, _: Any = None) -> None:
        minutes = self.updates.value * seconds_per_update(self.obstacles.value) / 60
        team = f"1 leader, {self.followers.value} follower(s), {self.obstacles.value} obstacle(s)"
        self.status.value = f"<span role='status'>{team}: about {minutes:.1f} min of training here, scores apart</span>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown = super()._repr_mimebundle_(**options)
        bundle, metadata = shown if isinstance(shown, tuple) else (shown, {})
        return {
            **bundle,
            "text/plain": "followers, obstacles, seed and updates: change them, then run the next cell",
        }, metadata


class LiveRun(Panel):
    """A learning curve that grows while a run trains, a status line and a Stop button."""

    def __init__(self, run: Run) -> None:
        """Watch ``run``; pass each of its progress reports to ``show``."""
        self.run, self.stop = run, Stop()
        widget = go.FigureWidget(curves([], "Learning: score on the published test while training"))
        widget._config = {**widget._config, "responsive": True}
        super().__init__([self.stop, widget], widget, "completion and strict formation over the updates")

    def show(self, progress: Progress) -> None:
        """Refresh the status line, and the curve when there is a new score."""
        if progress.metrics or progress.score:
            rate = progress.number / max(progress.seconds, 1e-9)
            rest = (progress.target - progress.number) / rate if progress.target else 0
            self.stop.say(f"update {progress.number} of {progress.target}, {rate:.0f} per second, {rest:.0f} s to go")
        if progress.score:
            self.draw()

    def draw(self) -> None:
        """Redraw the curve from all scores so far."""
        rows = [row for row in self.run.recorder.rows if "eval/completion" in row]
        with self.figure.batch_update():
            for trace, (key, *_) in zip(self.figure.data, curve_lines(), strict=True):
                trace.x = [row["update"] for row in rows]
                trace.y = [row[key] for row in rows]


@lru_cache
def seconds_per_update(obstacles: int = 1) -> float:
    """Time a few updates of the preset on this machine (s)."""
    run = Run(configure("leader_follower_published", {"obstacles": obstacles, "sight": 2 if obstacles > 1 else 0}))
    with run.rt.scope():
        for step in training(run.source, run.learner, run.rng, run.rt, 0, WARM_UP + TRIAL_UPDATES):
            if step.number == WARM_UP:
                began = time.perf_counter()
        return (time.perf_counter() - began) / TRIAL_UPDATES


def free_folder(base: str) -> Path | None:
    """Give a folder that no run uses yet: ``base``, or ``base-2`` and so on; relative to the repository's root.

    An empty ``base`` gives None: nothing is written.
    """
    if not base:
        return None
    here = Path.cwd()
    root = next((p for p in (here, *here.parents) if (p / "notebooks").is_dir()), here)
    number, folder = 1, root / base
    while folder.exists() and any(folder.iterdir()):
        number += 1
        folder = root / f"{base}-{number}"
    return folder
