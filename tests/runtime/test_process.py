"""Switches of the process are what the toggles say inside, and what they were outside, however it ends."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from uavlab.runtime import process
from uavlab.runtime.process import switched
from uavlab.runtime.toggles import Toggles, resolve

CPU = torch.device("cpu")
FAULTS = """  # of three tensors one after the other, each larger than what glibc keeps by itself
import resource, torch
from uavlab.runtime.process import switched
from uavlab.runtime.toggles import Toggles

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(80 * 2**20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with switched(Toggles(heap="kept"), torch.device("cpu")):
    faults()
    print(faults())
print(faults())
"""
SWITCHES: list[tuple[Toggles, Callable[[], Any], Any]] = [
    (Toggles(threads=3), torch.get_num_threads, 3),
    (Toggles(heap="kept"), lambda: process._heap[0], "kept"),
    (Toggles(deterministic="on"), torch.are_deterministic_algorithms_enabled, True),
    (Toggles(precision="tf32"), lambda: torch.backends.cuda.matmul.fp32_precision, "tf32"),
]


@pytest.mark.parametrize(("toggles", "read", "inside"), SWITCHES)
def test_on_inside_and_restored_outside(toggles: Toggles, read: Callable[[], Any], inside: Any) -> None:
    before = read()
    with switched(toggles, CPU):
        assert read() == inside
    assert read() == before != inside
    with pytest.raises(KeyError), switched(toggles, CPU):
        raise KeyError
    assert read() == before


def test_what_is_on_already_stays_on() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with switched(Toggles(deterministic="on"), CPU):
            pass
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(bool(resolve(Toggles(heap="kept"), CPU)[1]), reason="another malloc")
def test_a_kept_heap_is_not_asked_for_again() -> None:
    """A page that comes from the system costs a fault, once or each time."""
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True, timeout=120)
    kept, trimmed = map(int, done.stdout.split())
    assert kept < 1000 < 30_000 < trimmed


def test_a_share_of_the_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: told.append(share))
    with switched(Toggles(memory_fraction=0.25), CPU):
        assert told == [0.25]
    assert told == [0.25, 1.0]
    with switched(Toggles(), CPU):
        pass
    assert len(told) == 2
