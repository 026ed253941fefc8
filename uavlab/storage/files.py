"""Read untrusted files without blocking and up to a size limit, and write files atomically."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any

from uavlab.core.errors import FileError, ResourceError

MAX_JSON_BYTES = 10_000_000


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe or a device could block the reader, so both are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int) -> bytes:
    with open_regular(path) as handle:
        raw = handle.read(most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes")
    return raw


def require_writable(path: Path) -> None:
    """Return if a file can be written here, as far as one can see without writing it."""
    above = next((folder for folder in path.parents if os.path.lexists(folder)), Path())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "has no permission to write" if above.is_dir() else "is a file"
        raise ResourceError(f"{path}: cannot be written ({above} {why}); choose another path.")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` at the end, so no reader sees a partial file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written ({error.strerror}); free some space or check permissions."
        ) from error
    finally:  # after an interrupt too
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def put_aside(path: Path) -> None:
    """Rename a damaged file to the first free name of ``NAME.damaged-1``, ``NAME.damaged-2`` and so on."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    with suppress(FileNotFoundError):
        path.rename(next(name for name in names if not os.path.lexists(name)))


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, indent=1).encode()).hexdigest()


def copy_missing(sources: Iterable[Path], folder: Path) -> list[Path]:
    """Copy files into a folder, which is created if needed; return the copies made. Existing files are kept."""
    copies = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            target = folder / source.name
            if not os.path.lexists(target):
                with atomic_write(target) as temporary:
                    temporary.write_bytes(source.read_bytes())
                copies.append(target)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be written ({error.strerror}); choose another folder.") from error
    return copies


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileError: The file is missing or not a JSON object.
    """
    try:
        value = json.loads(read_regular(path, MAX_JSON_BYTES))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: damaged, it cannot be read as JSON; expected a file that uavlab wrote.") from error
    if not isinstance(value, dict):
        raise FileError(f"{path}: expected a JSON object, got something else; was it written by uavlab?")
    return value
