"""Simulated flights become files, whole or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import ConfigError, ResourceError
from uavlab.telemetry.flight_files import made
from uavlab.telemetry.logs.columns import COLUMNS


def test_each_file_is_a_flight(tmp_path: Path) -> None:
    paths = [path for path, _ in made(tmp_path / "logs", 2, 5)]
    assert [path.name for path in paths] == ["flight_000005.npz", "flight_000006.npz"]
    with np.load(paths[0]) as held:
        assert set(held) == set(COLUMNS)
        assert held["time"][:3].tolist() == [0.0, 0.01, 0.02]
        assert all(held[name].dtype == np.float32 and np.isfinite(held[name]).all() for name in held if name != "time")
    first = paths[1].read_bytes()
    again, _ = next(iter(made(tmp_path / "more", 1, 6)))
    assert again.read_bytes() == first  # the same seed, the same flight


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        next(made(tmp_path, 1, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        next(made(tmp_path / "logs", 1, 0))
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be made"):
        next(made(tmp_path / "file" / "logs", 1, 0))
