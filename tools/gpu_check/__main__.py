"""Try every GPU path in three parts of nine minutes, the most valuable first; exit with 1 if anything failed.

    python -m tools.gpu_check 1                        on a CUDA machine, in the root of a checkout; then 2 and 3
    python -m tools.gpu_check                          all parts, one after the other
    python -m tools.gpu_check --only runs --only waits these groups alone, anew; the others keep their rows
    python -m tools.gpu_check 1 --device cpu           a dry run of this tool; its record is no GPU's

Each row is in the record as soon as it is known, so a call that is cut off loses the case it was in, and a second call
goes on with what is missing. This process imports neither torch nor uavlab: each group runs in processes of its own, so
that a crash or a hang ends one case, and the next process goes on behind it. In each part, groups that measure no time
run first, side by side, if there are cores and memory for that, those that compile among them; the others follow, one
after another and alone. Records lie in figures/records, of a dry run in build/gpu_check; compiled code lies in
build/gpu_check/compiled, for the calls that follow, where TORCHINDUCTOR_CACHE_DIR names no other folder.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from tools.gpu_check.groups import GROUPS
from tools.gpu_check.registry import COMMAND, PARTS, ROOT

Row = dict[str, Any]
MINUTES = 8.5  # of a part: it ends well within nine
RESTARTS = 8  # of one group's process
POLL = 0.05  # s
MEMORY = 4e9  # bytes of the device for each process
STOPPED = threading.Event()  # no group goes on
WORKER = (sys.executable, "-m", "tools.gpu_check.worker")


class Record:
    """A record in a file, which is written anew with each row; rows of an earlier check of the same code are in it.

    Attributes:
        groups: What is in it, by the names of the groups.
    """

    def __init__(self, path: Path, head: Row, keep: bool) -> None:
        """Begin with the groups of the file; without ``keep`` nothing is written."""
        self.path, self.head, self.keep, self.lock = path, head, keep, threading.Lock()
        self.groups = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.exists() else {}

    def begin(self, name: str) -> None:
        """Begin a group; its earlier rows stay if the code and torch are those of this machine."""
        facts = self.head["machine"]
        here = {key: facts.get(key) for key in ("commit", "dirty", "torch", "code")}
        before = self.groups.get(name, {})
        same = all(before.get(key) == here[key] and here[key] for key in ("code", "torch"))
        cases = before["cases"] if same else []
        self.groups[name] = {"about": GROUPS[name].about, **here, "cases": cases}

    def known(self, name: str) -> list[str]:
        """Return the names of the cases of a group that were tried."""
        return [row["name"] for row in self.groups[name]["cases"] if row["status"] != "not tried"]

    def add(self, name: str, row: Row) -> None:
        """Put a row in the place of an earlier one of its name, which stays if the new one was not tried; write."""
        with self.lock:
            cases = self.groups[name]["cases"]
            cases[:] = [each for each in cases if each["name"] != name or row["name"] == name]  # it stood for all
            place = next((i for i, each in enumerate(cases) if each["name"] == row["name"]), len(cases))
            if place == len(cases) or row["status"] != "not tried" or cases[place]["status"] == "not tried":
                cases[place : place + 1] = [row]
            self.write()

    def write(self) -> None:
        """Write the file, whole at any time."""
        if self.keep:
            groups = {name: self.groups[name] for name in GROUPS if name in self.groups}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({**self.head, "groups": groups}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)


def run_parts(
    name: str, arguments: Sequence[str], seconds: float, parts: int, say: Callable, known: Sequence[str] = ()
) -> list[Row]:
    """Run a group's cases but the known ones in so many processes side by side; return its rows in their order."""
    with ThreadPoolExecutor(parts) as pool:
        calls = [
            pool.submit(run_group, name, [*arguments, f"{part}/{parts}"], seconds, say=say, known=known)
            for part in range(parts)
        ]
    return [row for rows in zip_longest(*(call.result() for call in calls)) for row in rows if row]


def run_group(
    name: str,
    arguments: Sequence[str],
    seconds: float,
    command: Sequence[str] = WORKER,
    say: Callable = print,
    known: Sequence[str] = (),
) -> list[Row]:
    """Run a group in processes that the next one follows where a case crashes or exceeds its limit; return its rows.

    Args:
        name: The group.
        arguments: The device, the folder of records, and the part of the cases.
        seconds: Time limit of the group, after which the rest is ``not tried``.
        command: The program that runs cases; it gets the group, the arguments, a file of events, and as JSON the names
            of cases to leave out.
        say: Called with each row.
        known: Names of cases that are left out.
    """
    end, rows, names = time.monotonic() + seconds, list[Row](), [name]

    def left() -> list[str]:
        return [each for each in names if each not in {*known, *(row["name"] for row in rows)}]

    with tempfile.TemporaryDirectory(prefix="gpu_check") as place:
        for number in range(RESTARTS):
            events, log = Path(place, f"events{number}"), Path(place, f"log{number}")
            events.touch()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, name, *arguments, str(events), json.dumps([*known, *(row["name"] for row in rows)])],
                    stdout=output, stderr=output, cwd=ROOT, env=variables(), start_new_session=True,
                )  # fmt: skip
            try:
                names, own, rest = watch(process, events, end, names, say)
            finally:
                stop(process)  # what it started may outlive it
            rows += own
            if rest is None or (not left() and rest["status"] == "not tried"):
                break
            case = next(iter(left()), "end of the process")
            rows.append(
                {"name": case, "seconds": 0.0, "figure": "", **rest, "message": rest["message"] + last_line(log)}
            )
            say(rows[-1])
            if not left() or STOPPED.is_set() or time.monotonic() >= end:
                break
    rest = {"status": "not tried", "seconds": 0.0, "figure": "", "message": "no time left, or too many processes died"}
    for each in left() if names != [name] or not known else ():
        rows.append({"name": each, **rest})
        say(rows[-1])
    return rows


def watch(
    process: subprocess.Popen, events: Path, end: float, names: list[str], say: Callable
) -> tuple[list[str], list[Row], Row | None]:
    """Follow the events of a process until it ends, or end it.

    Returns:
        The names of all cases of the group, the rows of those that ended, and of the row of a case that was cut what is
        known; None if none was.
    """
    rows: list[Row] = []
    begun: Row | None = None
    since = time.monotonic()
    with events.open(encoding="utf-8") as file:
        while True:
            code, now = process.poll(), time.monotonic()  # before reading, so that the last events are read
            for line in whole_lines(file):
                event = json.loads(line)
                names = event.get("cases", names)
                if "begin" in event:
                    begun, since = event, now
                if "end" in event:
                    begun = None
                    rows.append(event["end"])
                    say(rows[-1])
            if code is not None:
                break
            late = begun is not None and now - since > begun["seconds"]
            if late or now > end or STOPPED.is_set():
                return names, rows, cut(begun, late, now - since)
            time.sleep(POLL)
    if begun is None and code == 0:
        return names, rows, None
    return names, rows, {"status": "failed", "message": f"the process ended with {code}"}


def whole_lines(file: TextIO) -> Iterator[str]:
    """Yield the lines that end; a line of which only a part is written is left to the next call."""
    place = file.tell()
    while (line := file.readline()).endswith("\n"):
        place = file.tell()
        yield line
    file.seek(place)


def cut(begun: Row | None, late: bool, seconds: float) -> Row:
    """Return the row of a case that was ended: a failure if it exceeded its own limit and is not one that may."""
    why = "no end after" if late else "cut off with its group after"
    status = "failed" if begun and late and not begun["slow"] else "not tried"
    return {"status": status, "seconds": round(seconds, 2), "message": f"{why} {seconds:.0f} s"}


def stop(process: subprocess.Popen) -> None:
    """End a process with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line that a process wrote, if any."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""


def variables() -> dict[str, str]:
    """Return the variables of the processes: this tree first, one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(ROOT / "build" / "gpu_check" / "compiled")}
    return {"TORCHINDUCTOR_COMPILE_THREADS": "2", **cache, **os.environ, **own}  # of each of many processes


def machine(device: str) -> tuple[Row, str, int, str]:
    """Describe the machine in a process of its own.

    Returns:
        Its facts, its name for files, how many processes it has room for, and the reason for no GPU.
    """
    script = (
        "import json, os, sys, torch\n"
        "dry = sys.argv[1] == 'cpu'\n"
        "if not (dry or torch.cuda.is_available()): sys.exit('torch.cuda.is_available() is False')\n"
        "from tools.gpu_check import groups\n"
        "memory = 1e15 if dry else torch.cuda.mem_get_info()[0]\n"
        "jobs = max(1, min(len(os.sched_getaffinity(0)) - 1, int(memory // float(sys.argv[2]))))\n"
        "print(json.dumps([*groups.machine(sys.argv[1]), jobs]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, device, str(MEMORY)], cwd=ROOT, env=variables(), capture_output=True, text=True
    )
    if done.returncode:
        return {"device": "unknown"}, "unknown", 1, (done.stderr.strip().splitlines() or ["no message"])[-1]
    return *json.loads(done.stdout.splitlines()[-1]), ""


def plan(names: Sequence[str], jobs: int) -> list[dict[str, int]]:
    """Return the steps of a check: the groups that run at a time, and in how many parts each.

    Groups that measure no time share the processes by their weights, or have all of them in turn if these are few.
    """
    untimed = [name for name in names if not GROUPS[name].timed]
    timed = [{name: 1} for name in names if GROUPS[name].timed]
    if jobs < len(untimed):
        return [*({name: jobs} for name in untimed), *timed]
    parts = dict.fromkeys(untimed, 1)
    while untimed and sum(parts.values()) < jobs:
        parts[max(untimed, key=lambda name: GROUPS[name].weight / parts[name])] += 1
    return [*([parts] if parts else []), *timed]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts or groups, and write each row at once; return 1 if a case failed or there is no GPU, otherwise 0."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", type=int, choices=PARTS, help="default: all, one after the other")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of this tool")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="a group, anew; repeatable")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of a part, or of the groups of --only")
    parser.add_argument("--jobs", type=int, help="processes side by side; 1: every group alone")
    parser.add_argument("--out", type=Path, help="folder of the records")
    given = parser.parse_args(arguments)
    began, dry = time.monotonic(), given.device == "cpu"
    STOPPED.clear()
    folder = (given.out or ROOT / ("build/gpu_check" if dry else "figures/records")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    facts, slug, room, reason = machine(given.device)
    head = {"command": COMMAND, "dry_run": dry, "machine": facts}
    record = Record(folder / f"gpu_check_{slug}.json", head, keep=not reason)
    print(f"{facts['device']}{', a dry run: no GPU is tried' * dry}{f', {reason}' * bool(reason)}", flush=True)
    steps: dict[str, list[str]] = {"": ["environment"]} if reason else {"": given.only or []}
    if not given.only and not reason:
        wanted = [given.part] if given.part else list(PARTS)
        steps = {
            f"part {part}: {PARTS[part]}": [name for name in GROUPS if GROUPS[name].part == part] for part in wanted
        }
    counts: Counter[str] = Counter()
    print(*filter(None, steps), sep="\n", flush=True)
    for number, names in enumerate(steps.values()):
        end = (time.monotonic() if number else began) + 60 * given.minutes
        counts += run_steps(plan(names, given.jobs or room), [given.device, str(folder)], end, record, not given.only)
    print(f"\n{', '.join(f'{count} {status}' for status, count in counts.most_common())}; ", end="")
    print(f"no record: {reason}" if reason else f"record: {record.path}")
    return int(bool(reason) or counts["failed"] > 0)


def run_steps(
    steps: Sequence[dict[str, int]], arguments: Sequence[str], end: float, record: Record, resume: bool
) -> Counter[str]:
    """Run the steps of a part, each with its share of the time that is left; return how many cases ended in which way.

    With ``resume``, cases that the record has are left out, but not those of groups that are tried ``anew``.
    """
    left, counts = [name for step in steps for name in step], Counter[str]()
    for step in steps:
        share = sum(GROUPS[name].weight for name in step) / sum(GROUPS[name].weight for name in left)
        seconds = max(0.0, end - time.monotonic()) * share
        left = [name for name in left if name not in step]
        for name in step:
            record.begin(name)
        known = {name: record.known(name) if resume and not GROUPS[name].anew else [] for name in step}
        for name, rows in run_step(step, arguments, seconds, known, record.add):
            counts.update(row["status"] for row in rows)
            record.write()
            if known[name]:
                print(f"== {name}: {len(known[name])} cases were tried by an earlier call", flush=True)
    return counts


def run_step(
    step: dict[str, int], arguments: Sequence[str], seconds: float, known: Mapping[str, Sequence[str]], add: Callable
) -> Iterator[tuple[str, list[Row]]]:
    """Run groups side by side, and add each row; yield the name and the rows of each group when it ends."""

    def say(name: str, row: Row) -> None:
        add(name, row)
        print_row(name, row)

    with ThreadPoolExecutor(len(step)) as pool:
        calls = {}
        try:
            for name, parts in step.items():
                print(f"== {name}: {GROUPS[name].about}", flush=True)
                call = pool.submit(run_parts, name, arguments, seconds, parts, partial(say, name), known[name])
                calls[call] = name
            for call in as_completed(calls):
                yield calls[call], call.result()
        except BaseException:
            STOPPED.set()  # Ctrl-C reaches this thread alone
            raise


def print_row(name: str, row: Row) -> None:
    """Print a row of a group as a line."""
    print(
        f"{row['status']:9} {name}: {row['name']}: {row['figure'] or row['message']} [{row['seconds']:.1f} s]\n",
        end="",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
