"""How far a run with replay is: rounds of steps and updates, gradient steps and episodes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from uavlab.experiment.instruments import COUNTS
from uavlab.experiment.schedules import gradient_steps

if TYPE_CHECKING:
    from uavlab.experiment.run import Run
    from uavlab.experiment.run_state import Change


def counts(run: "Run") -> dict[str, float]:
    """Return how far a run with replay is: rounds, gradient steps and episodes, and updates per episode (host sync).

    Gradient steps are those of the network that has taken the most. Updates per episode are those since the last row
    over the episodes that ended since: the time of an episode in steps of worlds, over the worlds, times the ratio.
    """
    if not run.config.task.collector.replay:
        return {}
    adams, toggles = [adam for step in gradient_steps(run.learner) for adam in step.adams], run.rt.toggles
    row = {"rounds": rounds(run.number, toggles.interval, toggles.ratio, run.changes)}
    if taken := [state["step"].item() for adam in adams for state in adam.state.values()]:
        row["gradient_steps"] = max(taken)
    if (ended := run.source.ended()) is not None:
        row["episodes"] = ended
        before = next((each for each in reversed(run.recorder.rows) if f"{COUNTS}episodes" in each), None)
        if before is not None and ended > before[f"{COUNTS}episodes"]:
            row["updates_per_episode"] = (run.number - before["update"]) / (ended - before[f"{COUNTS}episodes"])
    return {f"{COUNTS}{name}": value for name, value in row.items()}


def rounds(updates: int, interval: int, ratio: int, changes: "Iterable[Change]" = ()) -> int:
    """Return how many rounds of steps and updates have begun, at the present interval and ratio, and those before.

    >>> rounds(40, interval=10, ratio=1)
    4
    """
    total, end, sizes = 0, updates, {"interval": interval, "ratio": ratio}
    for change in sorted(changes, key=lambda each: -each.update):
        if not change.undone and sizes.keys() & change.settings.keys():
            total += -(-(end - change.update) // (sizes["interval"] * sizes["ratio"]))
            end, sizes = change.update, {name: change.settings.get(name, (size,))[0] for name, size in sizes.items()}
    return total + -(-end // (sizes["interval"] * sizes["ratio"]))


def updates_of(episodes: int, horizon: int, worlds: int = 1, world_steps: int = 1, ratio: int = 1) -> int:
    """Return the updates in which the worlds of a run play episodes of ``horizon`` steps to their end.

    Devices that share an update do not multiply them: each makes all of them, on rows of its own.

    >>> updates_of(6250, 200), updates_of(6250, 200, worlds=64, ratio=64)
    (1250000, 1250048)
    """
    return -(-episodes * horizon // (worlds * world_steps)) * ratio
