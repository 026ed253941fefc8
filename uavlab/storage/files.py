"""Reading files that anybody may have put there: never for ever, never more than expected. Writing them: whole."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from uavlab.core.errors import ResourceError


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; a pipe or a device, which could make a reader wait for ever, is refused.

    Raises:
        OSError: It is missing, may not be read or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """Read a file of at most ``most`` bytes.

    Raises:
        OSError: As for ``open_regular``, or it is larger.
    """
    with open_regular(path) as handle:
        raw = handle.read(most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes")
    return raw


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place to write to, which then replaces a file whole, so that a reader never meets half of it.

    Raises:
        ResourceError: The disk refuses; the file is as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ResourceError(
            f"{path}: cannot be written ({error.strerror}); free some space or check permissions."
        ) from error
