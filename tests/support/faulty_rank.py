"""The command line, with a fault in one rank: ``FAULT=KIND:RANK:UPDATE`` and torchrun in front of it.

Kinds: ``nan`` (a reward), ``memory`` (refused), ``exception`` (of no family), ``stop`` (SIGSTOP), ``kill`` (SIGKILL),
``gradient`` (a step that no other rank takes), ``settings`` (other ones than those of the other ranks).
"""

import os
import signal
import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch

from uavlab import cli, training
from uavlab.core.types import Update

KIND, RANK, UPDATE = os.environ.get("FAULT", "none:0:0").split(":")
one_cycle = training.one_cycle


def strike(source: Any, learner: Any, rt: Any) -> None:
    """Do what the kind of fault says."""
    if KIND == "nan":
        rt.check({"reward": (torch.full((1, 4, 2), torch.nan, device=rt.device), "R W A")})
    elif KIND == "memory":
        raise torch.OutOfMemoryError("tried to allocate 1 TiB")
    elif KIND == "exception":
        raise ValueError("the simulator has no wind")
    elif KIND in ("stop", "kill"):
        os.kill(os.getpid(), signal.SIGSTOP if KIND == "stop" else signal.SIGKILL)
    elif KIND == "gradient":
        learner.actor.parameter.data += 1e-3


def faulty_cycle(source: Any, learner: Any, rng: Any, rt: Any) -> Update:
    """Run one cycle, in which this rank fails at its update."""
    global seen
    seen += 1
    if seen == int(UPDATE):
        strike(source, learner, rt)
    return one_cycle(source, learner, rng, rt)


seen = 0
if os.environ.get("RANK") == RANK and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
    training.one_cycle = faulty_cycle
    if KIND == "settings":
        sys.argv += ["--set", "lr=0.5"]

if os.environ.get("TRACED"):  # the compiler runs the operators that it traced, which takes seconds
    torch.compile = partial(torch.compile, backend="aot_eager")
if os.environ.get("OUTSIDE"):
    import_module("tests.support.outside")

if __name__ == "__main__":
    cli.main()
