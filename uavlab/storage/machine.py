"""What a record says of the machine and the code that made it, so that figures are compared like with like."""

import hashlib
import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import torch

import uavlab

ROOT = Path(uavlab.__file__).parent.parent
PATIENCE = 10  # seconds granted to a helper program


def describe(device: torch.device | str) -> dict[str, Any]:
    """Describe this process for a record: machine, versions, device, threads and, in a checkout, the commit.

    Returns:
        JSON values: ``cpu``, ``cores`` (those this process may use), ``memory_bytes``, ``system``, ``python``,
        ``torch``, ``uavlab``, ``device``, ``threads``, ``code`` (a digest of the package's modules), ``commit`` and
        ``dirty`` (both None outside a checkout).
    """
    commit = _git("rev-parse", "HEAD") if _git("rev-parse", "--show-toplevel") == str(ROOT.resolve()) else None
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "uavlab": uavlab.__version__,
        "device": device_name(torch.device(device)),
        "threads": torch.get_num_threads(),
        "code": code_digest(),
        "commit": commit,
        "dirty": None if commit is None else _git("status", "--porcelain") != "",
    }


@lru_cache
def code_digest() -> str:
    """Condense the modules of this package into twelve hexadecimal digits: the same code, the same digits."""
    modules = sorted(Path(uavlab.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()[:12]


def device_name(device: torch.device) -> str:
    """Name a device as its maker does: the GPU's model, or the CPU's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def cpu_model() -> str:
    """Name the CPU; only its architecture where the system does not tell more."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()


def usable_cores() -> int:
    """Count the logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(*arguments: str) -> str | None:
    return _output("git", "--no-optional-locks", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str | None:
    """Return what a program prints, None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
