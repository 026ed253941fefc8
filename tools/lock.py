"""Write requirements.lock: the versions of constraints.txt, with the digests of their wheels for each platform.

``python tools/lock.py`` asks the package index through pip, installs nothing, and takes some minutes. Torch is left
out: its builds differ by index, and each brings CUDA packages of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TOOLS = ("pip==26.3", "setuptools==84.2.1")  # which install the others
PYTHONS = ("3.11.9", "3.12", "3.13", "3.14")
MACS = [f"macosx_{n}_0_{kind}" for n in range(15, 10, -1) for kind in ("arm64", "universal2")]
MACS += [f"macosx_10_{n}_universal2" for n in range(16, 8, -1)]
LEGACY = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
HEAD = """\
# The digests of all wheels that `make setup` may install, made from constraints.txt by `python tools/lock.py`.
# Torch is not among them: TORCH_INDEX chooses its build, which brings CUDA packages of its own.
"""


def platforms() -> list[list[str]]:
    """Return the tags of each platform, the preferred first: Linux by version of glibc and processor, and macOS."""
    linux = ((41, "x86_64"), (28, "x86_64"), (41, "aarch64"))
    tags = [
        [f"manylinux_2_{n}_{cpu}" for n in range(glibc, 4, -1)] + [f"{name}_{cpu}" for name in LEGACY]
        for glibc, cpu in linux
    ]
    return [*tags, MACS]


def pins(text: str) -> list[str]:
    """Return the pinned requirements of a constraints file without torch."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return sorted([*(line for line in lines if not line.startswith("torch==")), *TOOLS], key=str.lower)


def digests(python: str, tags: list[str], requirements: Path) -> dict[str, str]:
    """Return the digest of the wheel that pip would install for each package on one platform."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--target", "unused", "--python-version", python, "--implementation", "cp"]
    command += [word for tag in tags for word in ("--platform", tag)] + ["--report", "-", "-r", str(requirements)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        normal(entry["metadata"]["name"]): entry["download_info"]["archive_info"]["hashes"]["sha256"]
        for entry in report["install"]
    }


def normal(name: str) -> str:
    """Return a package's name in the form that all spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(requirements: list[str], known: dict[str, set[str]]) -> str:
    """Return the text of the lock file."""
    lines = [
        " \\\n".join(
            [
                requirement,
                *(f"    --hash=sha256:{each}" for each in sorted(known[normal(requirement.partition("==")[0])])),
            ]
        )
        for requirement in requirements
    ]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Ask for every platform and Python, and write the file."""
    requirements = pins((ROOT / "constraints.txt").read_text())
    known: dict[str, set[str]] = defaultdict(set)
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(requirements))
        for python in PYTHONS:
            for tags in platforms():
                print(f"lock: Python {python}, {tags[0]}", flush=True)
                for name, digest in digests(python, tags, listed).items():
                    known[name].add(digest)
    LOCK.write_text(lock(requirements, known))


if __name__ == "__main__":
    main()
