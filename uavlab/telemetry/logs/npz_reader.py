"""Tables as arrays in an NPZ file, one array for each column; an array of two axes is several, ``q[0]``, ``q[1]``.

Nothing is unpickled, and nothing is unpacked that is larger than a log may be.
"""

import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from uavlab.core.errors import FileError
from uavlab.telemetry.logs.raw import Group, Recording, quoted
from uavlab.telemetry.logs.safe_open import opened, require_size

MOST_ARRAYS = 2000
WIDEST = 64  # columns that one array may be
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, KeyError)
"""What a damaged, encrypted or strangely packed archive makes the libraries raise."""


def read(path: Path, needed: Collection[str], others: bool = True) -> Recording:
    """Read an NPZ file.

    Args:
        path: The file.
        needed: Columns that must hold numbers, if they are there at all, and as many as each other.
        others: Read other columns too; those that do not fit are named.

    Raises:
        FileError: It is damaged or too large, or a needed column is no row of numbers.
    """
    with opened(path) as handle:
        try:
            archive = zipfile.ZipFile(handle)
            arrays = dict(_arrays(path, archive, needed, others))
            unfit = [name for name in _names(archive) if name not in arrays]
        except BROKEN as error:
            raise FileError(f"{path}: damaged, or no NPZ file: {error}; copy or save it again.") from error
    fields: dict[str, Shaped[np.ndarray, " T"]] = {}
    for name, array in arrays.items():
        parts = dict(_columns(name, array))
        if not parts and name in needed:
            expected = "expected numbers in one row for each time"
            raise FileError(f"{path} column {quoted(name)}: {array.dtype} of shape {array.shape}; {expected}.")
        unfit += [] if parts else [name]
        fields |= parts
    lengths = {name: len(values) for name, values in fields.items()}
    must = [name for name in lengths if name in needed]
    usual = (
        lengths[must[0]] if must else max(Counter(lengths.values()).items(), key=lambda it: it[1], default=(0, 0))[0]
    )
    for name in must:
        if lengths[name] != usual:
            told = f"{usual:,} values in {quoted(must[0])}, {lengths[name]:,} in {quoted(name)}"
            raise FileError(f"{path}: {told}; expected one for each time in both.")
    if usual < 2:
        raise FileError(f"{path}: {usual} row{'' if usual else 's'}; at least 2 rows are needed.")
    unfit += [name for name in fields if lengths[name] != usual]
    group = Group("", str(path), {name: values for name, values in fields.items() if lengths[name] == usual})
    return Recording(str(path), "npz", {"": group}, tuple(unfit))


def _arrays(
    path: Path, archive: zipfile.ZipFile, needed: Collection[str], others: bool
) -> Iterator[tuple[str, Shaped[np.ndarray, "..."]]]:
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if not members:
        raise FileError(f"{path}: no arrays in it; expected a file that numpy.savez wrote.")
    if len(members) > MOST_ARRAYS:
        raise FileError(f"{path}: {len(members):,} arrays; at most {MOST_ARRAYS:,} are read.")
    require_size(path, sum(info.file_size for info in members), " when unpacked")
    seen: set[str] = set()
    for info in members:
        name = info.filename.removesuffix(".npy")
        if name in seen:
            raise FileError(f"{path}: two arrays {quoted(name)}; each name may stand there once.")
        seen.add(name)
        wanted = name in needed or any(one.startswith(f"{name}[") for one in needed)
        if others or wanted:
            yield name, _array(f"{path} array {quoted(name)}", archive.read(info))


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _array(where: str, raw: bytes) -> Shaped[np.ndarray, "..."]:
    """Read an array as numpy writes it, when its header agrees with what follows."""
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise FileError(f"{where}: npy format {version[0]}.{version[1]}; expected 1.0 or 2.0. Save plain numbers.")
    if dtype.hasobject:
        raise FileError(f"{where}: object arrays refused; they would run code. Save plain numbers (dtype float64).")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(raw) - stream.tell():
        raise FileError(f"{where}: its header tells of {count:,} values, and others follow; save it again.")
    flat = np.frombuffer(raw, dtype, count, stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _columns(name: str, array: Shaped[np.ndarray, "..."]) -> Iterator[tuple[str, Shaped[np.ndarray, " T"]]]:
    """Give the columns that an array of numbers is."""
    if array.dtype.kind not in "fiub":
        return
    if array.ndim == 1:
        yield name, array
    elif array.ndim == 2 and array.shape[1] <= WIDEST:
        for at in range(array.shape[1]):
            yield f"{name}[{at}]", array[:, at]
