"""Kill processes forked from one that has imported everything, so that each costs a fraction of a second.

Run as a program, because a test process may hold threads, which a fork would cut off:
``python -m tests.support.kill_harness kills 300``.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.utils.tensorboard  # slow; imported once for every child

from tests.support.cli_runner import uavlab
from tests.support.fixtures_config import tiny
from uavlab.core.errors import UavlabError
from uavlab.core.rng import Streams
from uavlab.experiment import run as run_module
from uavlab.experiment.config import Config
from uavlab.experiment.run import Run
from uavlab.storage import checkpoint
from uavlab.storage.metrics_log import Recorder

KILLS_PER_RUN = 20
MUTANTS = {
    "streams": (Streams, "load_state_dict"),
    "log": (Recorder, "recover"),
    "stop": (Run, "stop"),
    "lock": (run_module, "lock_run_dir"),
}
LONG: dict[str, Any] = {"updates": 60, "evaluate_every": 6, "checkpoint_every": 3, "log_every": 4}
LATEST = 0.8  # of the time of a whole run: the latest moment of a kill


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a child without output; return the child's process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = 130
    except UavlabError as error:
        code = error.exit_code
    except BaseException:
        traceback.print_exc()  # what the parent then reports is wrong in any case
    finally:
        os._exit(code)


def exit_code(child: int) -> int:
    """Wait for a child and return its exit code, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def alive(child: int) -> bool:
    """Return whether a child still runs, without reaping it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def go_on(folder: Path, config: Config) -> Run:
    """Start a run, or resume it if the folder holds one."""
    return Run.resume(folder) if (folder / "config.json").exists() else Run(config, folder)


def finish(folder: Path, config: Config) -> None:
    for _ in go_on(folder, config).train():
        pass


def time_run(folder: Path, config: Config) -> float:
    """Train a whole run in a child; return its time (s), which depends on the load of the machine."""
    start = time.monotonic()
    assert exit_code(fork(lambda: finish(folder, config))) == 0
    return time.monotonic() - start


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a run; empty before training starts."""
    return json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}


def timeless(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def kills(count: int, seed: int, base: Path) -> dict[str, Any]:
    """Kill runs at random times, ``KILLS_PER_RUN`` times each, finish them, and compare with an undisturbed run."""
    dice, configs = random.Random(seed), [tiny(**LONG), tiny(**LONG | {"evaluate_every": 1000})]
    whole = [base / "whole", base / "scored at its end"]
    latest = LATEST * min(time_run(folder, config) for config, folder in zip(configs, whole, strict=True))
    total, runs, other, updates = 0, 0, [], []
    while total < count:
        folder, here, config, twin = base / f"run{runs}", 0, configs[runs % 2], whole[runs % 2]
        while here < min(KILLS_PER_RUN, count - total):
            child = fork(lambda folder=folder, config=config: finish(folder, config))  # type: ignore[misc]
            time.sleep(latest * dice.random() ** 2)
            os.kill(child, signal.SIGKILL)
            if exit_code(child) == 0:
                break
            here += 1
            updates.append(read_record(folder).get("update", -1))
        code = exit_code(fork(lambda folder=folder, config=config: finish(folder, config)))  # type: ignore[misc]
        if code or read_record(folder)["digest"] != read_record(twin)["digest"] or timeless(folder) != timeless(twin):
            other.append((runs, code))
        total, runs = total + here, runs + 1
    return {"kills": total, "runs": runs, "other": other, "seed": seed, "furthest": max(updates)}


def signals(count: int, seed: int, base: Path) -> dict[str, Any]:
    """Send signals at random times to ``uavlab train``; each run must end correctly and resume to the same result."""
    dice, config = random.Random(seed), tiny(**LONG)
    latest = LATEST * time_run(base / "whole", config)
    expected = read_record(base / "whole")["digest"]
    settings = [part for key, value in config.values.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    seen: dict[str, int] = {}
    wrong = []
    for trial in range(count):
        folder = base / f"run{trial}"
        numbers = dice.choice([[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM] * 2, [signal.SIGINT] * 2])
        typed = ["train", "leader_follower", *settings, "--out", str(folder)]
        child = fork(lambda typed=typed: sys.exit(uavlab(*typed).code))  # type: ignore[misc]
        for number in numbers:
            time.sleep(latest * dice.random())
            os.kill(child, number)
        code, status = exit_code(child), read_record(folder).get("status", "nothing")
        if status == "complete" and len(numbers) == 1:  # the machine may be faster than when the run was timed
            latest *= LATEST
        kind = f"{len(numbers)} x {status}"
        seen[kind] = seen.get(kind, 0) + 1
        fault = find_fault(folder, numbers, code, status)
        if not fault and (
            exit_code(fork(lambda folder=folder: finish(folder, config))) or read_record(folder)["digest"] != expected
        ):  # type: ignore[misc]
            fault = "went on to another end"
        if fault:
            wrong.append((trial, [number.name for number in numbers], code, status, fault))
    return {"signals": count, "seen": seen, "wrong": wrong, "seed": seed}


def races(count: int, seed: int, base: Path) -> dict[str, Any]:
    """Start two processes that train into one folder and one that resumes it; only one may get the folder."""
    config, endings = tiny(**LONG), []
    for number in range(count):
        folder = base / f"run{number}"
        both = [fork(lambda folder=folder: list(Run(config, folder).train())) for _ in range(2)]  # type: ignore[misc]
        while not (folder / "checkpoints").exists() and any(map(alive, both)):  # a busy machine takes seconds to begin
            time.sleep(0.01)
        third = fork(lambda folder=folder: list(Run.resume(folder).train()))  # type: ignore[misc]
        endings.append([exit_code(child) for child in (*both, third)])
    return {"races": count, "other": [codes for codes in endings if sorted(codes) != [0, 2, 2]]}


def find_fault(folder: Path, numbers: list[signal.Signals], code: int, status: str) -> str:
    """Check how a run ended on one signal or two; return the fault, or an empty text."""
    number = numbers[0]
    early = status in ("nothing", "new") and code in (-number, 128 + number)  # before training began
    late = status == "complete" and code in (0, -number, 128 + number)
    second = len(numbers) == 2 and status in ("running", "interrupted") and code in (-number, 128 + number)
    if early or late or second:
        return ""
    if status != "interrupted" or code != 128 + number:
        return "not ended as an interrupted run"
    saved = checkpoint.newest(folder / "checkpoints").step
    return (
        ""
        if saved == read_record(folder)["update"]
        else f"saved at {saved}, stopped at {read_record(folder)['update']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("proof", choices=["kills", "signals", "races"])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--break", dest="broken", choices=list(MUTANTS), help="A loss that the proof must detect.")
    given = parser.parse_args()
    if given.broken:
        owner, name = MUTANTS[given.broken]
        setattr(owner, name, (lambda *given, **named: nullcontext()) if name == "lock_run_dir" else lambda *given: None)
    torch.set_num_threads(1)
    list(Run(tiny(**LONG)).train())  # imports and caches, filled once for every child
    with tempfile.TemporaryDirectory() as base:
        proofs = {"kills": kills, "signals": signals, "races": races}
        print(json.dumps(proofs[given.proof](given.count, given.seed, Path(base))))


if __name__ == "__main__":
    main()
