"""Where the time of a team step goes that is computed mission by mission on the host, by a profile of its functions."""

import cProfile
import pstats
from collections.abc import Mapping
from typing import Any

import torch

from uavlab.bench.suites.mapping import stepping
from uavlab.bench.timing import interleaved, median, ratio
from uavlab.envs.mapping.numpy_reference import HostMapping
from uavlab.runtime.runtime import Runtime

PARTS: Mapping[str, tuple[str, ...]] = {
    "beliefs from log odds": ("belief",),
    "entropy and weights": ("entropy", "interest"),
    "resizing": ("resize",),
    "map of who is where": ("_drawn_around",),
    "the sensor": ("_told",),
    "adding measurements up": ("_fused",),
    "constant channels": ("_even",),
}
"""Functions by what they are for; none of them calls another, so their times add up."""


def host_parts(env: HostMapping, steps: int, top: int = 8) -> dict[str, Any]:
    """Profile team steps of one mission.

    A profiler slows small Python calls more than large ones; ``profiled_over_plain`` tells by how much altogether.

    Returns:
        ``step_ms`` (median without the profiler), ``profiled_over_plain``, ``parts`` (rows ``name, share, mean_ms``,
        the last for all else) and ``own`` (rows ``function, calls, own_ms`` per step, most time of their own first).
    """
    call, profile = stepping(env, 1, Runtime()), cProfile.Profile()
    call()
    calls = {"plain": call, "profiled": lambda: profile.runcall(call)}
    seconds = interleaved(calls, steps, torch.device("cpu"), warm_up=0)
    stats = pstats.Stats(profile)
    total = stats.total_tt  # type: ignore[attr-defined]
    rows = [_row(stats.stats, name, functions, steps, total) for name, functions in PARTS.items()]  # type: ignore[attr-defined]
    rest = 1 - sum(row["share"] for row in rows)
    rows.append({"name": "all else", "share": rest, "mean_ms": 1e3 * rest * total / steps})
    return {
        "step_ms": 1e3 * median(seconds["plain"]),
        "profiled_over_plain": ratio(seconds["profiled"], seconds["plain"])["median"],
        "parts": sorted(rows[:-1], key=lambda row: -row["share"]) + rows[-1:],
        "own": own(stats.stats, steps)[:top],  # type: ignore[attr-defined]
    }


def _row(stats: Mapping[Any, Any], name: str, functions: tuple[str, ...], steps: int, total: float) -> dict[str, Any]:
    took = sum(found[3] for key, found in stats.items() if bare(key) in functions)
    return {"name": name, "share": took / total, "mean_ms": 1e3 * took / steps}


def own(stats: Mapping[Any, Any], steps: int) -> list[dict[str, Any]]:
    """Lay functions out by the time that they take themselves, most first."""
    rows = [
        {"function": bare(key), "calls": found[1] / steps, "own_ms": 1e3 * found[2] / steps}
        for key, found in stats.items()
    ]
    return sorted(rows, key=lambda row: -row["own_ms"])


def bare(key: tuple[str, int, str]) -> str:
    """Name a function of a profile, of this project or of a library, without its file; others keep theirs."""
    file, _, name = key
    inner = file.endswith("numpy_reference.py")
    plain = name.strip("{}<>").removeprefix("built-in method ").removeprefix("method ")
    return plain if inner or file == "~" else f"{file.rpartition('/')[2]}:{plain}"
