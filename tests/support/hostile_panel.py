"""Panels whose folders, settings and errors try to run, for a kernel of JupyterLab that imports this module."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import uavlab as ul
from tests.support.hostile import HOSTILE, environment
from uavlab.core.errors import ConfigError
from uavlab.experiment.run import Run
from uavlab_lab.live import pictures
from uavlab_lab.live.panel import LivePanel
from uavlab_lab.live.trainer import Trainer

TINY = {"updates": 1_000_000, "worlds": 4, "batch": 8, "hidden": 16, "learning_starts": 8, "capacity": 64}
FOLDERS = tuple(word for word in HOSTILE if str(Path(word)) == word and all(map(str.isprintable, word)))
"""Strings that name a folder; a run takes no other characters."""
UNDONE = HOSTILE[7]


def register() -> None:
    """Register an environment whose name, metrics, units and settings are hostile."""
    ul.env(HOSTILE[1])(environment(HOSTILE))


def begin(folder: str | None = None) -> Run:
    """Return a small run of the hostile environment."""
    return ul.start(HOSTILE[1], out=folder, settings=TINY)


def failing(run: Run, after: int, text: str) -> Run:
    """Return a run whose learner raises an error after so many more updates."""
    update, calls = run.learner.update, iter(range(after))

    def update_or_fail(*args: object) -> object:
        if next(calls, None) is None:
            raise ValueError(text)
        return update(*args)

    run.learner.update = update_or_fail
    return run


def copies() -> Iterator[str]:
    """Yield what a page without a kernel shows of runs in hostile folders, and of a change that an error undid."""
    for folder in FOLDERS:
        yield pictures.whole(Trainer(begin(folder)))
    trainer = Trainer(begin())
    trainer.change(precision="bf16")
    failing(trainer.run, 0, UNDONE)
    trainer.step()
    trainer.stop(60)
    yield pictures.whole(trainer)


def alerts() -> Iterator[str]:
    """Yield three alerts for each string: a value of a setting, the name of one, and an error of training."""
    panel = LivePanel(Trainer(begin()))
    for word in HOSTILE:
        panel._order("precision", word)  # as a control does
        yield panel.alert.value
        with suppress(ConfigError):
            panel.trainer.change(**{word: word})
        panel._order(word, word)
        yield panel.alert.value
        panel.trainer = Trainer(failing(begin(), 1, word))
        panel.trainer.start()
        with suppress(ValueError):
            panel.trainer.join()
        panel.tick()
        yield panel.alert.value
