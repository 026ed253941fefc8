"""Headless runs are disturbed, and their reports are compared with what their cells wrote."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.support.tiny_notebook import PARAMETERS, write_notebook

MARK = "UAVLAB_FAULT"  # a variable that a runner's kernel inherits, whoever its parent is by then
RUNNER = (sys.executable, "-m", "uavlab", "notebook")
Process = subprocess.Popen[bytes]
SLEEP = "import time; time.sleep(60)"
DEAF = "sum(range(10**12))"  # one C call, which lets no other thread run
DIE = "import os; os.kill(os.getpid(), 9)"
NOTHING = "pass"


@dataclass(frozen=True)
class Fault:
    """A disturbance of a run, and the ends that the run may come to."""

    name: str
    codes: set[int]
    cells: tuple[str, ...] = (NOTHING, NOTHING, NOTHING)
    options: tuple[str, ...] = ()
    signals: tuple[int, ...] = ()
    when: str | float = "2"  # the cell that must have begun before the signals, or seconds from the start
    stderr: str = ""  # a pattern
    damage: Callable[[Path], object] = lambda notebook: None
    out: str = "out.ipynb"
    written: bool = True  # whether there must be an executed notebook, or must not
    wrap: tuple[str, ...] = ()  # a command that starts the runner


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str
    folder: Path
    orphans: int


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes of one run, recognised by their environment."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def prepare(folder: Path, fault: Fault) -> None:
    """Write the notebook; each of its cells notes that it began and that it came to its end."""
    folder.mkdir()
    cells = [
        f"_ = open('began', 'a').write('{number}')\n{cell}\n_ = open('ended', 'a').write('{number}')"
        for number, cell in enumerate(fault.cells, 1)
    ]
    fault.damage(write_notebook(folder, PARAMETERS, *cells))


def start(folder: Path, fault: Fault, runner: tuple[str, ...] = RUNNER, log: str = "log") -> Process:
    out = str(folder / fault.out)
    arguments = (out, "--cwd", str(folder)) if "papermill" in runner else ("--out", out, "--json", *fault.options)
    with (folder / f"{log}.out").open("wb") as stdout, (folder / f"{log}.err").open("wb") as stderr:
        return subprocess.Popen(
            [*fault.wrap, *runner, str(folder / "tiny.ipynb"), *arguments],
            stdout=stdout, stderr=stderr, start_new_session=True, env={**os.environ, MARK: str(folder)},
        )  # fmt: skip


def disturb(fault: Fault, folder: Path, process: Process) -> None:
    """Send the signals at their time, unless the run has ended by then."""
    began, until = folder / "began", time.monotonic() + (fault.when if isinstance(fault.when, float) else 60)
    while process.poll() is None and time.monotonic() < until:
        if isinstance(fault.when, str) and began.exists() and fault.when in began.read_text():
            break
        time.sleep(0.02)
    for number in fault.signals:
        process.send_signal(number)
        time.sleep(0.2)


def conclude(folder: Path, process: Process, log: str = "log") -> Outcome:
    """Wait for the end of the runner and, for 10 s, of its kernel."""
    code = process.wait(120)
    until = time.monotonic() + 10
    while (left := marked(str(folder))) and time.monotonic() < until:
        time.sleep(0.1)
    for orphan in left:
        orphan.kill()
    texts = [(folder / f"{log}.{end}").read_text() for end in ("out", "err")]
    return Outcome(code, texts[0], texts[1], folder, len(left))


def run(folder: Path, fault: Fault, runner: tuple[str, ...] = RUNNER) -> list[str]:
    """Run one fault; return the complaints about it."""
    prepare(folder, fault)
    process = start(folder, fault, runner)
    if fault.signals:
        disturb(fault, folder, process)
    return [f"{fault.name}: {text}" for text in complaints(fault, conclude(folder, process))]


def complaints(fault: Fault, outcome: Outcome) -> Iterator[str]:
    """Yield every false statement of a run, and everything that it left behind."""
    reported = [json.loads(line)["exit_code"] for line in outcome.stdout.splitlines() if line.startswith("{")]
    unborn = outcome.code == 1 and "init_import_site" in outcome.stderr  # Python itself had not begun
    if outcome.code not in fault.codes and not unborn:
        yield f"exit code {outcome.code}, expected one of {fault.codes}: {outcome.stderr[-300:]}"
    if not re.search(fault.stderr, outcome.stderr):
        yield f"stderr {outcome.stderr[-300:]!r} without {fault.stderr!r}"
    if reported and reported != [outcome.code] and isinstance(fault.when, str):
        yield f"the JSON line says {reported}, the exit code is {outcome.code}"
    if outcome.orphans:
        yield f"{outcome.orphans} processes outlived the runner"
    if outcome.code >= 0 and len(fault.signals) < 2 and list(outcome.folder.glob(".out.ipynb.*")):
        yield "a part is left behind"
    ended = outcome.folder / "ended"
    ran = ended.exists() and ended.read_text() == "".join(str(number + 1) for number in range(len(fault.cells)))
    if not ran and (outcome.code == 0 or 0 in reported):
        yield "false complete, by exit code or JSON line"
    out = outcome.folder / fault.out
    if out.exists() != fault.written:
        yield f"an executed notebook is {'missing' if fault.written else 'there'}"
    if out.exists():
        yield from untruths(out, ran)


def untruths(out: Path, ran: bool) -> Iterator[str]:
    nb = nbformat.read(out, as_version=4)
    nbformat.validate(nb)
    if "papermill" not in nb.metadata:
        return  # the one that lay there before
    statuses = [cell.metadata.papermill.status for cell in nb.cells if "papermill" in cell.metadata]
    if not ran and (nb.metadata.papermill.exception is False or set(statuses) == {"completed"}):
        yield f"false complete, by the notebook: {statuses}"


def at(cell: int, source: str) -> tuple[str, ...]:
    """Return three cells, of which number ``cell`` runs this source."""
    return tuple(source if number == cell else NOTHING for number in (1, 2, 3))


def truncate(notebook: Path) -> None:
    notebook.write_bytes(notebook.read_bytes()[:-40])


def ran_before(notebook: Path) -> None:
    shutil.copy(notebook, notebook.with_name("out.ipynb"))


INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
REFUSED = {"written": False, "cells": (NOTHING,)}
FULL = ("bash", "-c", 'ulimit -f 64; exec "$@"', "bash")  # no file may grow beyond 64 KiB
STEPS = "import time\nfor k in range(30): print('step', k, flush=True)\ntime.sleep(60)"
SHORT = [
    Fault("the kernel is killed in the last cell", {1}, at(3, DIE), stderr="the kernel died in cell 4 of 4"),
    Fault("os._exit(0) in the first cell", {1}, at(1, "import os; os._exit(0)"), stderr="died in cell 2 of 4"),
    Fault("sys.exit(0)", {1}, at(2, "import sys; sys.exit(0)"), stderr="cell 3 of 4 failed: SystemExit: 0"),
    Fault(
        "no end",
        {1},
        at(2, STEPS),
        ("--timeout", "10"),
        stderr="no end within 10 s in cell 3 of 4",
    ),
    Fault("50 MB of output", {0}, at(2, "print('x' * 50_000_000)")),
    Fault("SIGTERM", {143}, at(2, SLEEP), signals=(TERM,), stderr="interrupted in cell 3 of 4"),
    Fault("SIGINT", {130}, at(1, SLEEP), signals=(INT,), when="1", stderr="interrupted in cell 2 of 4"),
    Fault("SIGINT twice", {130}, at(2, DEAF), signals=(INT, INT), written=False),
    Fault("kill -9 within one C call", {-9}, at(2, DEAF), signals=(KILL,), written=False),
    Fault("a mistyped parameter", {2}, options=("-p", "seed", "x"), stderr="seed = 'x', expected int", **REFUSED),
    Fault("code for a name", {2}, options=("-p", "a;b", "1"), stderr="'a;b' is no Python identifier", **REFUSED),
    Fault("half a notebook", {3}, damage=truncate, stderr=r"tiny\.ipynb is not a readable notebook", **REFUSED),
    Fault("a file for a folder", {5}, out="tiny.ipynb/out.ipynb", stderr="cannot be run to", **REFUSED),
    Fault("a full disk", {5}, at(2, "print('x' * 100_000)"), wrap=FULL, stderr="free some space", written=False),
]
FATAL = [
    ("killed", {1}, DIE),
    ("os._exit(0)", {1}, "import os; os._exit(0)"),
    ("sys.exit(0)", {1}, "import sys; sys.exit(0)"),
    ("exit()", {0, 1}, "exit()"),  # IPython ends the kernel a moment later, when all may have run
    ("an exception", {1}, "1 / 0"),
    ("no end", {1}, "while True: pass"),
    ("no end within one C call", {1}, DEAF),
    ("a flood", {1}, "while True: print('x' * 1000)"),
    ("input()", {1}, "input()"),
]
LONG = [
    *(
        Fault(f"{name} in {k}", codes, at(k, source), ("--timeout", "4"))
        for name, codes, source in FATAL
        for k in (1, 2, 3)
    ),
    Fault("SIGTERM within one C call", {143}, at(2, DEAF), signals=(TERM,)),
    Fault("kill -9", {-9}, at(2, SLEEP), signals=(KILL,), written=False),
    Fault("an unknown parameter", {2}, options=("-p", "sede", "1"), stderr="did you mean 'seed'", **REFUSED),
    Fault("no JSON", {3}, damage=lambda notebook: notebook.write_text("print(1)"), **REFUSED),
    Fault("no disk at all", {5}, out="/proc/out/out.ipynb", stderr="cannot be run to /proc/out", **REFUSED),
]


def at_random(seed: int) -> Fault:
    """Draw a signal and its moment, from before Python has started to after the end."""
    draw = random.Random(seed)
    number, moment = draw.choice((INT, TERM, KILL)), draw.uniform(0.0, 5.0)
    nap = "import time; time.sleep(0.5)"
    name, codes = f"signal {int(number)} after {moment:.2f} s", {0, 128 + number, -number}
    return Fault(name, codes, (nap,) * 3, signals=(number,), when=moment, damage=ran_before)


def run_all(folder: Path, faults: Sequence[Fault]) -> list[str]:
    """Run faults two at a time."""
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(run, [folder / str(number) for number in range(len(faults))], faults)
        return [complaint for result in results for complaint in result]


def test_no_fault_passes_for_a_complete_run(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    assert run_all(tmp_path, SHORT) == []
    proof("faults of headless notebooks", f"{len(SHORT)} faults, 0 false completes, 0 orphans")


@pytest.mark.soak
def test_no_fault_at_any_moment_passes_for_a_complete_run(tmp_path: Path, proof: Callable[[str, str], None]) -> None:
    faults = LONG + [at_random(seed) for seed in range(40)]
    assert run_all(tmp_path, faults) == []
    proof("faults of headless notebooks, at length", f"{len(faults)} faults, 0 false completes, 0 orphans")


def mutant(change: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"{change}\nfrom uavlab.cli import main\nmain()", "notebook"


@pytest.mark.parametrize(
    ("runner", "fault", "complaint"),
    [
        (
            (sys.executable, "-m", "papermill"),
            Fault("sys.exit(0)", {1}, at(2, "import sys; sys.exit(0)")),
            "false complete, by exit code",
        ),
        (
            mutant("from uavlab_lab.headless import runner\nold = runner._conclude\n"
                   "runner._conclude = lambda part, path, out, code, text: old(part, path, out, 0, '')\n"
                   "runner._error = lambda cell: None"),
            Fault("killed", {1}, at(3, DIE)),
            "false complete, by exit code",
        ),
        (
            mutant("from uavlab_lab.headless import runner\nrunner.WITH_PARENT = []"),
            Fault("kill -9", {-9}, at(2, DEAF), signals=(KILL,), written=False),
            "1 processes outlived the runner",
        ),
    ],
)  # fmt: skip
def test_a_worse_runner_is_caught(tmp_path: Path, runner: tuple[str, ...], fault: Fault, complaint: str) -> None:
    assert complaint in " ".join(run(tmp_path / "it", fault, runner))
