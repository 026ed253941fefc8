"""Scripts of changes: the same settings at the same updates, so that a run that was changed can be repeated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uavlab.core.errors import ConfigError, FallbackError
from uavlab.core.text import quote
from uavlab.experiment.change import changed_config, record_failure
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, Progress

if TYPE_CHECKING:
    from uavlab.live.trainer import Trainer

Script = Sequence[tuple[int, Mapping[str, Any]]]
"""Updates after which settings change, and these settings."""


def script_of(changes: Iterable[Change]) -> Script:
    """Return the script of the changes of a run, without those that were undone."""
    return [(each.update, {k: new for k, (_, new) in each.settings.items()}) for each in changes if not each.undone]


def follow(run: Run, script: Script) -> Iterator[Progress]:
    """Train a run and change its settings as a script says; yield after each update.

    Raises:
        ConfigError: The script is none, or a change is refused.
    """
    steps = parse_script(script)
    left = [(update, settings) for update, settings in steps if update >= run.number]
    while left and left[0][0] == run.number:
        run.change("script", **left.pop(0)[1])
    for progress in run.train():
        while left and left[0][0] == progress.number:
            run.change("script", **left.pop(0)[1])
        yield progress


def parse_script(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return a script in the order of its updates; ``value`` may come from YAML or a notebook's parameters.

    Raises:
        ConfigError: An entry is no pair of an update and settings.
    """
    entries = []
    for number, each in enumerate(value if isinstance(value, list | tuple) else [value], 1):
        if not (isinstance(each, list | tuple) and len(each) == 2 and type(each[0]) is int and each[0] >= 0):
            raise ConfigError(f"script, entry {number}: got {quote(each)}; expected [update, {{setting: value}}].")
        if not isinstance(each[1], Mapping) or not all(isinstance(name, str) for name in each[1]):
            raise ConfigError(f"script, entry {number}: got {quote(each[1])}; expected a mapping of names to values.")
        entries.append((each[0], dict(each[1])))
    return sorted(entries, key=lambda entry: entry[0])


class Playback:
    """Changes of a script that a trainer makes, each when the one before it is measured; the last one ends training.

    One that falls back here, or whose code or memory fails, is undone with its reason.
    """

    def __init__(self, script: Script) -> None:
        """Start before the first change.

        Raises:
            ConfigError: The script is none.
        """
        self._left = parse_script(script)
        self._due: dict[str, Any] | None = None  # the next change, while it waits for slices to compare it with
        self._asked: tuple[dict[str, Any], Future[Any]] | None = None  # a change that is not made yet

    def go_on(self, trainer: "Trainer") -> None:
        """Ask for the next change if it is due; the thread that trains calls this between two updates.

        Raises:
            ConfigError: The settings of a change are refused.
        """
        if trainer.comparison is not None or (self._asked and not self._asked[1].done()):
            return
        if self._asked:
            (settings, future), self._asked = self._asked, None
            try:
                future.result()
            except Exception as error:  # of any kind: a compiler has classes of its own
                if isinstance(error, ConfigError) and not isinstance(error, FallbackError):
                    raise
                record_failure(trainer.run, settings, "script", error)
        if self._left and trainer.run.number >= self._left[0][0] and self._due is None:
            self._due = self._left.pop(0)[1]
            changed_config(trainer.run, self._due)  # what is refused does not wait
        if self._due is None and not self._left:
            trainer.run.stop()
        elif self._due is not None and trainer.comparable(self._due):
            self._asked, self._due = (self._due, trainer.ask(self._due, "script")), None

    def end(self, trainer: "Trainer") -> None:
        """Record the changes that training did not come to, and the last one if it failed."""
        if self._asked and self._asked[1].done() and (error := self._asked[1].exception()) is not None:
            with suppress(ConfigError):
                record_failure(trainer.run, self._asked[0], "script", error)
        for settings in [self._due or {}, *(settings for _, settings in self._left)]:
            with suppress(ConfigError):
                record_failure(trainer.run, settings, "script", ConfigError("training ended before it"))
