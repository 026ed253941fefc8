"""Random events on a run, its trainer and its panels: nothing raises, one thread trains, the folder can go on."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from tests.support.fixtures_config import tiny
from tests.support.hostile import HOSTILE, skeleton
from tests.support.live_runs import PATIENCE, drift, training_threads
from tests.support.widget_events import controls, html_of
from uavlab.core.errors import ConfigError
from uavlab.experiment.config import Config
from uavlab.experiment.run import Run
from uavlab_lab.live.panel import LivePanel, panel
from uavlab_lab.live.switches import Switch
from uavlab_lab.live.trainer import trainer_in, trainer_of

EVENTS = 8
NUMBERS = (-1, 0, 1, 2, 3, 5, 10**30, 1e-4, 0.5, float("nan"), float("inf"))
SETTINGS: tuple[tuple[str, Any], ...] = (
    *(("precision", value) for value in ("fp32", "bf16", "tf32", *HOSTILE[:3])),
    *(("worlds", value) for value in (1, 2, 3, 0, "many")),
    *(("lr", value) for value in (0.1, 1e-3, -1.0)),
    *(("updates", value) for value in (30, 5, None)),
    *(
        ("batch", 12),
        ("interval", 3),
        ("ratio", 2),
        ("prefetch", "overlap"),
        ("placement", "host"),
        ("priorities", "max"),
    ),
    *(("adam", "single"), ("micro_batches", 2), ("threads", 2), ("monitor", True), ("update", "cached")),
    *(("deterministic", "on"), ("graph", "update"), ("doubled", 3), ("seed", 7), (HOSTILE[4], 1)),
)
SLOW = ("compile", "threads")  # controls that a sequence leaves alone


def team(**changes: Any) -> Config:
    """Return settings of a run with replay."""
    return tiny(evaluate_every=16, evaluate_episodes=1, **changes)


class Play:
    """A run in a folder with a trainer and a panel, and what somebody does to them.

    Attributes:
        done: How often each kind of event came.
        refused: How many orders were refused.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        """Begin a run, or nothing but its folder."""
        self.dice, self.folder = random.Random(seed), folder
        self.done: Counter[str] = Counter()
        self.refused = 0
        make = self.dice.choice((drift, drift, team))
        self.trainer = trainer_of(Run(make(updates=self.dice.choice((4, 40, 10**6)), checkpoint_every=7), folder))
        self.panel: LivePanel = panel(self.trainer.run)

    def events(self) -> dict[str, Callable[[], Any]]:
        """Return what may happen, by name."""
        each, dice = self.trainer, self.dice
        return {
            "start": each.start,
            "pause": each.pause,
            "step": lambda: each.step(dice.randint(1, 3)),
            "stop": each.stop,
            "save": each.save,
            "change": lambda: each.change(measure=dice.random() < 0.5, **dict([dice.choice(SETTINGS)])),
            "changes": lambda: each.change(**dict(dice.sample(SETTINGS, 2))),
            "order": lambda: each.order(lambda: each.change(**dict([dice.choice(SETTINGS)]))),
            "play": lambda: each.play([(each.run.number, dict([dice.choice(SETTINGS)])), (5, {"worlds": 4})]),
            "tick": self.panel.tick,
            "click": lambda: dice.choice([*self.panel.buttons.values()]).click(),
            "edit": self.edit,
            "measure": lambda: setattr(self.panel.measure, "value", dice.random() < 0.5),
            "panel": self.show,
            "resume": self.resume,
        }

    def edit(self) -> None:
        """Choose another value in a control, or type a number."""
        each: Switch = self.dice.choice([each for name, each in self.panel.switches.items() if name not in SLOW])
        if isinstance(each.control, widgets.Dropdown):
            each.control.index = self.dice.randrange(len(each.control.options))
        else:
            number = self.dice.choice(NUMBERS)
            if isinstance(each.control, widgets.FloatText):
                each.control.value = number
            elif abs(number) < float("inf"):
                each.control.value = int(number)

    def show(self) -> None:
        """Show another panel of the run, by the run or by its folder."""
        self.panel = panel(self.dice.choice((self.trainer.run, self.folder)))
        assert self.panel.trainer is self.trainer or not self.trainer.alive
        self.trainer = self.panel.trainer

    def resume(self) -> None:
        """Stop, and go on from the folder with another run, as a new kernel does."""
        self.trainer.stop()
        with suppress(ConfigError):  # of a play that was refused
            self.trainer.join(PATIENCE)
        self.trainer = self.dice.choice((trainer_in, lambda folder: trainer_of(Run.resume(folder))))(self.folder)
        self.panel = panel(self.trainer.run)

    def event(self) -> None:
        """Let something happen; only refusals may come of it, and a panel shows them."""
        events = self.events()
        name = self.dice.choice([*events])
        self.done[name] += 1
        try:
            events[name]()
        except ConfigError:
            self.refused += 1
        self.check()

    def check(self) -> None:
        """Check what holds after each event."""
        assert len(training_threads()) <= 1
        assert self.panel.status.value.startswith("<span role='status'>")
        shown = ("<b role='alert'>ConfigError: ", "<b role='alert'>FallbackError: ")
        assert self.panel.alert.value.startswith(shown) or not self.panel.alert.value
        skeleton(html_of(self.panel))
        assert all(each.description for each in controls(self.panel))

    def end(self) -> None:
        """Stop; then the folder resumes, and trains on."""
        self.trainer.stop()
        with suppress(ConfigError):
            self.trainer.join(PATIENCE)
        assert training_threads() == []
        self.panel.tick()
        self.check()
        run = Run.resume(self.folder, {"updates": self.trainer.run.number + 2})
        assert run.number == self.trainer.run.number
        for _ in run.train():
            pass
        assert (run.status, run.number) == ("complete", self.trainer.run.number + 2)
        self.panel.end()


def play(root: Path, seeds: Sequence[int], events: int = EVENTS) -> tuple[Counter[str], int]:
    """Play a sequence of events for each seed; return how often each kind came, and how many were refused."""
    done, refused = Counter[str](), 0
    for seed in seeds:
        each = Play(root / str(seed), seed)
        for _ in range(events):
            each.event()
        each.end()
        done += each.done
        refused += each.refused
    return done, refused
