"""Machine, code and command of a record, so that only figures of equal conditions are compared."""

import hashlib
import os
import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import torch

from uavlab.core.installation import LAB, PACKAGE, ROOT, VERSION

TIMEOUT = 10  # s, of an external program
NO_CODE = ":(exclude)figures/records"
CPUINFO = Path("/proc/cpuinfo")
FLAGS = (  # instruction sets that matter for speed: of x86, then of ARM
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "sve", "sve2", "bf16", "svebf16"),
)


def describe(device: torch.device | str) -> dict[str, Any]:
    """Return the machine and the code of this process for a record.

    Returns:
        JSON values: ``cpu``, ``cpu_id`` (family, model and stepping), ``cpu_flags`` (those of ``FLAGS`` that it has),
        ``cores`` (usable ones), ``load`` (runnable processes during the last minute; None on Windows),
        ``memory_bytes``, ``system``, ``python``, ``torch``, ``uavlab``, ``device``, ``threads``, ``code`` (a digest of
        the package's modules), ``commit`` and ``dirty`` (whether files other than records have changed since;
        both None outside a checkout).
    """
    commit = _git("rev-parse", "HEAD") if _git("rev-parse", "--show-toplevel") == str(ROOT.resolve()) else None
    return {
        "cpu": cpu_model(),
        "cpu_id": cpu_id(),
        "cpu_flags": cpu_flags(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "uavlab": VERSION,
        "device": device_name(torch.device(device)),
        "threads": torch.get_num_threads(),
        "code": code_digest(),
        "commit": commit,
        "dirty": None if commit is None else _git("status", "--porcelain", "--", ".", NO_CODE) != "",
    }


def memory(device: torch.device | str) -> dict[str, int]:
    """Return the memory of this process (bytes, no sync).

    Returns:
        ``resident`` in main memory; on a GPU also ``allocated`` by tensors, its ``peak``, and ``reserved`` by torch
        (without the context of the driver).
    """
    sizes = {"resident": psutil.Process().memory_info().rss}
    if torch.device(device).type == "cuda":
        sizes |= {
            "allocated": torch.cuda.memory_allocated(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
        }
    return sizes


@lru_cache
def code_digest() -> str:
    """Return twelve hexadecimal digits of the SHA-256 of all modules of this package, and of those that measure."""
    modules = [path for folder in (PACKAGE, LAB) for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()[:12]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def cpu_model() -> str:
    """Return the model of the CPU, or only its architecture where the system does not name the model."""
    return cpuinfo().get("model name") or _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()


def cpu_id() -> str:
    """Return ``family 25 model 17 stepping 1``, which tells CPUs of one name apart; empty if unknown."""
    known = cpuinfo()
    names = [("CPU implementer", "implementer"), ("CPU part", "part"), ("CPU revision", "revision")]  # of ARM
    names += [("cpu family", "family"), ("model", "model"), ("stepping", "stepping")]
    return " ".join(f"{short} {known[name]}" for name, short in names if name in known)


def cpu_flags() -> list[str]:
    """Return those instruction sets among ``FLAGS`` that the CPU has, as far as the system lists them."""
    known = cpuinfo()
    have = (known.get("flags") or known.get("Features") or "").split()
    return [flag for flag in FLAGS if flag in have]


@lru_cache
def cpuinfo() -> dict[str, str]:
    """Read what Linux lists of the first core; empty on other systems."""
    if not CPUINFO.exists():
        return {}
    first, *_ = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")
    rows = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def usable_cores() -> int:
    """Count the logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(*arguments: str) -> str | None:
    return _output("git", "--no-optional-locks", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str | None:
    """Return the output of a program; None if it is missing or fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
