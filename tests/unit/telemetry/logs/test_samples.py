"""Real logs of PX4, if UAVLAB_ULOGS names a folder of .ulg files."""

import os
from pathlib import Path

import numpy as np
import pytest

from uavlab.core.errors import FileError
from uavlab.telemetry.logs.columns import INPUTS
from uavlab.telemetry.logs.draft import describe
from uavlab.telemetry.logs.log import read_log, resample

FOLDER = os.environ.get("UAVLAB_ULOGS")
LOGS = sorted(Path(FOLDER).glob("*.ulg")) if FOLDER else []

pytestmark = pytest.mark.skipif(not LOGS, reason="UAVLAB_ULOGS names no folder with .ulg files")


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_real_log_becomes_a_flight(path: Path) -> None:
    log = read_log(path)
    assert {"x", "vx", "ax", "p", "qw", "motor_1"} <= set(log.columns)
    flight = resample(log, 100, list(log.columns))
    assert all(np.isfinite(values).all() for values in flight.values())
    description = describe(path)
    assert 0 < len(flight["x"]) / 100 <= description["duration_s"] + 0.01
    assert set(description["missing"]) == set(INPUTS) - set(log.columns)
    force = np.linalg.norm([flight[name] for name in ("ax", "ay", "az")], axis=0)
    assert 9 < np.median(force) < 11


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_real_log_that_was_cut_is_refused(path: Path, tmp_path: Path) -> None:
    raw = path.read_bytes()
    (tmp_path / "cut.ulg").write_bytes(raw[: len(raw) // 2 + 1])
    with pytest.raises(FileError, match=r"cut\.ulg: cut off in the middle of a message; copy the log again\."):
        read_log(tmp_path / "cut.ulg")
