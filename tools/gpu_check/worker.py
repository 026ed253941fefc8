"""One process of the check: runs the cases of a group and says so before and after each; what all groups share."""

import os
import platform
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m tools.gpu_check"
PARTS = {  # what each is for, the most valuable first
    1: "the ladder of updates with graphs and compiled forms at 8, 2 and 4 agents, and all claims with their verdicts",
    2: "worlds, replay and PPO at a real size, and a team that trains until it completes 0.9 of its flights",
    3: "the rest: equal updates and worlds, runs, folders, ranks, waits, compiled runs, tests, commands, other suites",
}
OWN = ("uavlab", "uavlab_lab", "tests", "tools")
PLACE = re.compile(r".*/(uavlab/|(?=uavlab_lab/))")  # of a file of the package, or of the one beside the notebooks
MEMORY = 4e9  # bytes of the device for each process
Result = str | tuple[str, dict[str, str]]
"""The figure of a case, and the toggles that fell back with their reasons."""


class NotTried(Exception):  # noqa: N818 - an answer, not an error
    """A case cannot be tried here; the message is the reason."""


@dataclass(frozen=True)
class Case:
    """One thing to try.

    Attributes:
        name: Its name, unique in its group.
        call: Does it, and returns a figure; an exception is a failure.
        seconds: Time limit, after which the process is ended.
        slow: Exceeding the limit is no failure, because the case may take long on a healthy machine.
    """

    name: str
    call: Callable[[], Result]
    seconds: float = 40
    slow: bool = False


@dataclass(frozen=True)
class Group:
    """Cases of a kind, tried in processes of their own.

    Attributes:
        cases: (device, folder of records) -> cases.
        weight: Its share of the time of its part.
        about: What its cases show.
        part: Its part of the check.
        timed: Its cases measure time, so they run alone.
        anew: Its cases are tried in every call, because what they leave is on this machine and not in the record.
    """

    cases: Callable[[str, Path], Iterator[Case]]
    weight: float
    about: str
    part: int = 3
    timed: bool = False
    anew: bool = False


GROUPS: dict[str, Group] = {}


def group(weight: float, about: str, **more: Any) -> Callable:
    def register(function: Callable) -> Callable:
        GROUPS[function.__name__] = Group(function, weight, about, **more)
        return function

    return register


def try_case(case: Case) -> dict[str, Any]:
    """Run a case and return its row: ``name, status, seconds, figure, message``.

    ``status`` is ``ok``, ``failed``, ``fell back`` or ``not tried``.
    """
    began, row = time.perf_counter(), {"name": case.name, "status": "ok", "seconds": 0.0, "figure": "", "message": ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case.call()
            _wait_for_gpu()
        row["figure"], reasons = (result, {}) if isinstance(result, str) else result
        if reasons:
            row |= {"status": "fell back", "message": "; ".join(f"{name}: {why}" for name, why in reasons.items())}
    except (Exception, SystemExit) as error:
        row |= {"status": "not tried" if is_missing(error) else "failed", "message": explain(error)}
    row["message"] = row["message"].strip().partition("\n")[0][:300]
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def is_missing(error: BaseException) -> bool:
    """Return whether a case could not be tried: a package of others is missing, or the case itself refuses."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0] not in OWN
    return type(error).__name__ in ("NotTried", "NotTestable", "MissingPackageError")


def explain(error: BaseException) -> str:
    """Return the first line of an error, and the last lines of the package that it passed."""
    line = f"{type(error).__name__}: {str(error).strip() or 'no message'}".partition("\n")[0]
    if is_missing(error):
        return line
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if PLACE.search(frame.filename)]
    places = [f"{PLACE.sub('', frame.filename)}:{frame.lineno}" for frame in frames[-2:]]
    return line[:240] + (f" @ {', '.join(places)}" if places else "")


def _wait_for_gpu() -> None:
    """Wait for the device, so that an error of a kernel belongs to its case."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def main(
    events: Any, log: str, name: str, device: str, folder: Path, part: int, parts: int, skip: Collection[str]
) -> None:
    """Run a part of the cases of a group but those to skip; send ``cases``, and what begins and ends."""
    os.setsid()  # so that all that a case starts ends with it
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream.fileno())
    from tools.gpu_check import groups

    try:
        cases = list(groups.GROUPS[name].cases(device, folder))[part::parts]
    except Exception as error:
        failure = error
        cases = [Case(name, lambda: _raise(failure))]
    run_cases(cases, events.send, skip)


def run_cases(cases: Iterable[Case], send: Callable[[dict[str, Any]], None], skip: Collection[str]) -> None:
    cases = list(cases)
    send({"cases": [case.name for case in cases]})
    for case in (case for case in cases if case.name not in skip):
        send({"begin": case.name, "seconds": case.seconds, "slow": case.slow})
        send({"end": try_case(case)})


def _raise(error: Exception) -> str:
    raise error


def look(device: str) -> tuple[dict[str, Any], str, int, str]:
    """Return this machine, its name for files, how many processes it has room for, and the reason for no GPU."""
    nothing = {"device": "unknown"}, "unknown", 1
    try:
        import torch
    except ModuleNotFoundError as error:
        return *nothing, str(error)
    if device == "cuda" and not torch.cuda.is_available():
        return *nothing, "torch.cuda.is_available() is False"
    memory = torch.cuda.mem_get_info()[0] if device == "cuda" else 1e15
    jobs = max(1, min(len(os.sched_getaffinity(0)) - 1, int(memory // MEMORY)))
    return *machine(device), jobs, ""


def machine(device: str) -> tuple[dict[str, Any], str]:
    """Return the description of this machine and its name for use in a file name, ``unknown`` without the package."""
    try:
        from uavlab.storage.machine import describe
        from uavlab_lab.claims.report import slug
    except ModuleNotFoundError:
        import torch

        name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
        return {"device": name, "torch": torch.__version__, "python": platform.python_version()}, "unknown"
    facts = describe(device)
    return facts, slug(facts)
