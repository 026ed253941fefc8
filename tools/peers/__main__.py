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
from contextlib import suppress
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

SIZES: Mapping[str, Any] = {
    "agents": 3,
    "horizon": 25,
    "worlds": 64,
    "lr": 3e-4,
    "clip": 0.5,
    "fused": True,
    "mappo": {"rollout_steps": 64, "epochs": 5, "minibatches": 4},
    "masac": {"batch": 256, "capacity": 100_000, "learning_starts": 2_048},
}
WIDTHS = (128, 256)
"""Widths of the hidden layers that are compared: in wider ones more of the time is matrix products, equal in both."""

PIECES = ("mappo update", "mappo iteration", "masac update", "masac iteration")
UPDATES = {"masac update": STEPS}
"""Updates of a call where they are several; an iteration counts as a whole."""

NAMES = {"uavlab": "uavlab", "benchmarl": "BenchMARL"}
PROGRAMS = {  # the worker of each, and what its calls add to the name of the learner
    f"{name}{suffix}": (worker, suffix) for suffix in ("", ONE_CRITIC) for worker, name in NAMES.items()
}
DIFFERENCES = (
    "Simulators: VMAS simple_spread moves agents by forces, with contacts; spread by a lag, with walls. Iterations "
    "hold the simulator, updates do not.",
    "One critic for the team, and one pair of MASAC, is BenchMARL's default and `critic=shared` of uavlab. The default "
    "of uavlab is a critic for each agent: `spread` pays each agent its own collisions, so their values differ.",
    "MAPPO: BenchMARL estimates the entropy by a sample, and computes figures of the effective sample size; it "
    "normalises neither advantages nor returns. uavlab has the entropy in closed form, and normalises both.",
    "MASAC: BenchMARL computes all losses before its first step, and in the loss of actors a critic's gradient reaches "
    "the actions of all agents; uavlab updates critics first, and the gradient of an agent's value reaches its own "
    "action alone. With one pair both evaluate it once for all agents.",
    "Standard deviations: a biased softplus in BenchMARL; a clamp (MASAC) or tanh (MAPPO) in uavlab.",
    "uavlab checks in iterations that numbers are finite. BenchMARL's figures for logs, which have no switch, are left "
    "out here.",
    "MASAC takes 16 steps of all worlds, then 16 updates (`interval=16` of uavlab, whose default is 1); uavlab's "
    "`target_kl` is 0, so that no step of MAPPO is undone.",
    "Adam is the fused one in both (`adam_extra_kwargs` of BenchMARL); neither compiles.",
)


class Worker:
    """A process that measures one program."""

    def __init__(self, name: str, python: Path, path: str, sizes: Mapping[str, Any]) -> None:
        """Start the process and wait until it has built its calls; ``path`` is where it also finds packages.

        Raises:
            ResourceError: It ended.
        """
        self.name, self.log = name, tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process runs
        self.process = subprocess.Popen(
            [str(python), "-m", f"tools.peers.{name}_worker", json.dumps(sizes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.facts: dict[str, Any] = self._read()

    def ask(self, call: str) -> float:
        """Return the seconds of a call.

        Raises:
            ResourceError: The process ended.
        """
        with suppress(BrokenPipeError):  # it ended: there is nothing to read
            print(json.dumps(call), file=self.process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process."""
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


def in_turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Return the order of a round: every other one is reversed, so that none always follows the same one."""
    return names[::-1] if number % 2 else names


def turns(rounds: int) -> Iterator[tuple[int, str, str]]:
    """List round, piece and program of every call; rounds below 0 warm up."""
    for number in range(-WARM_UP, rounds):
        for piece in PIECES:
            for program in in_turn(list(PROGRAMS), number):
                yield number, piece, program


def measure(ask: Callable[[str, str], float], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Make all calls; return the seconds of those that count, by piece and program."""
    seconds: dict[tuple[str, str], list[float]] = {(piece, name): [] for piece in PIECES for name in PROGRAMS}
    for number, piece, program in turns(rounds):
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
    """Compare networks, observations, gradient steps and threads of both programs.

    Raises:
        ConfigError: One of them differs, so that times would compare different work.
    """
    ours, theirs = facts["uavlab"], facts["benchmarl"]
    for name in ("observations", "threads", "torch", "parameters", "steps"):
        own, other = (each["versions"][name] if name == "torch" else each[name] for each in (ours, theirs))
        if own != other:
            raise ConfigError(f"peers: {name}: got {other} of BenchMARL; expected those of uavlab, {own}.")


def require_pinned(versions: Mapping[str, str], pinned: str) -> None:
    """Compare versions with the lines ``package==version`` of ``pinned``, apart from a local part such as ``+cpu``.

    Raises:
        ConfigError: Another version is installed.
    """
    expected = dict(re.findall(r"^([\w-]+)==(\S+)$", pinned, re.MULTILINE))
    wrong = [f"{name} {versions[name]}" for name in expected if versions[name].partition("+")[0] != expected[name]]
    if wrong:
        raise ConfigError(f"peers: got {', '.join(wrong)}; expected the versions in {REQUIREMENTS}; {how_to_install()}")


def require_environment(python: Path) -> None:
    """Raise ConfigError if the other programs' Python is missing."""
    if not python.exists():
        raise ConfigError(
            f"peers: no Python at {python}; expected an environment with {REQUIREMENTS}; {how_to_install()}"
        )


def how_to_install() -> str:
    """Return the next step for a reader without the other programs' environment."""
    folder = PYTHON.parents[1].relative_to(ROOT)
    commands = (f"python3.11 -m venv {folder}", f"{folder}/bin/pip install -r {REQUIREMENTS.relative_to(ROOT)}")
    return f"run in {ROOT}: {' && '.join(commands)}; the docstring of tools/peers/__main__.py has more."


def compare(sizes: Mapping[str, Any], rounds: int, python: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure networks of one width in two new processes; return the facts of both, and the rows.

    Raises:
        ConfigError: The packages are of other versions than pinned, or the work is not the same.
        ResourceError: A process failed.
    """
    places = {"uavlab": (Path(sys.executable), str(ROOT)), "benchmarl": (python, "")}
    workers: dict[str, Worker] = {}
    try:
        for name, place in places.items():
            workers[name] = Worker(name, *place, sizes)
        facts = {name: worker.facts for name, worker in workers.items()}
        require_pinned(facts["benchmarl"]["versions"], REQUIREMENTS.read_text(encoding="utf-8"))
        require_same(facts)

        def ask(program: str, piece: str) -> float:
            name, suffix = PROGRAMS[program]
            learner, _, work = piece.partition(" ")
            return workers[name].ask(f"{learner}{suffix} {work}")

        return facts, [{"hidden": sizes["hidden"], **row} for row in rows(measure(ask, rounds))]
    finally:
        for worker in workers.values():
            worker.close()


def record(rounds: int, python: Path, say: Callable[[str], Any] = print) -> dict[str, Any]:
    """Measure all widths, and return the record but for its command.

    Raises:
        ConfigError: The other programs' environment is missing or of other versions, or the work is not the same.
        ResourceError: A process failed.
    """
    require_environment(python)
    torch.set_num_threads(1)
    machine, programs, table = describe("cpu"), {}, []  # described before the work, for its load
    for hidden in WIDTHS:
        facts, own = compare({**SIZES, "hidden": hidden}, rounds, python)
        programs[str(hidden)] = facts
        table += own
        say(format_rows(own))
    return {
        "rounds": rounds,
        "machine": {**machine, "load_after": round(os.getloadavg()[0], 2)},
        "sizes": {**SIZES, "steps_per_iteration_of_masac": STEPS},
        "programs": programs,
        "differences": list(DIFFERENCES),
        "rows": table,
    }


def command_line(program: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a comparison, with the options that all have."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=program, description=about, formatter_class=raw)
    parser.add_argument("--python", type=Path, default=PYTHON, help="of the other programs' environment (%(default)s)")
    parser.add_argument("--out", type=Path, help="also write the record to this file")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line asks; return the exit code."""
    parser = command_line("python -m tools.peers", __doc__)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved repetitions (%(default)s)")
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    try:
        result = record(options.rounds, options.python)
    except (ConfigError, ResourceError) as error:
        parser.error(str(error))
    if options.out:
        write_json(options.out, {"command": f"python -m tools.peers {shlex.join(words)}", **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
