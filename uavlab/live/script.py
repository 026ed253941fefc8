"""Scripts of changes: the same settings at the same updates, so that a run that was changed can be repeated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from uavlab.core.errors import ConfigError
from uavlab.core.text import quote
from uavlab.experiment.run import Run
from uavlab.experiment.run_state import Change, Progress

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
