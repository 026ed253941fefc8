"""The suites of ``uavlab bench``: functions registered by name, of entry points or of a user's file."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from uavlab.core.cards import Table
from uavlab.core.errors import ConfigError
from uavlab.core.registry import place_of
from uavlab.core.text import quote, require_known
from uavlab.experiment import build
from uavlab.experiment.config import Device, RunConfig
from uavlab.storage.machine import describe

Record = dict[str, Any]
Run = Callable[..., Record]


@dataclass(frozen=True)
class Option:
    """A command-line option of one suite."""

    name: str  # of the keyword argument of the suite's function
    about: str
    limits: tuple[float, float] | None = None  # least and largest number; None for a flag, or for text
    kind: type[int] | type[float] | type[str] = int
    several: bool = True  # it is repeatable; its values are then a tuple


@dataclass(frozen=True)
class Suite:
    """A registered suite: the function takes rounds, device and the options, and returns ``rows`` and other facts."""

    name: str
    about: str
    options: tuple[Option, ...]
    function: Run

    def run(self, rounds: int, device: Device, **options: Any) -> Record:
        """Run the suite and return its record: suite, rounds, machine, and what the function returns."""
        rt = build.runtime(RunConfig(device=device))
        with rt.scope():
            machine = describe(rt.device)
        return {"suite": self.name, "rounds": rounds, "machine": machine, **self.function(rounds, device, **options)}


REGISTRY: dict[str, Suite] = {}


def suite(name: str, *, about: str, options: Sequence[Option] = ()) -> Callable[[Run], Run]:
    """Register the decorated function, itself unchanged, as a suite; ``about`` is a few words for the help text.

    Raises:
        ConfigError: Another function is registered under this name.
    """

    def register(function: Run) -> Run:
        known = REGISTRY.get(name)
        if known and not place_of(known.function).same(place_of(function)):
            raise ConfigError(f"suite {name!r} is already registered, by {known.function.__module__}.")
        REGISTRY[name] = Suite(name, about, tuple(options), function)
        return function

    return register


def suites() -> dict[str, Suite]:
    """Import the modules of all packages that entry points of ``uavlab.suites`` name; return all suites by name."""
    for entry in entry_points(group="uavlab.suites"):
        folder = import_module(entry.value)
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            import_module(module.name)
    return dict(sorted(REGISTRY.items()))


def bench(suite: str, *, rounds: int = 30, device: Device = "auto", **options: Any) -> Record:
    """Measure one suite on this machine and return its record, as ``uavlab bench``.

    >>> sorted(ul.bench("guard", rounds=3)["rows"][0])
    ['agents', 'guarded_ms', 'guarded_over_plain', 'high', 'low', 'plain_ms', 'setting', 'threads']

    Raises:
        ConfigError: There is no such suite, or it has no such option.
    """
    known = suites()
    require_known("suite", suite, known, "bench: ")
    own = {name: [option.name for option in one.options] for name, one in known.items()}
    for option in options.keys() - set(own[suite]):
        owners = [f"`bench {other}` has it" for other, names in own.items() if option in names]
        raise ConfigError(f"bench {suite}: no option {quote(option)}; {', '.join(owners) or 'no suite has it'}.")
    return known[suite].run(rounds, device, **options)


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of a record as a text table, right-aligned, headed by the keys of the first row.

    A figure with its interval is ``mean [low, high]``; other mappings, and lists, are left out.
    """

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{mean:.3g} [{low:.3g}, {high:.3g}]".format(**value)
        return f"{value:,}" if isinstance(value, int) else str(value)

    def fits(value: Any) -> bool:
        return "mean" in value if isinstance(value, Mapping) else not isinstance(value, list)

    names = [name for name in rows[0] if all(fits(row[name]) for row in rows)]
    table = Table(names, [[text(row[name]) for name in names] for row in rows])
    return "\n".join(table.lines("  ".join(f"{{:>{table.width(column)}}}" for column in range(len(names)))))
