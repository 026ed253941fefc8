"""The commands with which to watch a running process, ready to paste; nothing is run here."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from uavlab.core.errors import ConfigError

CAUTION = (
    "nvidia-smi's utilisation is residency, not throughput: the share of time in which any kernel ran. At 80 % a GPU "
    "may do 0.1 % of what it could; compare updates/s, and the achieved FLOP/s of `uavlab profile`."
)
QUERY = "timestamp,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,clocks.sm"
STEPPED = ("-X", "-W")  # options of Python whose value is an argument of its own


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        line: To paste into a POSIX shell.
        look: What to look at.
        installed: Whether the programs it needs are on this machine's PATH.
    """

    line: str
    look: str
    installed: bool

    def __str__(self) -> str:
        """Say it in two lines."""
        return f"{'ok' if self.installed else '--':3} {self.line}\n    {self.look}"


def commands(pid: int) -> list[Command]:
    """List the commands that show what a process does, and those that start it once more under a profiler.

    The latter are left out for a process whose command line may not be read, or holds what a terminal would obey.

    Raises:
        ConfigError: There is no such process.
    """
    lines = {  # what to look at, and the programs it takes
        "watch -n 1 nvidia-smi": ("memory per process, and whether this one is on the GPU at all", "watch nvidia-smi"),
        "nvidia-smi dmon -s pucmt -d 1": ("sm: residency; pwr: how hard it works; rx, tx: copies", "nvidia-smi"),
        "nvidia-smi pmon -s um -d 1 -c 10": (f"pid {pid}'s own sm and fb, where others share the GPU", "nvidia-smi"),
        f"nvidia-smi --query-gpu={QUERY} --format=csv -l 1": ("the same as rows, to keep beside a run", "nvidia-smi"),
        "nvtop": ("curves of residency and memory; gaps are the host's time", "nvtop"),
        f"htop -p {pid}": ("H shows threads: one full core and an idle GPU is a loop that waits for Python", "htop"),
        f"py-spy top --pid {pid}": ("own time per function, live; as the same user, or with sudo", "py-spy"),
        f"py-spy record --pid {pid} --duration 30 --output uavlab-{pid}.svg": ("a flame graph: wide is slow", "py-spy"),
        f"py-spy dump --pid {pid}": ("where every thread stands now: for a process that hangs", "py-spy"),
        **_fresh(pid, *_process(pid)),
    }
    return [Command(line, look, all(map(shutil.which, needs.split()))) for line, (look, needs) in lines.items()]


def _process(pid: int) -> tuple[list[str], str]:
    """Read a process's command line and working folder; empty where that is another user's business."""
    try:
        process = psutil.Process(pid)
        return process.cmdline(), process.cwd()
    except psutil.AccessDenied:
        return [], ""
    except (psutil.NoSuchProcess, ValueError, OverflowError) as error:
        raise ConfigError(
            f"--pid: there is no process {pid}; expected the number of a running one, as in `pgrep -af uavlab`."
        ) from error


def _fresh(pid: int, argv: Sequence[str], folder: str) -> dict[str, tuple[str, str]]:
    """Give the commands that profile from the start: the same command line in the same folder."""
    if not argv or not "".join([*argv, folder]).isprintable():
        return {}
    there, file = f"cd {shlex.quote(folder)} && ", f"uavlab-{pid}"
    window = f"nsys profile --trace=cuda,nvtx,osrt --delay=30 --duration=10 --output={file}"
    lines = {
        f"{there}{window} {shlex.join(argv)}": (
            f"{file}.nsys-rep: gaps between kernels. A loop of your own chooses its window by "
            "torch.cuda.profiler.start() and stop(), with --capture-range=cudaProfilerApi for delay and duration",
            "nsys",
        ),
        f"{there}nsys stats {file}.nsys-rep": ("kernels by total time, and how long their launches took", "nsys"),
    }
    if not (traced := _traced(argv, f"{file}.pstats")):
        return lines
    show = f"import pstats; pstats.Stats({f'{file}.pstats'!r}).sort_stats('tottime').print_stats(20)"
    return {
        there + shlex.join(traced): ("calls and time of every Python function; give a run another --out", ""),
        there + shlex.join([argv[0], "-c", show]): ("tottime is own time: much of it outside torch is overhead", ""),
        **lines,
    }


def _traced(argv: Sequence[str], stats: str) -> list[str]:
    """Put cProfile between Python's own options and the script or module; nothing where there is neither."""
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in STEPPED else 1
    if not Path(argv[0]).name.startswith("python") or argv[at : at + 1] in ([], ["-c"], ["-"]):
        return []
    return [*argv[:at], "-m", "cProfile", "-o", stats, *argv[at:]]
