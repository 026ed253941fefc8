"""Install the pinned packages into .venv if they are missing or outdated; every make target runs this first.

The code runs under Python 3.6 and newer, so that it can report a Python that is too old.
Every wheel must have a digest of requirements.lock. Torch is the exception: its builds differ by index, and each brings
CUDA packages of its own, so its version alone is pinned. The environment variable TORCH chooses the index from which
torch, and nothing else, is installed: a folder of PyTorch's own index, such as ``cpu`` or ``cu130``, or a URL.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "uavlab-setup.json"
OLDEST = (3, 11)
PYTORCH = "https://download.pytorch.org/whl/"
GB = 1e9
NEEDED = 3 * GB  # packages with a CPU build of torch, and pip's working space
NEEDED_CUDA = 8 * GB


def required_environment(stamp: dict, index: str, this_python: bool) -> dict:
    """Describe the required .venv; the index and Python stay those of ``stamp`` unless they are given."""
    files = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "requirements.lock"))
    version = "{}.{}".format(*sys.version_info)
    return {
        "root": str(ROOT),  # scripts in .venv/bin hold its path: a moved checkout needs a new one
        "files": hashlib.sha256(files).hexdigest(),
        "index": hashlib.sha256(index.encode()).hexdigest() if index else stamp.get("index"),
        "python": version if this_python else stamp.get("python", version),
    }


def read_stamp() -> dict:
    """Return the description that the last complete set-up wrote, empty if there was none."""
    try:
        return json.loads(STAMP.read_text()) if PYTHON.exists() else {}
    except (OSError, ValueError):
        return {}


def has_pip() -> bool:
    """Return whether .venv can install packages; it cannot if its creation was interrupted or its Python is gone."""
    if not PYTHON.exists():
        return False
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run([str(PYTHON), "-m", "pip", "--version"], **silent).returncode == 0


def create() -> None:
    """Create an empty .venv with this Python, or end with the reason why not."""
    if sys.version_info < OLDEST:
        others = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if shutil.which(name)]
        stop(
            "uavlab needs Python 3.11 or newer; {} is {}.{}.".format(sys.executable, *sys.version_info),
            f"Try: make setup PYTHON={others[0]}" if others else "Install one, then: make setup PYTHON=python3.12",
        )
    if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        stop(f"{sys.executable} lacks the module venv.", "On Debian and Ubuntu: apt install python3-venv")
    say(f"making {VENV} with {sys.executable}")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)]).returncode:
        stop(f"{VENV} could not be made; the reason is above.")


def install(index: str) -> None:
    """Install the locked packages, pip among them, then torch, from ``index`` if it is given, then this package.

    The last step adds what is not in the lock: requirements of torch with CUDA, and of systems without a lock.
    """
    pip = [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    pip += [] if sys.stdout.isatty() else ["--quiet"]
    torch = [
        "-c",
        "constraints.txt",
        *(["--index-url", index, "--no-deps", "--force-reinstall"] if index else []),
        "torch",
    ]
    locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", "requirements.lock"]
    package = ["-c", "constraints.txt", "--no-build-isolation", "-e", ".[all,dev]"]
    for command in ([*pip, *words] for words in (locked, torch, package)):
        if subprocess.run(command, cwd=str(ROOT)).returncode:
            stop("pip failed; its reason is above.", "The first set-up needs the network. Then run make again.")


def check_disk(index: str) -> None:
    """End if the disk is too full; warn if torch with CUDA may not fit."""
    free = shutil.disk_usage(str(ROOT)).free
    if free < NEEDED:
        stop(f"{ROOT} has {free / GB:.1f} GB free; the packages need {NEEDED / GB:.0f} GB.", "Free some, then retry.")
    if free < NEEDED_CUDA and sys.platform == "linux" and not index:
        say(
            f"{free / GB:.1f} GB are free; torch with CUDA takes up to {NEEDED_CUDA / GB:.0f} GB."
            f" Without an NVIDIA GPU, TORCH=cpu after the command takes up to 5 GB less, from {PYTORCH}cpu."
        )


def say(message: str) -> None:
    print("setup: " + message, flush=True)


def stop(*lines: str) -> None:
    sys.exit("\n".join("setup: " + line for line in lines))


def main() -> None:
    torch = os.environ.get("TORCH", "")
    index = torch if "://" in torch or not torch else PYTORCH + torch
    stamp = read_stamp()
    required = required_environment(stamp, index, this_python="--this-python" in sys.argv[1:])
    if stamp == required:
        return
    if not stamp:
        check_disk(index)
    if any(stamp.get(key, required[key]) != required[key] for key in ("root", "python")) or not has_pip():
        create()
    say("installing the packages; the first time this takes some minutes")
    install(index)
    STAMP.write_text(json.dumps(required, indent=2) + "\n")
    say("done")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; run make again to go on.")
    except OSError as error:
        stop(f"{error}.", "Nothing was marked as installed; run make again once that is mended.")
