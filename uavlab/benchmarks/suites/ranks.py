"""Runs of one and of two ranks on this machine: their throughput, and the time in which gradients are combined."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import torch

from uavlab.benchmarks.registry import Record, suite
from uavlab.benchmarks.timing import WARM_UP, median, ratio
from uavlab.core.errors import ResourceError
from uavlab.experiment import build
from uavlab.experiment.config import Device, configure
from uavlab.experiment.schedules import gradient_steps
from uavlab.runtime.stage_timer import synchronize
from uavlab.runtime.torchrun import join
from uavlab.training import make_cycle

PRESETS = {"leader_follower_quick": 50, "leader_follower_mappo": 2}  # cycles of a block, which takes some 0.2 s
SIZES = (1, 2)
ONCE = 200  # operations by which one is timed
SERVE = "import sys; from uavlab.benchmarks.suites.ranks import serve; serve(*sys.argv[1:])"
Worker = subprocess.Popen[str]


@suite("ranks", about="one rank and two, by gloo")
def ranks_suite(rounds: int, device: Device) -> Record:
    """Time cycles of one rank and of two, in blocks in turn; each rank has the preset's batch and worlds.

    Returns:
        A row for each preset and number of ranks: ``cycles_per_s``, ``agent_steps_per_s`` of all ranks, ``efficiency``
        (agent-steps per second and rank, relative to one rank, with its interval), ``gradient_bytes`` of the largest
        gradient step, and ``all_reduce_us`` in which ranks combine so many bytes.
    """
    rows = []
    for preset, block in PRESETS.items():
        with group(preset, device, 1) as one, group(preset, device, 2) as two:
            groups = dict(zip(SIZES, (one, two), strict=True))
            facts = {size: read(workers[0]) for size, workers in groups.items()}
            seconds: dict[int, list[float]] = {size: [] for size in groups}
            for number in range(-WARM_UP, rounds):
                for size, workers in groups.items():
                    spent = block_seconds(workers, block)
                    if number >= 0:
                        seconds[size].append(spent)
        for size, each in seconds.items():
            rate = block / median(each)
            rows.append(
                {
                    "preset": preset,
                    "ranks": size,
                    "threads": 1,
                    "cycles_per_s": round(rate, 1),
                    "agent_steps_per_s": round(rate * size * facts[size]["agent_steps"]),
                    "efficiency": ratio(seconds[1], each, "mean"),
                    "gradient_bytes": facts[size]["gradient_bytes"],
                    "all_reduce_us": facts[size]["all_reduce_us"],
                }
            )
    return {"rows": rows}


@contextmanager
def group(preset: str, device: Device, size: int) -> Iterator[list[Worker]]:
    """Start the ranks of a group, and end them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    workers: list[Worker] = []
    try:
        for rank in range(size):
            env = {**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            command = [sys.executable, "-W", "ignore", "-c", SERVE, preset, device]
            pipe = subprocess.PIPE
            workers.append(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def read(worker: Worker) -> Any:
    """Read what a rank answers.

    Raises:
        ResourceError: It ended.
    """
    line = cast(IO[str], worker.stdout).readline()
    if not line:
        raise ResourceError("bench ranks: a rank ended before it answered; see its message above.")
    return json.loads(line)


def block_seconds(workers: list[Worker], cycles: int) -> float:
    """Return the seconds in which all ranks run some cycles, as rank 0 says."""
    for worker in workers:
        stdin = cast(IO[str], worker.stdin)
        stdin.write(f"{cycles}\n")
        stdin.flush()
    return float(read(workers[0]))


def serve(preset: str, device: Device) -> None:
    """Run as one rank: run as many cycles as each line of stdin says, and print the seconds they took."""
    ranks = join(device=device)
    alone = {"evaluate_every": 10**9, "updates": 10**9, "device": device}
    config = configure(preset, alone)
    rt, rng, learner, source = build.assemble(config, ranks=ranks)
    cycle = make_cycle(source, learner, rng, rt)
    amount, _ = config.task.collector.pace(config)
    largest = max((step.parameters for step in gradient_steps(learner)), key=lambda each: sum(p.numel() for p in each))
    gradients = [torch.zeros_like(parameter) for parameter in largest]
    with rt.scope():
        cycle()
        began = time.perf_counter()
        for _ in range(ONCE):
            ranks.means(gradients)
        synchronize(rt.device)
        once = (time.perf_counter() - began) / ONCE if ranks.size > 1 else 0.0
        size = sum(each.nbytes for each in gradients)
        _say({"agent_steps": amount, "gradient_bytes": size, "all_reduce_us": round(1e6 * once, 1)}, ranks.rank)
        for line in sys.stdin:
            began = time.perf_counter()
            for _ in range(int(line)):
                cycle()
            ranks.wait()
            synchronize(rt.device)
            _say(time.perf_counter() - began, ranks.rank)


def _say(value: Any, rank: int) -> None:
    if rank == 0:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()
