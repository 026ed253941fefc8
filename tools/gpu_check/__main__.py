"""Try every GPU path in three parts of nine minutes, the most valuable first; exit with 1 if anything failed.

    python -m tools.gpu_check 1                        on a CUDA machine, in the root of a checkout; then 2 and 3
    python -m tools.gpu_check                          all parts, one after the other
    python -m tools.gpu_check --only runs --only waits these groups alone, anew; the others keep their rows
    python -m tools.gpu_check 1 --device cpu           a dry run of this tool; its record is no GPU's

Each row is in the record as soon as it is known, so a call that is cut off loses the case it was in, and a second call
goes on with what is missing. This process imports neither torch nor uavlab: each group runs in processes of its own, so
that a crash or a hang ends one case, and the next process goes on behind it. Groups run one after the other: those that
measure no time first, their cases side by side, if there are cores and memory for that; then the others, each alone.
Records lie in figures/records, of a dry run in build/gpu_check; compiled code lies in build/gpu_check/compiled, for the
calls that follow, where TORCHINDUCTOR_CACHE_DIR names no other folder.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tools.gpu_check import worker
from tools.gpu_check.groups import GROUPS
from tools.gpu_check.worker import COMMAND, PARTS, ROOT

Row = dict[str, Any]
MINUTES = 8.5  # of a part: it ends well within nine
RESTARTS = 8  # of one process
POLL = 0.5  # s
CONTEXT = multiprocessing.get_context("spawn")


class Record:
    """A record in a file, which is written anew with each row; rows of an earlier check of the same code are in it."""

    def __init__(self, path: Path, head: Row, keep: bool) -> None:
        """Begin with the groups of the file; without ``keep`` nothing is written."""
        self.path, self.head, self.keep, self.counts = path, head, keep, Counter[str]()
        self.groups = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.exists() else {}

    def begin(self, name: str) -> list[str]:
        """Begin a group; rows stay if code and torch are those of this machine. Return what was tried before."""
        facts = self.head["machine"]
        here = {key: facts.get(key) for key in ("commit", "dirty", "torch", "code")}
        before = self.groups.get(name, {})
        same = all(before.get(key) == here[key] and here[key] for key in ("code", "torch"))
        self.groups[name] = {"about": GROUPS[name].about, **here, "cases": before["cases"] if same else []}
        return [row["name"] for row in self.groups[name]["cases"] if row["status"] != "not tried"]

    def add(self, name: str, row: Row) -> None:
        """Put a row in the place of an earlier one of its name, which stays if the new one was not tried; write."""
        rows = {each["name"]: each for each in self.groups[name]["cases"] if each["name"] != name}  # it stood for all
        if row["status"] != "not tried" or rows.get(row["name"], row)["status"] == "not tried":
            rows[row["name"]] = row
        self.groups[name]["cases"] = list(rows.values())
        self.counts[row["status"]] += 1
        line = f"{name}: {row['name']}: {row['figure'] or row['message']}"
        print(f"{row['status']:9} {line} [{row['seconds']:.1f} s]", flush=True)
        self.write()

    def write(self) -> None:
        """Write the file, whole at any time."""
        if self.keep:
            groups = {name: self.groups[name] for name in GROUPS if name in self.groups}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({**self.head, "groups": groups}, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)


class Runner:
    """Some cases of a group, in a process that another one follows where a case ends it."""

    def __init__(self, name: str, given: Sequence[Any], known: Iterable[str], add: Callable[[Row], None]) -> None:
        """Start the process; ``given`` is what the worker needs, ``known`` are cases to leave out."""
        self.given, self.add, self.done = (name, *given), add, set(known)
        self.names, self.left = [name], RESTARTS
        self.start()

    def start(self) -> None:
        self.log = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115 - as long as the process runs
        self.events, theirs = CONTEXT.Pipe(duplex=False)
        arguments = (theirs, self.log.name, *self.given, sorted(self.done))
        self.process = CONTEXT.Process(target=worker.main, args=arguments)
        self.process.start()
        theirs.close()
        self.begun, self.since, self.left = Row(), time.monotonic(), self.left - 1

    def follow(self, end: float) -> bool:
        """Take what the process says, or end it; return whether there is more to come."""
        dead, now = self.process.exitcode is not None, time.monotonic()  # before reading, so that all is read
        with suppress(EOFError):
            while self.events.poll():
                event = self.events.recv()
                self.names, self.begun, self.since = event.get("cases", self.names), event, now
                if "end" in event:
                    self.close(event["end"])
        late = now - self.since > self.begun.get("seconds", now)
        if dead and self.process.exitcode == 0:
            return False
        if not (dead or late or now > end):
            return True
        status = "failed" if dead or (late and not self.begun["slow"]) else "not tried"
        why = f"the process ended with {self.process.exitcode}"
        if not dead:
            why = f"{'no end' if late else 'cut off with its group'} after {now - self.since:.0f} s"
        last = "".join(f": {line[:200]}" for line in self.log.read().strip().splitlines()[-1:])
        self.stop()
        rest = [name for name in self.names if name not in self.done]
        if not rest and not dead:
            return False
        rest = rest or ["end of the process"]
        row = {"seconds": round(now - self.since, 2), "figure": ""}
        self.close({"name": rest.pop(0), "status": status, **row, "message": why + last})
        if rest and self.left and now < end:
            self.start()
            return True
        for name in rest:
            why = "no time left, or too many processes died"
            self.close({"name": name, "status": "not tried", "seconds": 0.0, "figure": "", "message": why})
        return False

    def close(self, row: Row) -> None:
        self.done.add(row["name"])
        self.add(row)

    def stop(self) -> None:
        """End the process with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # before it leads a group
        self.process.join()
        self.log.close()


def run_group(
    name: str, given: Sequence[Any], end: float, jobs: int, known: Iterable[str], add: Callable[[Row], None]
) -> None:
    if time.monotonic() >= end:
        add({"name": name, "status": "not tried", "seconds": 0.0, "figure": "", "message": "no time left"})
        return
    runners = [Runner(name, [*given, part, jobs], known, add) for part in range(jobs)]
    try:
        while runners:
            connection.wait([each for one in runners for each in (one.events, one.process.sentinel)], POLL)
            for one in [one for one in runners if not one.follow(end)]:
                one.stop()
                runners.remove(one)
    finally:
        for one in runners:
            one.stop()


def prepare() -> None:
    """Set the variables of the processes: this tree first, one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update({"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"})
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "gpu_check" / "compiled"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each of many processes
    os.chdir(ROOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts or groups, and write each row at once; return 1 if a case failed or there is no GPU, otherwise 0."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", type=int, choices=PARTS, help="default: all, one after the other")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run of this tool")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="a group, anew; repeatable")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of a part, or of the groups of --only")
    parser.add_argument("--jobs", type=int, help="processes side by side")
    parser.add_argument("--out", type=Path, help="folder of the records")
    given = parser.parse_args(arguments)
    prepare()
    began, dry = time.monotonic(), given.device == "cpu"
    folder = (given.out or ROOT / ("build/gpu_check" if dry else "figures/records")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with CONTEXT.Pool(1) as pool:
        facts, slug, room, reason = pool.apply(worker.look, [given.device])
    record = Record(
        folder / f"gpu_check_{slug}.json", {"command": COMMAND, "dry_run": dry, "machine": facts}, not reason
    )
    print(f"{facts['device']}{', a dry run: no GPU is tried' * dry}{f', {reason}' * bool(reason)}", flush=True)
    steps = {"these groups": given.only or []}
    if reason:
        steps = {"no GPU": ["environment"]}
    elif not given.only:
        wanted = [given.part] if given.part else list(PARTS)
        steps = {f"part {n}: {PARTS[n]}": [name for name, each in GROUPS.items() if each.part == n] for n in wanted}
    for number, (title, names) in enumerate(steps.items()):
        print(title, flush=True)
        end = (time.monotonic() if number else began) + 60 * given.minutes
        run_part(names, [given.device, folder], end, given.jobs or room, record, not given.only)
    print(f"\n{', '.join(f'{count} {status}' for status, count in record.counts.most_common())}; ", end="")
    print(f"no record: {reason}" if reason else f"record: {record.path}")
    return int(bool(reason) or record.counts["failed"] > 0)


def run_part(names: Iterable[str], given: Sequence[Any], end: float, jobs: int, record: Record, resume: bool) -> None:
    """Run groups, each with its share of the time that is left, by their weights; those that measure no time first.

    With ``resume``, cases that the record has are left out, but not those of groups that are tried ``anew``.
    """
    left = sorted(names, key=lambda name: GROUPS[name].timed)
    while left:
        name, weight = left[0], sum(GROUPS[each].weight for each in left)
        limit = time.monotonic() + max(0.0, end - time.monotonic()) * GROUPS[name].weight / weight
        known = record.begin(name)
        known = known if resume and not GROUPS[name].anew else []
        print(f"== {name}: {GROUPS[name].about}{f'; {len(known)} cases were tried before' * bool(known)}", flush=True)
        own = 1 if GROUPS[name].timed else jobs
        run_group(name, given, limit, own, known, lambda row, name=name: record.add(name, row))
        left.pop(0)


if __name__ == "__main__":
    sys.exit(main())
