"""One process of the check: runs the cases of a group and writes an event, a line of JSON, before and after each."""

import json
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = ("uavlab", "uavlab_lab", "tests", "tools")
PLACE = re.compile(r".*/(uavlab/|(?=uavlab_lab/))")  # of a file of the package, or of the one beside the notebooks
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
        row |= {"status": "not tried" if is_missing(error) else "failed", "message": describe(error)}
    row["message"] = row["message"].strip().partition("\n")[0][:300]
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def is_missing(error: BaseException) -> bool:
    """Return whether a case could not be tried: a package of others is missing, or the case itself refuses."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0] not in OWN
    return type(error).__name__ in ("NotTried", "NotTestable", "MissingPackageError")


def describe(error: BaseException) -> str:
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


def run_cases(cases: Iterable[Case], events: Path, skip: Collection[str]) -> None:
    """Run all cases but those of the names to ``skip``, and append ``cases``, ``begin`` and ``end`` to a file."""
    cases = list(cases)
    with events.open("a", encoding="utf-8") as file:

        def write(event: dict[str, Any]) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        write({"cases": [case.name for case in cases]})
        for case in (case for case in cases if case.name not in skip):
            write({"begin": case.name, "seconds": case.seconds, "slow": case.slow})
            write({"end": try_case(case)})


def main(arguments: list[str]) -> None:
    """Run some cases of a group: its name, the device, the folder of records, part, file of events, names to skip."""
    from tools.gpu_check import groups

    name, device, folder, part, events, skip = arguments
    number, parts = map(int, part.split("/"))
    try:
        cases = list(groups.GROUPS[name].cases(device, Path(folder)))[number::parts]
    except Exception as error:
        row, failure = Case(name, lambda: ""), error
        cases = [Case(row.name, lambda: _raise(failure))]
    run_cases(cases, Path(events), json.loads(skip))


def _raise(error: Exception) -> str:
    raise error


if __name__ == "__main__":
    main(sys.argv[1:])
