"""What the workers share: versions, seconds of a call, and answers to the driver, line by line."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch

Calls = Mapping[str, Callable[[], float]]
"""Pieces by name; each prepares what it needs, does its work once and returns the seconds of the work."""

ONE_CRITIC = ", one critic"
"""Added to the names of calls in which all agents of a team share one critic, of MASAC one pair."""

STEPS = 16  # updates of MASAC in a call, and steps of all worlds in an iteration


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def versions(names: Iterable[str]) -> dict[str, str]:
    return {name: version(name) for name in names}


def completion(sizes: Mapping[str, Any], act: Callable[[Any], Any]) -> float:
    """Return the share of episodes in which a function from observations to actions reaches the goal."""
    import uavlab as ul  # not needed by the other comparison, which measures times alone

    return ul.evaluate(sizes["task"], policy=act, episodes=sizes["episodes"], device="cpu")["completion"]["mean"]


def count_steps(calls: Calls, counts: Callable[[str], Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Make each call once; return by how much it raised the counts of Adam's steps that ``counts`` returns for it."""
    steps = {}
    for name, call in calls.items():
        before = counts(name)
        call()
        steps[name] = {part: after - before[part] for part, after in counts(name).items()}
    return steps


def serve(build: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Calls]]) -> None:
    """Build the calls for the sizes in the first argument, write the facts, then the seconds of each call asked for.

    Questions and answers are lines of JSON. What packages print goes to the standard error.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    facts, calls = build(json.loads(sys.argv[1]))
    print(json.dumps({**facts, "threads": torch.get_num_threads()}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(calls[json.loads(line)]()), file=answers, flush=True)
