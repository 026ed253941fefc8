"""Runs of several ranks on this machine: their throughput, and the time in which gradients are combined."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar, cast

import torch

from uavlab.benchmarks import Option, Record, suite
from uavlab.core.errors import ResourceError, UavlabError
from uavlab.experiment import build
from uavlab.experiment.config import Device, configure
from uavlab.experiment.schedules import gradient_steps
from uavlab.profiling.timing import WARM_UP, median, ratio
from uavlab.runtime.ranks import join
from uavlab.runtime.stage_timer import synchronize
from uavlab.training import make_cycle

PRESETS = {"leader_follower_quick": 50, "leader_follower_mappo": 2}  # cycles of a block, which takes some 0.2 s
SIZES = (1, 2)
ANSWER_S = 30.0  # in which all ranks end after one of them did
ONCE = 200  # operations by which one is timed
SERVE = "import sys; from uavlab_lab.suites.ranks import serve; serve(*sys.argv[1:])"
Worker = subprocess.Popen[str]
K = TypeVar("K", bound=Hashable)


@suite(
    "ranks",
    about="one rank and several, by gloo",
    options=[Option("ranks", "numbers of ranks; default 1 and 2", (1, 64))],
)
def ranks_suite(rounds: int, device: Device, ranks: Sequence[int] = SIZES) -> Record:
    """Time cycles of each number of ranks, in blocks in turn; each rank has the preset's batch and worlds.

    In a row, ``efficiency`` is agent-steps per second and rank over those of the least number of ranks;
    ``all_reduce_us`` is the time in which ranks combine ``gradient_bytes``, those of the largest gradient step.
    """
    rows = []
    for preset, block in PRESETS.items():
        seconds, facts = time_groups({size: (preset, size) for size in sorted(set(ranks))}, block, rounds, device)
        first = next(iter(seconds.values()))
        for size, each in seconds.items():
            rate = block / median(each)
            rows.append(
                {
                    "preset": preset,
                    "ranks": size,
                    "threads": 1,
                    "cycles_per_s": round(rate, 1),
                    "agent_steps_per_s": round(rate * size * facts[size]["agent_steps"]),
                    "efficiency": ratio(first, each, "mean"),
                    "gradient_bytes": facts[size]["gradient_bytes"],
                    "all_reduce_us": facts[size]["all_reduce_us"],
                }
            )
    return {"rows": rows}


def time_groups(
    groups: Mapping[K, tuple[str, int]], cycles: int, rounds: int, device: Device
) -> tuple[dict[K, list[float]], dict[K, Any]]:
    """Time blocks of cycles of several groups of ranks, in turn; return their seconds, and what each rank 0 says."""
    seconds: dict[K, list[float]] = {name: [] for name in groups}
    with ExitStack() as stack:
        started = {name: stack.enter_context(group(*each, device)) for name, each in groups.items()}
        facts = {name: each.read() for name, each in started.items()}
        for number in range(-WARM_UP, rounds):
            for name, each in started.items():
                spent = each.block_seconds(cycles)
                if number >= 0:
                    seconds[name].append(spent)
    return seconds, facts


@dataclass(frozen=True)
class RankProcesses:
    """The processes of a group of ranks, in their order, and the preset that they train."""

    preset: str
    workers: list[Worker]

    def read(self) -> Any:
        """Return what rank 0 answers."""
        line = cast(IO[str], self.workers[0].stdout).readline()
        if not line:
            with suppress(subprocess.TimeoutExpired):
                self.workers[0].wait(ANSWER_S)
            codes = {rank: code for rank, worker in enumerate(self.workers) if (code := worker.poll()) is not None}
            which = ", ".join(f"rank {rank} of {len(self.workers)} with {code}" for rank, code in codes.items())
            raise ResourceError(
                f"bench: {self.preset}: {which or 'rank 0'} ended before it answered; expected seconds of a block. See "
                "its message above, or try fewer ranks."
            )
        return json.loads(line)

    def block_seconds(self, cycles: int) -> float:
        """Return the seconds in which all ranks run some cycles, as rank 0 says."""
        with suppress(BrokenPipeError):  # of a rank that ended, which ends all
            for worker in self.workers:
                print(cycles, file=worker.stdin, flush=True)
        return float(self.read())


@contextmanager
def group(preset: str, size: int, device: Device) -> Iterator[RankProcesses]:
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
        yield RankProcesses(preset, workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def serve(preset: str, device: Device) -> None:
    """Run as one rank: run as many cycles as each line of stdin says, and print the seconds they took."""
    try:
        _serve(preset, device)
    except UavlabError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _serve(preset: str, device: Device) -> None:
    ranks = join(device=device)
    alone = {"evaluate_every": 10**9, "updates": 10**9, "device": device}
    config = configure(preset, alone)
    rt, rng, learner, source = build.assemble(config, ranks=ranks)
    cycle = make_cycle(source, learner, rng, rt)
    amount, _ = config.task.collector.data_per_update(config)
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
        print(json.dumps(value), flush=True)
