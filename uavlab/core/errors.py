"""The kinds of error, each with the exit code of the command line, and the warnings.

A message states what is wrong, where, the value received, the value expected and the next step.
"""

from typing import Any

AXIS_NAMES = {"R": "run", "W": "world", "N": "row", "A": "agent", "K": "network", "O": "feature", "D": "dimension"}
"""Names in messages of the axes of a tensor, by the letters of its shape."""


class UavlabError(Exception):
    """Base of all errors that uavlab raises on purpose.

    >>> issubclass(ul.ConfigError, ul.UavlabError), ul.ConfigError.exit_code
    (True, 2)
    """

    exit_code = 1


class ConfigError(UavlabError):
    """A setting, parameter or argument is unknown, has a wrong type or value, or contradicts another.

    >>> ul.make("leader_folower")
    Traceback (most recent call last):
    uavlab.core.errors.ConfigError: unknown preset 'leader_folower' (did you mean 'leader_follower'?). Known ...
    """

    exit_code = 2


class FallbackError(ConfigError):
    """A toggle that a change asks for would fall back here."""


class FileError(UavlabError):
    """A file or folder is missing, damaged or of another kind than expected.

    >>> ul.load("runs/absent")
    Traceback (most recent call last):
    uavlab.core.errors.FileError: runs/absent/config.json: missing, so runs/absent is no run; ...
    """

    exit_code = 3


class DivergedError(UavlabError):
    """Training computed a number that is not finite or too large.

    >>> record = {"tensor": "reward", "world": 3, "value": float("nan"), "expected": "a finite number"}
    >>> print(ul.DivergedError(record, "Check the environment."))
    training: reward of world 3 is nan; expected a finite number. Check the environment.

    Attributes:
        record: ``tensor``, ``value``, ``expected``, ``kind`` (its origin, ``environment`` or ``learner``) and, where
            known, ``run``, ``world``, ``agent`` or another axis, and ``update``. Callers may add to it.
        advice: The next step. Callers may replace it.
    """

    exit_code = 4

    def __init__(self, record: dict[str, Any], advice: str) -> None:
        super().__init__(record, advice)
        self.record, self.advice = record, advice

    def __str__(self) -> str:
        record = self.record
        place = ", ".join(f"{name} {record[name]}" for name in AXIS_NAMES.values() if name in record)
        what = record["tensor"] + (f" of {place}" if place else "")
        when = f" at update {record['update']}" if "update" in record else ""
        return f"training: {what} is {record['value']}{when}; expected {record['expected']}. {self.advice}"


class ResourceError(UavlabError):
    """Memory, disk space or a device is insufficient.

    >>> ul.start(env, runs=256, settings={"capacity": 10**9})
    Traceback (most recent call last):
    uavlab.core.errors.ResourceError: ...
    """

    exit_code = 5


class RankError(UavlabError):
    """Another rank of a run failed or does not answer; torchrun prints which one, and why."""

    exit_code = 5


class MissingPackageError(UavlabError, ImportError):
    """A package of one of the optional extras is not installed; the message names the extra.

    >>> issubclass(ul.MissingPackageError, ImportError)
    True
    """

    exit_code = 2


def reason_of(error: BaseException) -> str:
    """Return the message of an error, with its type if it is none of this package or says nothing."""
    text = str(error)
    return text if isinstance(error, UavlabError) and text.strip() else f"{type(error).__name__}: {text}"


class FallbackWarning(UserWarning):
    """An optimization is not available here; the run uses the plain reference and records the reason."""


class NoteWarning(UserWarning):
    """An optimization that is used does something else here than its name says; the run records it."""


class RetryWarning(UserWarning):
    """An allocation failed; the work is repeated in smaller pieces and the run records it."""


class TrainingWarning(UserWarning):
    """A run shows a symptom of training that fails, such as an entropy at its maximum; the message names a remedy."""
