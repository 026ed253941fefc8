"""Optional packages: an error that names the extra to install, raised before a missing one is imported."""

from importlib.util import find_spec

from uavlab.core.errors import MissingPackageError


def install_command(extra: str) -> str:
    """Return the command that installs an extra of ``pyproject.toml``."""
    return f'pip install "uavlab[{extra}]"'


def require(extra: str, what: str, *packages: str) -> None:
    """Return if the optional packages that ``what`` needs are installed; none of them is imported.

    Raises:
        MissingPackageError: A package is missing; the message names the extra that brings it.
    """
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingPackageError(f"{what}: needs {', '.join(missing)}, not installed; {install_command(extra)}.")
