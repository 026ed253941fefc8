"""The trainer of a run, or of the run in a folder, so that there is never a second thread of one."""

from pathlib import Path

from uavlab.experiment.run import Run
from uavlab.live.trainer import LOCK, TRAINERS, Trainer


def trainer_of(run: Run) -> Trainer:
    """Return the trainer of a run: the one that it has, so that there is never a second thread, or a new one."""
    with LOCK:
        present = [each for each in _trainers(run.folder) if each.alive]
        present += [each for each in TRAINERS if each.run is run]
        return present[0] if present else Trainer(run)


def trainer_in(folder: Path) -> Trainer:
    """Return the trainer of the run in a folder: one that can go on, or one of the run as its newest checkpoint has it.

    Raises:
        FileError: The folder is no run.
        ConfigError: Another process trains the run.
    """
    with LOCK:
        present = [each for each in _trainers(folder) if each.alive or not each.run.obstacle]
        return min(present, key=lambda each: not each.alive) if present else trainer_of(Run.resume(folder))


def _trainers(folder: Path | None) -> list[Trainer]:
    """Return the trainers of all runs in a folder."""
    where = folder and folder.resolve()
    return [each for each in TRAINERS if where and each.run.folder and each.run.folder.resolve() == where]
