"""Opening files of logs: what is no file, empty or too large is refused before it is read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from uavlab.core.errors import FileError
from uavlab.storage.files import open_regular

LARGEST = 2**30  # bytes of a log, packed or unpacked


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a log for reading.

    Raises:
        FileError: It is missing, no regular file, empty or too large, or reading it fails later.
    """
    try:
        with open_regular(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size == 0:
                raise FileError(f"{path}: empty; expected a log of a flight.")
            require_size(path, size)
            yield handle
    except (OSError, ValueError) as error:  # no path holds a null character
        raise FileError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}.") from error


def require_size(path: Path, size: int, what: str = "") -> None:
    """Refuse what would take too much memory.

    Raises:
        FileError: ``size`` bytes are more than a log may have; ``what`` tells of what they are.
    """
    if size > LARGEST:
        raise FileError(f"{path}: {size:,} bytes{what}; at most {LARGEST:,} are read. Cut the log into parts.")
