"""A report of this machine: the hardware, software and toggles that uavlab can use, and advice for those it cannot."""

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from uavlab.core.extras import install_command
from uavlab.profiling.roofline import matrix_rate
from uavlab.runtime.runtime import process_flags
from uavlab.runtime.toggles import TOGGLES, Toggles, notes_on, resolve, toggle_presets
from uavlab.storage.machine import cpu_flags, cpu_model, device_name, usable_cores

GB = 1e9
ROOMY_MEMORY = 4 * GB  # enough for a shipped run and a notebook at once
ROOMY_DISK = 2 * GB
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC_BROWSERS = ("Google Chrome", "Chromium")
COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True)
class Row:
    """One property of this machine, whether uavlab can make use of it, and if not, why and what to do."""

    what: str
    value: str
    usable: bool = True
    advice: str = ""

    def __str__(self) -> str:
        """Format it as one line."""
        why = f"  ({self.advice})" if self.advice else ""
        return f"{'ok' if self.usable else '--':3} {self.what:22} {self.value}{why}"


def examine(folder: Path = Path(), device: torch.device | str | None = None) -> list[Row]:
    """Examine this machine in about two seconds and return a row for each property.

    The disk is that of ``folder``; matrix rates are measured on ``device``, by default a GPU if there is one.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return [
        Row("Python", sys.version.split()[0]),
        Row("torch", torch.__version__),
        Row("system", f"{sys.platform}, {cpu_model()}"),
        Row("cores", f"{usable_cores()} usable of {os.cpu_count()}"),
        Row("threads", f"{torch.get_num_threads()} per operation by default; uavlab uses 1 unless set otherwise"),
        _memory(),
        _disk(folder),
        *_gpus(),
        _compiler(),
        *_rates(device),
        _browser(),
        _jupyter(),
    ]


def _rates(device: torch.device) -> list[Row]:
    """Measure the rates of matrix products in float32 and bfloat16, on a CPU with one thread."""
    with process_flags(Toggles(threads=1), device):
        single, half = (matrix_rate(device, precision) / GB for precision in ("fp32", "bf16"))
    where = f"on {device_name(device)}" + (", one thread" if device.type == "cpu" else "")
    faster = half > single
    advice = "" if faster else "bfloat16 is slower here: leave it switched off."
    return [
        Row("float32 rate", f"{single:,.0f} GFLOP/s {where}"),
        Row("bfloat16 rate", f"{half:,.0f} GFLOP/s, {half / single:.2g} times float32{_units(device)}", faster, advice),
    ]


def _units(device: torch.device) -> str:
    """Return the instructions for bfloat16 of a CPU, where the system lists what it has."""
    flags = cpu_flags() if device.type == "cpu" else []
    return f"; instructions: {', '.join(flag for flag in flags if 'bf16' in flag) or 'none'}" if flags else ""


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
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [Row(f"GPU {i}", f"{gpu.name}, {gpu.total_memory / GB:.0f} GB") for i, gpu in enumerate(gpus)]
    if torch.version.cuda is None:
        why = "This build of torch has no CUDA; with an NVIDIA GPU, install a CUDA build (make setup TORCH=cu130)."
    elif (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        why = f"CUDA_VISIBLE_DEVICES={visible!r} shows none to torch; unset it or name one that nvidia-smi lists."
    else:
        why = f"torch was built for CUDA {torch.version.cuda} but finds no NVIDIA GPU or driver; see nvidia-smi."
    return [Row("GPU", "none", False, f"{why} Everything runs on the CPU.")]


def _compiler() -> Row:
    names = (os.environ.get("CXX"), *COMPILERS)
    why = "torch.compile on the CPU needs a C++ compiler: install g++ or clang++, or leave compilation switched off."
    return _program("C++ compiler", [shutil.which(name) for name in names if name], why)


def _browser() -> Row:
    paths = [os.environ.get("BROWSER_PATH"), *map(shutil.which, BROWSERS)]
    paths += [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in MAC_BROWSERS]
    why = "Saving figures as images and the browser tests need Chromium or Chrome: install one, or set BROWSER_PATH."
    return _program("browser", paths, why)


def _program(what: str, paths: list[str | None], why: str) -> Row:
    path = next((path for path in paths if path and Path(path).is_file()), None)
    return Row(what, path or "none", path is not None, "" if path else why)


def _jupyter() -> Row:
    try:
        return Row("JupyterLab", version("jupyterlab"))
    except PackageNotFoundError:
        return Row("JupyterLab", "none", False, f"The notebooks need it: {install_command('lab')}.")


def toggle_rows(device: str = "auto") -> list[dict[str, Any]]:
    """Describe every toggle: its fields, its value in every named set, and by value why it is unusable, and notes."""
    target = _target(device)
    sets = {name: Toggles(**values) for name, values in toggle_presets(target).items()}
    rows = []
    for toggle in TOGGLES.values():
        own = {key: getattr(toggle, key) for key in ("name", "values", "default", "seam", "equality", "claim", "cost")}
        in_sets = {name: getattr(values, toggle.name) for name, values in sets.items()}
        unusable, remarks = dict[str, str](), dict[str, str]()
        for value in toggle.choices:
            effective, reasons = resolve(Toggles(**{"update": "batched", toggle.name: value}), target)
            texts = notes_on(effective, target)
            unusable |= {value: reasons[toggle.name]} if toggle.name in reasons else {}
            remarks |= {value: texts[toggle.name]} if toggle.name in texts else {}
        rows.append({**own, "sets": in_sets, "unusable": unusable, "notes": remarks})
    return rows


def format_toggles(device: str = "auto") -> str:
    """Format ``toggle_rows`` and the named sets as text."""
    lines = [f"{'toggle':16} {'values (first: the plain reference)':52} {'acts at':14} {'equality':10} said to bring"]
    for row in toggle_rows(device):
        lines.append(f"{row['name']:16} {row['values']:52} {row['seam']:14} {row['equality']:10} {row['claim']}")
        lines += [f"{'':16} not here: {value}: {reason}" for value, reason in row["unusable"].items()]
        lines += [f"{'':16} {value}: {text}" for value, text in row["notes"].items()]
    lines.append("sets (`--toggles NAME`):")
    for name, values in toggle_presets(_target(device)).items():
        changes = " ".join(f"{key}={value}" for key, value in values.items())
        lines.append(f"  {name}: {changes or 'every toggle at its first value'}")
    return "\n".join(lines)


def _target(device: Any) -> torch.device:
    from uavlab.experiment import build  # late: the doctor must start without every requirement
    from uavlab.experiment.config import RunConfig

    return build.runtime(RunConfig(device=device)).device
