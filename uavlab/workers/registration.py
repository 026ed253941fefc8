"""Registration of an external environment under its name, from which it comes back in another process."""

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from uavlab.core.errors import FallbackWarning
from uavlab.core.registry import ENVIRONMENTS, Environment
from uavlab.experiment.names import Origin, compose, is_external, parse_external
from uavlab.workers.pool import close_all, describe
from uavlab.workers.spaces import Description


def external(target: str | Callable[..., Any], /, **arguments: bool | int | float | str | None) -> str:
    """Register an environment that somebody else wrote, and return its name, a task for ``train`` and the others.

    >>> ul.external("pettingzoo:mpe2.simple_spread_v3", N=2)
    'pettingzoo:mpe2.simple_spread_v3,N=2'

    The name alone will do, too: ``ul.train("pettingzoo:mpe2.simple_spread_v3,N=2")``. After a change in a file of your
    own, call it again, and workers start with the new code.

    Args:
        target: ``gymnasium:ID``, ``pettingzoo:MODULE``, ``MODULE:FACTORY`` or ``FILE.py:FACTORY``, or the function or
            class itself if it is in a file. A factory returns an environment of Gymnasium, or a parallel one of
            PettingZoo.
        arguments: Of the function that makes the environment.

    Raises:
        ConfigError: There is no such environment, or it cannot be served.
        MissingPackageError: Gymnasium or PettingZoo is not installed.
    """
    name = compose(target, arguments)
    if name in ENVIRONMENTS and _CODE.get(name) != _changed(origin := parse_external(name)):
        close_all(name)
        _register(origin)
    register(name)
    return name


def register(name: str) -> None:
    """Register the environment of this name, unless it is known."""
    if name not in ENVIRONMENTS and is_external(name):
        _register(parse_external(name))


_CODE: dict[str, int] = {}  # when the file of each environment changed last, as it was registered


def _changed(origin: Origin) -> int:
    """Return when the file of code of a user's own changed last; 0 where it is not known."""
    own = origin.target if origin.target.endswith(".py") else getattr(sys.modules.get(origin.target), "__file__", None)
    with suppress(OSError):
        return Path(own or "").expanduser().stat().st_mtime_ns if origin.kind == "factory" and own else 0
    return 0


def _register(origin: Origin) -> None:
    """Make an environment in a worker, and register what it is; the entry of earlier code is replaced."""
    _CODE[origin.name], description = _changed(origin), describe(origin)
    ENVIRONMENTS.pop(origin.name, None)
    ENVIRONMENTS.register(origin.name, _entry(origin, description))
    for note in description.notes:
        warnings.warn(f"{origin.name}: {note}.", FallbackWarning, stacklevel=4)


def _entry(origin: Origin, description: Description) -> Environment:
    """Return the entry of an environment that exists; torch is not imported before."""
    from uavlab.workers.env import HORIZON, External

    fields = {
        "__doc__": External.__doc__,
        "__module__": External.__module__,
        "__annotations__": {"horizon": Annotated[int, Ge(1), Le(100_000)]},
        "horizon": min(description.horizon or HORIZON, 100_000),
        "origin": origin,
        "description": description,
    }
    kind: Any = dataclass(frozen=True)(type(origin.name, (External,), fields))
    return Environment(kind, "mappo" if description.agents[0].choices else "masac")
