"""Compiled code on the disk survives kills: the next run has equal results, and none falls back."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from uavlab.runtime.wrappers import MARKERS, OURS, VARIABLE

PROGRAM = """
import torch
from uavlab.runtime.wrappers import compile_function

def product(a, b):
    return (a @ b).tanh().exp().sum()

generator = torch.Generator().manual_seed(0)
a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
compiled = compile_function(product, "product", "default", lambda reason: print("fell back:", reason))
print(compiled(a, b).item().hex())
"""


def start(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM]
    return subprocess.Popen(
        words, env={**os.environ, VARIABLE: str(folder)}, text=True, stdout=subprocess.PIPE, start_new_session=True
    )


def result(folder: Path) -> str:
    process = start(folder)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "fell back" not in out
    return out


def kills(folder: Path, count: int, dice: random.Random) -> int:
    """Kill processes once they compile, and compare what the next one computes; return how many did not end before."""
    expected, left = result(folder / "whole"), 0
    for number in range(count):
        place = folder / str(number)
        process = start(place)
        while process.poll() is None and not [*place.glob(f"{OURS}/{MARKERS}/*")]:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.uniform(0, 10))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        left += bool([*place.glob(f"{OURS}/{MARKERS}/*")])
        assert result(place) == expected
    assert left  # or else nothing was half written
    return left


def test_five_kills_during_compilation(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    left = kills(tmp_path, 5, random.Random(0))
    proof("kill -9 during compilation", f"5 kills, {left} in the middle; equal results, no fall-back")


@pytest.mark.soak
def test_a_hundred_kills_during_compilation(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    left = kills(tmp_path, 100, random.Random(1))
    proof("100 kill -9 during compilation", f"{left} in the middle; equal results, no fall-back")
