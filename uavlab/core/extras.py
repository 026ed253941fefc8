"""Optional packages: an error that names the extra to install, raised before a missing one is imported."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from uavlab.core.errors import MissingPackageError


def install_command(extra: str) -> str:
    return f'pip install "uavlab[{extra}]"'


def require(extra: str, what: str, *packages: str) -> None:
    """Return if the optional packages that ``what`` needs are installed; none of them is imported."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise MissingPackageError(f"{what}: needs {', '.join(missing)}, not installed; {install_command(extra)}.")


def load_lab(module: str, what: str) -> Any:
    """Return a module of the package beside the notebooks, which the entry point ``lab`` of ``uavlab.lab`` names."""
    from importlib.metadata import entry_points  # it brings modules that light commands do without

    missing: str | None = "the package of the notebooks"
    for entry in entry_points(group="uavlab.lab", name="lab"):
        try:
            return import_module(f"{entry.value}.{module}")
        except ModuleNotFoundError as e:
            if (e.name or "").startswith("uavlab"):
                raise
            missing = e.name
    raise MissingPackageError(f"{what}: needs {missing}, not installed; {install_command('lab')}.")
