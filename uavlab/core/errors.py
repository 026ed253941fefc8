"""The five ways uavlab refuses to go on; each carries the exit code with which the command line ends.

A message says what is wrong, where, what was got, what was expected and what to do next.
"""


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
    """Training produced a number that is not finite."""

    exit_code = 4


class ResourceError(UavlabError):
    """Memory, disk or a device does not suffice."""

    exit_code = 5
