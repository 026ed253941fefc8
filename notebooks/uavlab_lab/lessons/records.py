"""Records of measurements that a notebook shows: those that it is given, or whatever figures/records holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uavlab.core.installation import ROOT
from uavlab.storage.files import read_json

FOLDER = ROOT / "figures" / "records"


def read_records(paths: Sequence[str], pattern: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Return records by the names of their files: of these paths, or without any of those that match the pattern.

    Raises:
        FileError: A file that is named is missing or no record.
    """
    files = [Path(path) for path in paths] or sorted(folder.glob(pattern))
    return {file.stem: read_json(file) for file in files}
