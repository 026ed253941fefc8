"""Try every GPU path within ten minutes, write a record, and exit with 1 if anything failed: what to run first.

    python -m tools.gpu_check                          on a CUDA machine, in the root of a checkout
    python -m tools.gpu_check --only runs --only waits these groups alone; the others keep their rows in the record
    python -m tools.gpu_check --device cpu             a dry run of this tool; its record is no GPU's

This process imports neither torch nor uavlab: each group runs in processes of its own, so that a crash or a hang ends
one case, and the next process goes on behind it. Groups that measure no time run first, side by side and in parts, if
there are cores and memory for that; the others follow, one after another and alone. Records lie in figures/records, of
a dry run in build/gpu_check.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from tools.gpu_check.groups import COMMAND, GROUPS, ROOT

Row = dict[str, Any]
MINUTES = 9.5
RESTARTS = 8  # of one group's process
POLL = 0.05  # s
MEMORY = 4e9  # bytes of the device for each process
STOPPED = threading.Event()  # no group goes on
WORKER = (sys.executable, "-m", "tools.gpu_check.worker")


def run_parts(name: str, arguments: Sequence[str], seconds: float, parts: int, say: Callable) -> list[Row]:
    """Run a group's cases in so many parts side by side; return its rows in the order of its cases."""
    with ThreadPoolExecutor(parts) as pool:
        calls = [
            pool.submit(run_group, name, [*arguments, f"{part}/{parts}"], seconds, say=say) for part in range(parts)
        ]
    return [row for rows in zip_longest(*(call.result() for call in calls)) for row in rows if row]


def run_group(
    name: str, arguments: Sequence[str], seconds: float, command: Sequence[str] = WORKER, say: Callable = print
) -> list[Row]:
    """Run a group in processes that the next one follows where a case crashes or exceeds its limit; return its rows.

    Args:
        name: The group.
        arguments: The device, the folder of records, and the part of the cases.
        seconds: Time limit of the group, after which the rest is ``not tried``.
        command: The program that runs cases; it gets the group, the arguments, a file of events and a number to skip.
        say: Called with each row.
    """
    end, rows, names = time.monotonic() + seconds, list[Row](), [name]
    with tempfile.TemporaryDirectory(prefix="gpu_check") as place:
        for number in range(RESTARTS):
            events, log = Path(place, f"events{number}"), Path(place, f"log{number}")
            events.touch()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, name, *arguments, str(events), str(len(rows))],
                    stdout=output, stderr=output, cwd=ROOT, env=variables(), start_new_session=True,
                )  # fmt: skip
            try:
                names, own, rest = watch(process, events, end, names, len(rows), say)
            finally:
                stop(process)  # what it started may outlive it
            rows += own
            if rest is None:
                break
            case = names[len(rows)] if len(rows) < len(names) else "end of the process"
            rows.append(
                {"name": case, "seconds": 0.0, "figure": "", **rest, "message": rest["message"] + last_line(log)}
            )
            say(rows[-1])
            if len(rows) >= len(names) or STOPPED.is_set() or time.monotonic() >= end:
                break
    left = {"status": "not tried", "seconds": 0.0, "figure": "", "message": "no time left, or too many processes died"}
    for each in names[len(rows) :]:
        rows.append({"name": each, **left})
        say(rows[-1])
    return rows


def watch(
    process: subprocess.Popen, events: Path, end: float, names: list[str], skip: int, say: Callable
) -> tuple[list[str], list[Row], Row | None]:
    """Follow the events of a process until it ends, or end it.

    Returns:
        The names of all cases of the group, the rows of those after the first ``skip``, and of the row of a case that
        was cut what is known; None if none was.
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
                return names, rows, cut(begun, late, now - since) if begun or skip + len(rows) < len(names) else None
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
    return {"TORCHINDUCTOR_COMPILE_THREADS": "2", **os.environ, **own}  # of each of many processes


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
    """Run the groups, and write the record after each; return 1 if a case failed or there is no GPU, otherwise 0."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of this tool")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="a group; repeatable")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all groups together")
    parser.add_argument("--jobs", type=int, help="processes side by side; 1: every group alone")
    parser.add_argument("--out", type=Path, help="folder of the records")
    given = parser.parse_args(arguments)
    end, dry = time.monotonic() + 60 * given.minutes, given.device == "cpu"
    STOPPED.clear()
    folder = (given.out or ROOT / ("build/gpu_check" if dry else "figures/records")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    facts, slug, room, reason = machine(given.device)
    path = folder / f"gpu_check_{slug}.json"
    groups = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.exists() else {}
    record = {"command": COMMAND, "dry_run": dry, "machine": facts, "groups": groups}
    print(f"{facts['device']}{', a dry run: no GPU is tried' * dry}{f', {reason}' * bool(reason)}", flush=True)
    left = ["environment"] if reason else [name for name in GROUPS if name in (given.only or GROUPS)]
    counts: Counter[str] = Counter()
    commit = {key: facts.get(key) for key in ("commit", "dirty", "torch", "code")}
    for step in plan(left, given.jobs or room):
        share = sum(GROUPS[name].weight for name in step) / sum(GROUPS[name].weight for name in left)
        seconds = max(0.0, end - time.monotonic()) * share
        left = [name for name in left if name not in step]
        for name, rows in run_step(step, [given.device, str(folder)], seconds):
            counts.update(row["status"] for row in rows)
            groups[name] = {
                "about": GROUPS[name].about,
                **commit,
                "cases": add_known(rows, groups.get(name, {}), commit),
            }
            record["groups"] = {each: groups[each] for each in GROUPS if each in groups}
            if not reason:
                path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{', '.join(f'{count} {status}' for status, count in counts.most_common())}; ", end="")
    print(f"no record: {reason}" if reason else f"record: {path}")
    return int(bool(reason) or counts["failed"] > 0)


def add_known(rows: list[Row], before: Row, here: Row) -> list[Row]:
    """Return rows, those not tried as they were in an earlier check of the same code and torch."""
    if any(before.get(key) != here[key] or not here[key] for key in ("code", "torch")):
        return rows
    known = {row["name"]: row for row in before["cases"]}
    return [known.get(row["name"], row) if row["status"] == "not tried" else row for row in rows]


def run_step(step: dict[str, int], arguments: Sequence[str], seconds: float) -> Iterator[tuple[str, list[Row]]]:
    """Run groups side by side; yield the name and the rows of each when it ends."""
    with ThreadPoolExecutor(len(step)) as pool:
        calls = {}
        try:
            for name, parts in step.items():
                print(f"== {name}: {GROUPS[name].about}", flush=True)
                say = partial(print_row, name)
                calls[pool.submit(run_parts, name, arguments, seconds, parts, say)] = name
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
