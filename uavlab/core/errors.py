"""The five ways uavlab refuses to go on; each carries the exit code with which the command line ends.

A message says what is wrong, where, what was got, what was expected and what to do next.
"""

from typing import Any

AXIS_NAMES = {
    "R": "run",
    "W": "world",
    "N": "row",
    "A": "agent",
    "K": "network",
    "O": "feature",
    "D": "dimension",
}
"""What the axes of a tensor count, as messages call it."""


class UavlabError(Exception):
    """Base of every error that uavlab raises on purpose."""

    exit_code = 1


class ConfigError(UavlabError):
    """A setting, parameter or argument is unknown, mistyped, out of range or contradicts another."""

    exit_code = 2


class FileError(UavlabError):
    """A file or folder of a run is missing, damaged or not what its name promises."""

    exit_code = 3


class DivergedError(UavlabError):
    """Training met a number that is not finite, or too large to go on with.

    Attributes:
        record: The finding: ``tensor``, ``value``, ``expected``, ``kind`` (``environment`` or ``learner``, who made it)
            and, as far as they are known, ``run``, ``world``, ``agent`` and the like, and ``update``.
        advice: The next step; whoever knows more than the finder (a run's folder, say) writes a better one.
    """

    exit_code = 4

    def __init__(self, record: dict[str, Any], advice: str) -> None:
        super().__init__(record, advice)
        self.record, self.advice = record, advice

    def __str__(self) -> str:
        """Compose the message late: the update is added to the record on the way up."""
        found = self.record
        place = ", ".join(f"{name} {found[name]}" for name in AXIS_NAMES.values() if name in found)
        what = found["tensor"] + (f" of {place}" if place else "")
        when = f" at update {found['update']}" if "update" in found else ""
        return f"training: {what} is {found['value']}{when}; expected {found['expected']}. {self.advice}"


class ResourceError(UavlabError):
    """Memory, disk or a device does not suffice."""

    exit_code = 5


class FallbackWarning(UserWarning):
    """An optimization could not be used; the run goes on with the plain reference, and its record says why."""


class RetryWarning(UserWarning):
    """Memory was refused; the same work is done in smaller pieces, and the run's record says so."""
