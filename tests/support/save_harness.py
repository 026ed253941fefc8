"""Kill a process at each call by which a save changes the disk, in five kinds of save, and check the files.

Run as a program, for the same reason as ``tests.support.kill_harness``:
``python -m tests.support.save_harness [MUTANT]``.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.support.kill_harness import exit_code, fork
from tests.unit.storage.test_checkpoint import CALLS, MUTANTS, bits, mutant, real, state
from uavlab.core.errors import FileError

ROWS = {"replay-0": {"reward": state()["learner"]["nan"]}}  # a group that the next checkpoint links
CASES: dict[str, tuple[tuple[int, ...], int, int]] = {  # steps saved before, the step being saved, how many to keep
    "the first save": ((), 1, 3),
    "the same step again": ((1,), 1, 1),
    "one more, one kept": ((1,), 2, 1),
    "one more, three kept": ((1, 2, 3), 4, 3),
    "one more, with rows taken over": ((1, 2), 3, 1),
}


def kill_at(call: int) -> None:
    """Make this process die before the ``call``-th call that changes the disk."""
    number = 0

    def wrap(old: Callable) -> Callable:
        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal number
            if number == call:
                os.kill(os.getpid(), signal.SIGKILL)
            number += 1
            return old(*args, **named)

        return wrapped

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    np.lib.format.write_array = wrap(np.lib.format.write_array)


def save(module: ModuleType, folder: Path, step: int, keep: int, seed: float, earlier: Path | None) -> None:
    unchanged = (earlier, list(ROWS)) if earlier else None
    module.save(folder, step, state(seed) | ({} if earlier else ROWS), {}, keep, unchanged)


def load_seed(module: ModuleType, folder: Path) -> float | None:
    """Return the seed of the newest intact state, None without one."""
    try:
        groups = module.newest(folder).groups
    except FileError:
        return None
    assert bits({"replay-0": groups.pop("replay-0")}) == bits(ROWS)
    seed = float(groups["learner"]["file"]) - 7
    assert bits(groups) == bits(state(seed))
    return seed


def trial(module: ModuleType, base: Path, case: str, call: int) -> tuple[bool, bool]:
    """Kill one save at one call; return whether it was killed, and whether a state was lost."""
    before, step, keep = CASES[case]
    folder = base / "run"
    shutil.rmtree(folder, ignore_errors=True)
    for old in before:
        save(real, folder, old, 9, float(old), None)
    earlier = folder / f"ckpt-{before[-1]:012d}" if "taken over" in case else None

    def work() -> None:
        kill_at(call)
        save(module, folder, step, keep, 9.0, earlier)

    killed = exit_code(fork(work)) == -signal.SIGKILL
    lost = load_seed(module, folder) not in ({float(before[-1]), 9.0} if before else {None, 9.0})
    if not lost:
        save(real, folder, 12, 1, 12.0, None)  # the next save removes the rest of the killed one
        lost = [path.name for path in folder.iterdir()] != ["ckpt-000000000012"]
    return killed, lost


def main() -> None:
    module = mutant(*MUTANTS[sys.argv[1]][0]) if len(sys.argv) > 1 else real
    results = {}
    with tempfile.TemporaryDirectory() as base:
        for case in CASES:
            trials = [trial(module, Path(base), case, 0)]
            while trials[-1][0]:
                trials.append(trial(module, Path(base), case, len(trials)))
            results[case] = {"kills": len(trials) - 1, "lost": sum(lost for _, lost in trials)}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
