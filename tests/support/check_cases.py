"""Cases of the check of GPU paths that end in each way, as a process of its own."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tools.gpu_check.worker import Case, run_cases


def broken() -> str:
    raise ValueError("first line\nsecond line")


def main(events: Any, log: str, name: str, folder: str, part: int, parts: int, skip: list[str]) -> None:
    """Run the cases; the one that hangs leaves the number of a process that it started."""

    def hangs() -> str:
        started = subprocess.Popen(["sleep", "60"])
        Path(folder, "pid").write_text(str(started.pid))
        time.sleep(60)
        return ""

    os.setsid()
    Path(log).write_text(f"a line of {name}\n")
    cases = [
        Case("fine", lambda: "3 rows"),
        Case("broken", broken),
        Case("hangs", hangs, seconds=3),
        Case("slow", lambda: str(time.sleep(60)), seconds=0.3, slow=True),
        Case("fell", lambda: ("4 rows", {"graph": "no CUDA device"})),
        Case("dies", lambda: os._exit(7)),
        Case("last", lambda: ""),
    ]
    run_cases(cases[part::parts], events.send, skip)
