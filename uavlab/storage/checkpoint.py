"""Checkpoints: tensors in .npz files under a manifest of digests, complete on the disk before the final rename.

    ckpt-000000001000/
        learner.npz, ...    one file for each group of tensors; no pickle
        manifest.json       step, meta, versions, and the size and SHA-256 of every file; written last

A crash, a power cut or a full disk at any instant leaves the newest complete checkpoint loadable, and any change to a
file since it was written is detected before a value is used. A group that has not changed since the last checkpoint is
hard-linked, so each folder is complete and can be removed without the others. Reading changes no file. Only one process
at a time may write into a folder.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from uavlab.core.errors import ConfigError, FileError, ResourceError
from uavlab.core.installation import VERSION
from uavlab.storage.files import MAX_JSON_BYTES, json_digest, open_regular, read_regular

FORMAT = 1
MANIFEST = "manifest.json"
UNFINISHED = ".tmp-"  # prefix of a checkpoint that is being written or removed
NAME = re.compile(r"ckpt-(\d{12,})(\.old)?")  # .old: about to be replaced by one of the same step
GROUP = re.compile(r"[A-Za-z0-9_-]+")
MARGIN = 1.2  # required free space, relative to the size of the tensors
NO_HARD_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}  # errors of a file system


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: the arguments of ``save``, with tensors on the CPU."""

    path: Path
    step: int
    groups: dict[str, dict[str, Tensor]]
    meta: dict[str, Any]
    versions: dict[str, str]


def save(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    keep: int = 3,
    unchanged: tuple[Path, Collection[str]] | None = None,
) -> Path:
    """Write ``folder/ckpt-<step>``, and then keep the last ``keep`` checkpoints up to this step, this one included.

    A checkpoint of the same step is replaced. Checkpoints of later steps are removed: a run writes in order, so they
    are broken, or older than a resumption of the run at an earlier step. ``groups`` holds tensors by group and name, on
    any device, ``meta`` the rest of the state as JSON values. ``unchanged`` is an earlier checkpoint, and the groups to
    link from it. Equal tensors give equal files.
    """
    final = folder / folder_name(step)
    partial = folder / (UNFINISHED + final.name)
    needed = int(MARGIN * sum(tensor.nbytes for tensors in groups.values() for tensor in tensors.values()))
    versions = {
        "uavlab": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    body = {"format": FORMAT, "step": step, "meta": dict(meta), "versions": versions}
    _check_arguments(groups, body)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)
        for stale in folder.glob(UNFINISHED + "*"):
            shutil.rmtree(stale)
        if shutil.disk_usage(folder).free < needed:
            raise OSError("the disk is too full")
        partial.mkdir()
        members = {group: _write_group(partial / f"{group}.npz", tensors) for group, tensors in groups.items()}
        if unchanged is not None:
            members |= _link_groups(*unchanged, partial)
        with (partial / MANIFEST).open("xb") as handle:
            handle.write(_render({**body, "members": members}))
            _sync(handle)
        _sync_folder(partial)
        _publish(partial, final)
        for surplus in _surplus(folder, final, keep):
            hidden = folder / (UNFINISHED + surplus.name)  # a half-removed checkpoint must not look like a broken one
            os.rename(surplus, hidden)
            shutil.rmtree(hidden)
    except OSError as error:
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise ResourceError(
            f"Saving {final} failed: {error}. It needs {needed:,} bytes, {free:,} are free. "
            "What was saved before still loads; make room or choose another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def load(path: Path, only: str = ".*") -> Checkpoint:
    """Read the groups of a checkpoint whose whole name matches ``only``, after a comparison with the manifest."""
    body = _read_manifest(path)
    entries = {group: entry for group, entry in body["members"].items() if re.fullmatch(only, group)}
    groups = {group: _read_group(path / f"{group}.npz", entry) for group, entry in entries.items()}
    return Checkpoint(path, body["step"], groups, body["meta"], body["versions"])


def newest(folder: Path, only: str = ".*", most: int | None = None) -> Checkpoint:
    """Load the intact checkpoint of the highest step, at most ``most``, and warn about each later one that is broken.

    Groups that ``only`` excludes are not read and may be broken.
    """
    candidates, problems = _checkpoints(folder, most), []
    for path in sorted(candidates, key=lambda path: (_step(path), path.suffix == ""), reverse=True):
        try:
            checkpoint = load(path, only)
            if checkpoint.step != _step(path):
                raise FileError(f"{path} was renamed: it holds step {checkpoint.step}.")
        except FileError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} Falling back to {path.name}.", stacklevel=2)
        return checkpoint
    if set(_checkpoints(folder, most)) != set(candidates):  # a run saved and pruned meanwhile
        return newest(folder, only, most)
    unfinished = len(list(folder.glob(UNFINISHED + "*")))
    reasons = " ".join(problems) or f"Unfinished ones: {unfinished}."
    raise FileError(f"{folder} holds no intact checkpoint. {reasons}")


def list_groups(path: Path) -> list[str]:
    """List the groups of a checkpoint whose files exist; none if the manifest is missing or broken."""
    try:
        return [group for group in _read_manifest(path)["members"] if (path / f"{group}.npz").is_file()]
    except FileError:
        return []


def folder_name(step: int) -> str:
    return f"ckpt-{step:012d}"


def _checkpoints(folder: Path, most: int | None = None) -> list[Path]:
    paths = [path for path in folder.glob("ckpt-*") if NAME.fullmatch(path.name) and path.is_dir()]
    return paths if most is None else [path for path in paths if _step(path) <= most]


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("ckpt-"))


def _surplus(folder: Path, final: Path, keep: int) -> list[Path]:
    replaced = [path for path in _checkpoints(folder) if _step(path) >= _step(final) and path != final]
    earlier = sorted((path for path in _checkpoints(folder) if _step(path) < _step(final)), key=_step)
    return replaced + earlier[: max(0, len(earlier) + 1 - keep)]


def _publish(partial: Path, final: Path) -> None:
    """Rename a complete checkpoint to its final name; an existing one is renamed first, so one always exists."""
    if final.exists():
        replaced = final.with_suffix(".old")
        if replaced.exists():
            shutil.rmtree(replaced)
        os.rename(final, replaced)
    os.rename(partial, final)
    _sync_folder(final.parent)


def _check_arguments(groups: Mapping[str, Any], body: dict[str, Any]) -> None:
    invalid = [group for group in groups if not GROUP.fullmatch(group)]
    if invalid:
        raise ConfigError(f"Checkpoint group {invalid[0]!r}: use letters, digits, - and _ only; it names a file.")
    try:
        _render(body)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Checkpoint meta must be JSON values: {error}. Keep tensors in groups.") from error


def _render(body: dict[str, Any]) -> bytes:
    """Render a manifest in canonical form, ending with its own digest."""
    return json.dumps({**body, "sha256": json_digest(body)}, sort_keys=True, indent=1).encode()


def _write_group(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    with path.open("xb+") as handle:
        with zipfile.ZipFile(handle, "w") as archive:
            for name, tensor in tensors.items():
                # ZipInfo gives every entry the same date, so that equal states give equal files
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    array = tensor.detach().cpu().contiguous().numpy()
                    np.lib.format.write_array(member, array, allow_pickle=False)
        _sync(handle)
        size = handle.tell()
        handle.seek(0)
        return {"bytes": size, "sha256": hashlib.file_digest(handle, "sha256").hexdigest()}


def _link_groups(path: Path, groups: Collection[str], partial: Path) -> dict[str, Any]:
    """Hard-link groups of an earlier checkpoint, or copy them on a file system without hard links."""
    entries = _read_manifest(path)["members"]
    for group in groups:
        old, new = path / f"{group}.npz", partial / f"{group}.npz"
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            shutil.copyfile(old, new)
            with new.open("rb+") as handle:
                _sync(handle)
    return {group: entries[group] for group in groups}


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        raw = read_regular(file, MAX_JSON_BYTES)
    except OSError as error:
        raise FileError(f"{path} is no complete checkpoint: {MANIFEST} cannot be read ({error.strerror}).") from error
    try:
        body = json.loads(raw)
        del body["sha256"]
        intact = _render(body) == raw
        known = body["format"] == FORMAT
        valid = known and _is_valid(body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(f"{file} is damaged: it cannot be read as a manifest.") from error
    if not intact:
        raise FileError(f"{file} is damaged or was edited: it does not match its own digest.")
    if not known:
        raise FileError(f"{file} has format {body['format']!r}; this uavlab {VERSION} reads format {FORMAT}.")
    if not valid:
        raise FileError(f"{file} was not written by uavlab: it lacks an entry or names a file outside its folder.")
    return body


def _is_valid(body: dict[str, Any]) -> bool:
    """Return whether a manifest has all entries and names no file outside its folder."""
    kinds = {"step": int, "meta": dict, "versions": dict, "members": dict}
    return all(isinstance(body.get(key), kind) for key, kind in kinds.items()) and all(
        GROUP.fullmatch(group)
        and isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for group, entry in body["members"].items()
    )


def _read_group(path: Path, entry: dict[str, Any]) -> dict[str, Tensor]:
    """Read a file after checking its size and digest against the manifest."""
    try:
        handle = open_regular(path)
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}).") from error
    with handle:
        size = os.fstat(handle.fileno()).st_size
        if size != entry["bytes"]:
            raise FileError(f"{path} has {size} bytes, its manifest says {entry['bytes']}.")
        if hashlib.file_digest(handle, "sha256").hexdigest() != entry["sha256"]:
            raise FileError(f"{path} is damaged: it does not match the SHA-256 of its manifest.")
        handle.seek(0)
        try:
            with np.load(handle, allow_pickle=False) as archive:
                if any(info.compress_type for info in archive.zip.infolist()):
                    raise ValueError("it is compressed, and may unpack to more than its size")
                return {name: torch.from_numpy(array) for name, array in archive.items()}
        except Exception as error:  # the digest matches, so the file was forged and may raise anything
            raise FileError(f"{path} was not written by uavlab: {error}.") from error


def _sync(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
