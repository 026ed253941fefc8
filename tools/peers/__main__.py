"""Compare the times of MAPPO and MASAC with those of BenchMARL: the same networks, batches and gradient steps.

    python -m tools.peers --rounds 20 --out figures/records/peers.json

Both programs stay loaded in processes of their own, each on one thread, and take turns call by call, so a busy machine
slows both. The comparison is refused unless parameters, observations and gradient steps are equal.

BenchMARL has an environment of its own with pinned versions. On Linux without a GPU, torch==2.13.0 comes first, from
https://download.pytorch.org/whl/cpu. The packages of the last two lines serve ``tools.peers.learning``:

    python3.11 -m venv build/peers
    build/peers/bin/pip install -r tools/peers/requirements.txt
    build/peers/bin/pip install -c constraints.txt jaxtyping annotated-types pydantic ruamel.yaml
    build/peers/bin/pip install -c constraints.txt click tqdm filelock psutil

The extra ``torchrl`` of uavlab needs another version of torchrl.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from tools.peers.worker import ONE_CRITIC, STEPS
from uavlab.benchmarks import format_rows
from uavlab.core.errors import ConfigError, ResourceError
from uavlab.profiling.timing import WARM_UP, median, ratio
from uavlab.storage.files import write_json
from uavlab.storage.machine import describe

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "tools" / "peers" / "requirements.txt"
PYTHON = ROOT / "build" / "peers" / "bin" / "python"
INSTALL = "python3.11 -m venv build/peers && build/peers/bin/pip install -r tools/peers/requirements.txt"
SIZES: Mapping[str, Any] = {
    **{"agents": 3, "horizon": 25, "worlds": 64, "lr": 3e-4, "clip": 0.5, "fused": True},
    "mappo": {"rollout_steps": 64, "epochs": 5, "minibatches": 4},
    "masac": {"batch": 256, "capacity": 100_000, "learning_starts": 2_048},
}
WIDTHS = (128, 256)  # of hidden layers: in wider ones more of the time is matrix products, equal in both
PIECES = ("mappo update", "mappo iteration", "masac update", "masac iteration")
UPDATES = {"masac update": STEPS}  # of a call where they are several; an iteration counts as a whole
NAMES = {"uavlab": "uavlab", "benchmarl": "BenchMARL"}
PROGRAMS = {  # the worker of each, and what its calls add to the name of the learner
    f"{name}{suffix}": (worker, suffix) for suffix in ("", ONE_CRITIC) for worker, name in NAMES.items()
}


class Worker:
    """A process that measures one program; ResourceError says that it ended."""

    def __init__(self, name: str, python: Path | str, sizes: Mapping[str, Any]) -> None:
        """Start the process and wait until it has built its calls."""
        self.name, self.log = name, tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process runs
        self.process = subprocess.Popen(
            [str(python), "-m", f"tools.peers.{name}_worker", json.dumps(sizes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.facts: dict[str, Any] = self._read()

    def ask(self, call: str) -> float:
        with suppress(BrokenPipeError):  # it ended: there is nothing to read
            print(json.dumps(call), file=self.process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _read(self) -> Any:
        if line := self.process.stdout.readline():
            return json.loads(line)
        code = self.process.wait()
        self.log.seek(0)
        (last,) = self.log.read().strip().splitlines()[-1:] or ["no message"]
        self.close()
        raise ResourceError(f"peers: the worker of {self.name} ended with {code}: {last}")


@contextmanager
def loaded(sizes: Mapping[str, Any], python: Path) -> Iterator[dict[str, Worker]]:
    """Load both programs, which must be of the pinned versions and do the same work; otherwise ConfigError."""
    with ExitStack() as stack:
        places = {"uavlab": sys.executable, "benchmarl": python}
        workers = {name: stack.enter_context(closing(Worker(name, place, sizes))) for name, place in places.items()}
        facts = {name: worker.facts for name, worker in workers.items()}
        require_pinned(facts["benchmarl"]["versions"], REQUIREMENTS.read_text(encoding="utf-8"))
        require_same(facts)
        yield workers


def in_turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Return the order of a round: every other one is reversed, so that none always follows the same one."""
    return names[::-1] if number % 2 else names


def measure(ask: Callable[[str, str], float], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Make all calls in turn; return the seconds of those after the warm-up, by piece and program."""
    seconds: dict[tuple[str, str], list[float]] = {(piece, name): [] for piece in PIECES for name in PROGRAMS}
    for number in range(-WARM_UP, rounds):
        for piece in PIECES:
            for program in in_turn(list(PROGRAMS), number):
                once = ask(program, piece)
                if number >= 0:
                    seconds[piece, program].append(once)
    return seconds


def rows(seconds: Mapping[tuple[str, str], Sequence[float]]) -> list[dict[str, Any]]:
    """Return a row for each piece and program: the median time, and its ratio to ours with as many critics."""
    return [
        {
            "piece": piece,
            "program": program,
            "ms": round(1e3 * median(each) / UPDATES.get(piece, 1), 3),
            **ratio(each, seconds[piece, "uavlab" + PROGRAMS[program][1]], "over_uavlab"),
        }
        for (piece, program), each in seconds.items()
    ]


def require_same(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError unless networks, observations, gradient steps and threads of both programs are equal."""
    ours, theirs = facts["uavlab"], facts["benchmarl"]
    for name in ("observations", "threads", "torch", "parameters", "steps"):
        own, other = (each["versions"][name] if name == "torch" else each[name] for each in (ours, theirs))
        if own != other:
            raise ConfigError(f"peers: {name}: got {other} of BenchMARL; expected those of uavlab, {own}.")


def require_pinned(versions: Mapping[str, str], pinned: str) -> None:
    """Raise ConfigError unless versions are those of ``package==version`` lines, but for local parts as ``+cpu``."""
    expected = dict(re.findall(r"^([\w-]+)==(\S+)$", pinned, re.MULTILINE))
    wrong = [f"{name} {versions[name]}" for name in expected if versions[name].partition("+")[0] != expected[name]]
    if wrong:
        raise ConfigError(f"peers: got {', '.join(wrong)}; expected those in {REQUIREMENTS}; run in {ROOT}: {INSTALL}.")


def record(rounds: int, python: Path) -> dict[str, Any]:
    """Measure all widths, and return the record but for its command."""
    torch.set_num_threads(1)
    machine, programs, table = describe("cpu"), {}, []  # described before the work, for its load
    for hidden in WIDTHS:
        with loaded({**SIZES, "hidden": hidden}, python) as workers:

            def ask(program: str, piece: str, workers: dict[str, Worker] = workers) -> float:
                name, suffix = PROGRAMS[program]
                learner, _, work = piece.partition(" ")
                return workers[name].ask(f"{learner}{suffix} {work}")

            own = [{"hidden": hidden, **row} for row in rows(measure(ask, rounds))]
            programs[str(hidden)] = {name: worker.facts for name, worker in workers.items()}
        table += own
        print(format_rows(own))
    return {
        "rounds": rounds,
        "machine": {**machine, "load_after": round(os.getloadavg()[0], 2)},
        "sizes": {**SIZES, "steps_per_iteration_of_masac": STEPS},
        "programs": programs,
        "rows": table,
    }


def run(
    program: str, about: str | None, words: Sequence[str] | None, options: Mapping[str, tuple[Any, str]], work: Callable
) -> None:
    """Read the command line, with options of their default and meaning, and do the work; an error ends it."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=program, description=about, formatter_class=raw)
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the other programs' environment (%(default)s)")
    parser.add_argument("--out", type=Path, help="also write the record to this file")
    for name, (default, meaning) in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{meaning} (%(default)s)")
    words = sys.argv[1:] if words is None else words
    given = parser.parse_args(words)
    if not given.python.exists():
        parser.error(f"peers: no Python at {given.python}; expected one with {REQUIREMENTS}; run in {ROOT}: {INSTALL}.")
    try:
        work(given, f"{program} {shlex.join(words)}")
    except (ConfigError, ResourceError) as error:
        parser.error(str(error))


def main(words: Sequence[str] | None = None) -> None:
    def work(given: argparse.Namespace, command: str) -> None:
        result = record(given.rounds, given.python)
        if given.out:
            write_json(given.out, {"command": command, **result})

    run("python -m tools.peers", __doc__, words, {"rounds": (20, "interleaved repetitions")}, work)


if __name__ == "__main__":
    main()
