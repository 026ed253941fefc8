"""Compiled code on the disk survives kills and damage: the next run has equal results, and none falls back."""

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

from uavlab.runtime.wrappers import MARKERS, MUTEX, OURS, VARIABLE

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


def damage(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    kind = dice.choice(["cut", "empty", "flip", "zeros", "delete", "garbage"])
    if kind == "delete" or not content:
        return path.unlink()
    place = dice.randrange(len(content))
    if kind == "flip":
        content[place] ^= 1 << dice.randrange(8)
    elif kind == "zeros":
        content[place:] = bytes(len(content) - place)
    elif kind == "garbage":
        content[place : place + 200] = dice.randbytes(200)
    path.write_bytes({"cut": content[:place], "empty": b""}.get(kind, content))
    return None


def damages(folder: Path, count: int, at_once: int, dice: random.Random) -> None:
    expected = result(folder)
    for _ in range(count // at_once):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks")
        for path in dice.sample([path for path in files if path.name != MUTEX], at_once):
            damage(path, dice)
        assert result(folder) == expected


def test_five_kills_during_compilation(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    left = kills(tmp_path, 5, random.Random(0))
    proof("kill -9 during compilation", f"5 kills, {left} in the middle; equal results, no fall-back")


def test_fifty_damaged_files(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    damages(tmp_path, 50, 5, random.Random(0))
    proof("damaged files of compiled code", "50 files, equal results, no fall-back")


@pytest.mark.soak
def test_a_hundred_kills_during_compilation(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    left = kills(tmp_path, 100, random.Random(1))
    proof("100 kill -9 during compilation", f"{left} in the middle; equal results, no fall-back")


@pytest.mark.soak
def test_a_hundred_damaged_files(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    damages(tmp_path, 100, 1, random.Random(1))
    proof("100 damaged files of compiled code", "one by one, equal results, no fall-back")
