"""What this machine can do for uavlab, measured or looked up, and what to do about what it cannot."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from uavlab.profiling.roofline import matrix_rate
from uavlab.runtime.process_flags import switched
from uavlab.runtime.toggles import Toggles
from uavlab.storage.machine import cpu_model, device_name, usable_cores

GB = 1e9
ROOMY_MEMORY = 4 * GB  # the shipped runs and a notebook beside them
ROOMY_DISK = 2 * GB
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC_BROWSERS = ("Google Chrome", "Chromium")
COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        what: What was looked at.
        value: What was found.
        usable: Whether uavlab can make use of it.
        advice: Why not, and what to do; empty where nothing need be done.
    """

    what: str
    value: str
    usable: bool = True
    advice: str = ""

    def __str__(self) -> str:
        """Say it in one line."""
        why = f"  ({self.advice})" if self.advice else ""
        return f"{'ok' if self.usable else '--':3} {self.what:22} {self.value}{why}"


def examine(folder: Path = Path(), device: torch.device | str | None = None) -> list[Row]:
    """Look at everything that uavlab can use, in about two seconds.

    Args:
        folder: Where runs would be written.
        device: Whose matrix rates to measure; by default a GPU if there is one.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return [
        Row("Python", sys.version.split()[0]),
        Row("torch", torch.__version__),
        Row("system", f"{sys.platform}, {cpu_model()}"),
        Row("cores", f"{usable_cores()} usable of {os.cpu_count()}"),
        Row("threads", f"{torch.get_num_threads()} per operation by default; uavlab uses 1 unless told otherwise"),
        _memory(),
        _disk(folder),
        *_gpus(),
        _compiler(),
        *_rates(device),
        _browser(),
        _jupyter(),
    ]


def _rates(device: torch.device) -> list[Row]:
    """Compare float32 and bfloat16; on a CPU by one thread."""
    with switched(Toggles(threads=1), device):
        single, half = (matrix_rate(device, precision) / GB for precision in ("fp32", "bf16"))
    where = f"on {device_name(device)}" + (", one thread" if device.type == "cpu" else "")
    faster = half > single
    advice = "" if faster else "bfloat16 is slower here: leave it switched off."
    return [
        Row("float32 rate", f"{single:,.0f} GFLOP/s {where}"),
        Row("bfloat16 rate", f"{half:,.0f} GFLOP/s, {half / single:.2g} times float32", faster, advice),
    ]


def _memory() -> Row:
    memory = psutil.virtual_memory()
    enough = memory.available >= ROOMY_MEMORY
    advice = "" if enough else f"Below {ROOMY_MEMORY / GB:.0f} GB, choose a smaller replay capacity."
    return Row("memory", f"{memory.available / GB:.1f} GB free of {memory.total / GB:.1f} GB", enough, advice)


def _disk(folder: Path) -> Row:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    enough = free >= ROOMY_DISK
    advice = "" if enough else f"Below {ROOMY_DISK / GB:.0f} GB, checkpoints may fail: free some."
    return Row("disk", f"{free / GB:.1f} GB free in {existing}", enough, advice)


def _gpus() -> list[Row]:
    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [Row(f"GPU {i}", f"{gpu.name}, {gpu.total_memory / GB:.0f} GB") for i, gpu in enumerate(found)]
    if torch.version.cuda is None:
        why = "This build of torch has no CUDA; with an NVIDIA GPU, install a CUDA build (make setup TORCH_INDEX=URL)."
    elif (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        why = f"CUDA_VISIBLE_DEVICES={visible!r} shows none to torch; unset it or name one that nvidia-smi lists."
    else:
        why = f"torch was built for CUDA {torch.version.cuda} but finds no NVIDIA GPU or driver; see nvidia-smi."
    return [Row("GPU", "none", False, f"{why} Everything runs on the CPU.")]


def _compiler() -> Row:
    found = next((path for name in (os.environ.get("CXX"), *COMPILERS) if name and (path := shutil.which(name))), None)
    why = "torch.compile on the CPU needs a C++ compiler: install g++ or clang++, or leave compilation switched off."
    return Row("C++ compiler", found or "none", found is not None, "" if found else why)


def _browser() -> Row:
    chosen = os.environ.get("BROWSER_PATH", "")
    candidates = [chosen, *(shutil.which(name) or "" for name in BROWSERS)]
    candidates += [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in MAC_BROWSERS]
    found = next((path for path in candidates if path and Path(path).is_file()), None)
    why = "Saving figures as images and the browser tests need Chromium or Chrome: install one, or set BROWSER_PATH."
    return Row("browser", found or "none", found is not None, "" if found else why)


def _jupyter() -> Row:
    try:
        return Row("JupyterLab", version("jupyterlab"))
    except PackageNotFoundError:
        return Row("JupyterLab", "none", False, "The notebooks need it: make setup.")
