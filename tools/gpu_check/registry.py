"""The groups of cases by name, and what all of them share."""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check.worker import Case

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m tools.gpu_check"
PARTS = {  # what each is for, the most valuable first
    1: "the ladder of updates with graphs and compiled forms at 8, 2 and 4 agents, and all claims with their verdicts",
    2: "worlds, replay and PPO at a real size, and a team that trains until it completes 0.9 of its flights",
    3: "the rest: equal updates and worlds, runs, folders, ranks, waits, compiled runs, tests, commands, other suites",
}


@dataclass(frozen=True)
class Group:
    """Cases of a kind, tried in processes of their own.

    Attributes:
        cases: (device, folder of records) -> cases.
        weight: Its share of the time of its part.
        about: What its cases show.
        part: Its part of the check.
        timed: Its cases measure time, so they run alone.
        anew: Its cases are tried in every call, because what they leave is on this machine and not in the record.
    """

    cases: Callable[[str, Path], Iterator[Case]]
    weight: float
    about: str
    part: int
    timed: bool
    anew: bool


GROUPS: dict[str, Group] = {}


def group(weight: float, about: str, part: int = 3, timed: bool = False, anew: bool = False) -> Callable:
    """Register the decorated function as a group under its name."""

    def register(function: Callable) -> Callable:
        GROUPS[function.__name__] = Group(function, weight, about, part, timed, anew)
        return function

    return register


def machine(device: str) -> tuple[dict[str, Any], str]:
    """Return the description of this machine and its name for use in a file name, ``unknown`` without the package."""
    try:
        from uavlab.storage.machine import describe
        from uavlab_lab.claims.report import slug
    except ModuleNotFoundError:
        import torch

        name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
        return {"device": name, "torch": torch.__version__, "python": platform.python_version()}, "unknown"
    facts = describe(device)
    return facts, slug(facts)
