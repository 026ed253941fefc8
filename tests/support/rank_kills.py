"""Kill random ranks of a run, or the agent of torchrun above them: ``python -m tests.support.rank_kills 5 --seed 0``.

An agent starts its ranks again; where it is killed itself, its ranks end by themselves, and another agent goes on.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.rank_runs import SMALL, launch, record

KILLS_PER_RUN = 10
LONG = {**SMALL, "updates": 120, "checkpoint_every": 5, "evaluate_every": 40, "log_every": 20}
WORDS = [word for name, value in LONG.items() for word in ("--set", f"{name}={value}")]
VICTIMS = ["rank 0", "rank 1", "agent"]
LATEST_S = 7.0  # after the ranks began, whose start takes about five seconds


def begin(folder: Path) -> "subprocess.Popen[str]":
    """Start a run, or go on with the one in the folder."""
    words = (
        ["resume", folder]
        if (folder / "config.json").exists()
        else ["train", "leader_follower", *WORDS, "--out", folder]
    )
    return launch(*words, restarts=100)


def ranks_of(agent: int) -> list[psutil.Process]:
    """Return the processes of the ranks that an agent started."""
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(agent).children() if each.status() != psutil.STATUS_ZOMBIE]
    return []


def finish(folder: Path, kills: int, dice: random.Random) -> dict[str, int]:
    """Train a run to its end in spite of kills; return how often each kind of process was killed."""
    counts = dict.fromkeys(VICTIMS, 0)
    agent = begin(folder)
    victims: list[str] = []
    while sum(counts.values()) < kills:
        while agent.poll() is None and len(ranks_of(agent.pid)) < 2:
            time.sleep(0.05)
        time.sleep(LATEST_S * dice.random())
        workers = ranks_of(agent.pid)
        if agent.poll() is not None:
            break
        if len(workers) < 2:
            continue
        victims = victims or dice.sample(VICTIMS, len(VICTIMS))  # each in turn
        victim = victims.pop()
        pid = agent.pid if victim == "agent" else workers[int(victim[-1])].pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            counts[victim] += 1
        if victim == "agent":
            agent.wait()
            _, alive = psutil.wait_procs(workers, timeout=60)
            if alive:
                raise RuntimeError(f"ranks without an agent go on: {alive}")
            agent = begin(folder)
    agent.communicate()
    return counts


def ends(folder: Path) -> list[tuple[Any, ...]]:
    """Return how the parts of a run ended."""
    records = [record(folder, rank) for rank in range(2)]
    return [(each["status"], each["update"], each["digest"], each["learner_digest"]) for each in records]


def kills(count: int, seed: int, base: Path) -> dict[str, Any]:
    """Kill runs at random times, ``KILLS_PER_RUN`` times each, and compare their ends with a run left alone."""
    dice, total, other = random.Random(seed), dict[str, int](), []
    finish(base / "whole", 0, dice)
    whole = ends(base / "whole")
    runs = 0
    while sum(total.values()) < count:
        folder = base / f"run{runs}"
        counts = finish(folder, min(KILLS_PER_RUN, count - sum(total.values())), dice)
        total = {name: total.get(name, 0) + more for name, more in counts.items()}
        if ends(folder) != whole:
            other.append((runs, ends(folder)))
        runs += 1
    complete = [status for status, *_ in whole] == ["complete"] * 2 and whole[0][3] == whole[1][3]
    return {"kills": total, "runs": runs, "other": other, "complete": complete, "seed": seed}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        print(json.dumps(kills(given.count, given.seed, Path(base))))
