"""Try every GPU path within ten minutes, write a record, and exit with 1 if anything failed: what to run first.

    python -m tools.gpu_check                          on a CUDA machine, in the root of a checkout
    python -m tools.gpu_check --only runs --only waits these groups alone; the others keep their rows in the record
    python -m tools.gpu_check --device cpu             a dry run of this tool; its record is no GPU's

This process imports neither torch nor uavlab: each group runs in processes of its own, so that a crash or a hang ends
one case, and the next process goes on behind it. Records lie in figures/records, of a dry run in build/gpu_check.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from tools.gpu_check.groups import COMMAND, GROUPS, ROOT

Row = dict[str, Any]
MINUTES = 9.5
RESTARTS = 8  # of one group's process
POLL = 0.05  # s
WORKER = (sys.executable, "-m", "tools.gpu_check.worker")


def run_group(
    name: str, arguments: Sequence[str], seconds: float, command: Sequence[str] = WORKER, say: Callable = print
) -> list[Row]:
    """Run a group in processes that the next one follows where a case crashes or exceeds its limit; return its rows.

    Args:
        name: The group.
        arguments: The device and the folder of records.
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
            if len(rows) >= len(names) or time.monotonic() >= end:
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
            if late or now > end:
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
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}


def machine(device: str) -> tuple[Row, str, str]:
    """Describe the machine in a process of its own; return its facts, its name for files, and the reason for no GPU."""
    script = (
        "import json, sys, torch\n"
        "cuda = sys.argv[1] == 'cpu' or torch.cuda.is_available()\n"
        "if not cuda: sys.exit('torch.cuda.is_available() is False')\n"
        "from tools.gpu_check import groups\n"
        "print(json.dumps(groups.machine(sys.argv[1])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, device], cwd=ROOT, env=variables(), capture_output=True, text=True
    )
    if done.returncode:
        return {"device": "unknown"}, "unknown", (done.stderr.strip().splitlines() or ["no message"])[-1]
    return *json.loads(done.stdout.splitlines()[-1]), ""


def text(row: Row) -> str:
    """Format a row as a line."""
    return f"{row['status']:9} {row['name']}: {row['figure'] or row['message']} [{row['seconds']:.1f} s]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the groups, and write the record after each; return 1 if a case failed or there is no GPU, otherwise 0."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of this tool")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="a group; repeatable")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all groups together")
    parser.add_argument("--out", type=Path, help="folder of the records")
    given = parser.parse_args(arguments)
    end, dry = time.monotonic() + 60 * given.minutes, given.device == "cpu"
    folder = (given.out or ROOT / ("build/gpu_check" if dry else "figures/records")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    facts, slug, reason = machine(given.device)
    path = folder / f"gpu_check_{slug}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.exists() else {}
    record = {"command": COMMAND, "dry_run": dry, "machine": facts, "groups": before}
    print(f"{facts['device']}{', a dry run: no GPU is tried' * dry}{f', {reason}' * bool(reason)}", flush=True)
    groups = [name for name in GROUPS if name in (given.only or GROUPS)]
    counts: Counter[str] = Counter()
    groups = ["environment"] if reason else groups
    for number, name in enumerate(groups):
        share = GROUPS[name].weight / sum(GROUPS[each].weight for each in groups[number:])
        print(f"\n== {name}: {GROUPS[name].about}", flush=True)
        rows = run_group(
            name, [given.device, str(folder)], max(0.0, end - time.monotonic()) * share,
            say=lambda row: print(text(row), flush=True),
        )  # fmt: skip
        counts.update(row["status"] for row in rows)
        commit = {key: facts.get(key) for key in ("commit", "dirty", "torch", "code")}
        record["groups"][name] = {"about": GROUPS[name].about, **commit, "cases": rows}
        if not reason:
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"\n{', '.join(f'{count} {status}' for status, count in counts.most_common())}; ", end="")
    print(f"no record: {reason}" if reason else f"record: {path}")
    return int(bool(reason) or counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
