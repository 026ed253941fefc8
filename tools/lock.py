"""Write requirements.lock: the versions of constraints.txt, with the digests of their wheels for each platform.

``.venv/bin/python tools/lock.py`` asks the package index through pip for what the lock does not hold yet, and installs
nothing; without a lock it asks for everything, which takes some minutes. It ends where a package needs another one that
constraints.txt lacks. Torch is left out: its builds differ by index, and each brings CUDA packages of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TOOLS = ("pip==26.3", "setuptools==84.2.1")  # which install the others
LEFT_OUT = re.compile("torch|triton|nvidia-(?!ml-py).*|cuda-.*")  # a build of torch, and what that build alone brings
PYTHONS = ("3.11.0", "3.12.0", "3.13.0", "3.14.0")
MACS = [f"macosx_{n}_0_{kind}" for n in range(15, 10, -1) for kind in ("arm64", "universal2")]
MACS += [f"macosx_10_{n}_universal2" for n in range(16, 8, -1)]
LEGACY = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
HEAD = """\
# The digests of all wheels that `make setup` may install, made from constraints.txt by `python tools/lock.py`.
# Torch is not among them: TORCH chooses its build, which brings CUDA packages of its own.
"""

Requires = Mapping[str, Iterable[str]]
"""The requirements of each package, by its normal name."""


class Platform(NamedTuple):
    """A system, its processor, and the tags of its wheels, the preferred first."""

    system: str
    cpu: str
    tags: list[str]

    def environment(self, python: str) -> dict[str, str]:
        """Return the values of environment markers under a version of Python, such as ``3.12.0``."""
        return {
            **{"platform_system": self.system, "sys_platform": self.system.lower(), "platform_machine": self.cpu},
            **{"python_full_version": python, "python_version": python.rpartition(".")[0], "os_name": "posix"},
            **{"implementation_name": "cpython", "platform_python_implementation": "CPython"},
        }


MAC = Platform("Darwin", "arm64", MACS)


def platforms() -> list[Platform]:
    """Return the platforms: Linux by version of glibc and processor, and macOS."""
    linux = ((41, "x86_64"), (28, "x86_64"), (41, "aarch64"))
    tags = [
        [f"manylinux_2_{n}_{cpu}" for n in range(glibc, 4, -1)] + [f"{name}_{cpu}" for name in LEGACY]
        for glibc, cpu in linux
    ]
    return [*(Platform("Linux", cpu, own) for (_, cpu), own in zip(linux, tags, strict=True)), MAC]


def pins(text: str) -> list[str]:
    """Return the pinned requirements of a constraints file; a marker says where one is needed."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return sorted([*lines, *TOOLS], key=str.lower)


def roots() -> list[str]:
    """Return what ``make setup`` asks for: the requirements of this package and of its extras but ``video``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [texts for extra, texts in project["optional-dependencies"].items() if extra != "video"]
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    return [text for text in texts if Requirement(text).name != project["name"]]


def needed(wanted: Iterable[str], requires: Requires, environment: Mapping[str, str]) -> set[str]:
    """Return the normal names of all packages that requirements need in an environment, directly or not."""
    queue, seen = [("", Requirement(text)) for text in wanted], set()
    while queue:
        extra, each = queue.pop()
        if each.marker is None or each.marker.evaluate({**environment, "extra": extra}):
            new = {(normal(each.name), own) for own in ("", *each.extras)} - seen
            seen |= new
            queue += [(own, Requirement(text)) for name, own in new for text in requires.get(name, ())]
    return {name for name, _ in seen}


def lacking(
    requirements: Iterable[str], wanted: Iterable[str], requires: Requires, environment: Mapping[str, str]
) -> list[str]:
    """Return the packages that are needed in an environment and are not among the pinned requirements there."""
    known = {normal(each.name) for each in map(Requirement, requirements) if applies(each, environment)}
    return sorted(filter(is_locked, needed(wanted, requires, environment) - known))


def is_locked(requirement: str) -> bool:
    """Return whether the lock is to hold a package."""
    return not LEFT_OUT.fullmatch(normal(requirement.partition("==")[0]))


def applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    """Return whether a requirement holds in an environment."""
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))


def installed(requirements: Iterable[str]) -> dict[str, list[str]]:
    """Return the requirements of the packages that are installed here in the pinned versions."""
    pinned = {normal(each.name): each.specifier for each in map(Requirement, requirements)}
    known = ((normal(each.name), each) for each in metadata.distributions())
    return {name: each.requires or [] for name, each in known if name in pinned and each.version in pinned[name]}


def report(python: str, tags: list[str], requirements: list[str], folder: Path) -> list[dict]:
    """Return what pip would install for some packages on one platform, an entry each."""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(each.partition(";")[0] for each in requirements))  # pip judges markers for itself
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--target", "unused", "--python-version", python, "--implementation", "cp"]
    command += [word for tag in tags for word in ("--platform", tag)] + ["--report", "-", "-r", str(listed)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["install"]


def normal(name: str) -> str:
    """Return a package's name in the form that all spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, set[str]]:
    """Return the digests of each requirement of a lock file."""
    entries = (part.split(" \\\n    --hash=sha256:") for part in re.split(r"\n(?=\S)", text.strip()))
    return {requirement: set(digests) for requirement, *digests in entries if requirement[:1] not in ("", "#")}


def lock(digests: Mapping[str, Iterable[str]]) -> str:
    """Return the text of a lock file from the digests of each requirement."""
    lines = [
        " \\\n".join([requirement, *(f"    --hash=sha256:{each}" for each in sorted(own))])
        for requirement, own in digests.items()
    ]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Ask for every platform and Python, and write the file."""
    pinned = pins((ROOT / "constraints.txt").read_text())
    requirements = list(filter(is_locked, pinned))
    before = locked(LOCK.read_text()) if LOCK.exists() else {}
    digests = {each: before.get(each, set()) for each in requirements}
    requires, names = installed(pinned), {normal(Requirement(each).name): each for each in requirements}
    with tempfile.TemporaryDirectory() as folder:
        for python, platform in ((python, platform) for python in PYTHONS for platform in platforms()):
            environment = platform.environment(python)
            new = [each for each in requirements if each not in before and applies(Requirement(each), environment)]
            print(f"lock: {len(new)} packages, Python {python}, {platform.tags[0]}", flush=True)
            for entry in report(python, platform.tags, new, Path(folder)) if new else ():
                name = normal(entry["metadata"]["name"])
                digests[names[name]].add(entry["download_info"]["archive_info"]["hashes"]["sha256"])
                requires[name] = entry["metadata"].get("requires_dist", [])
            if missing := lacking(requirements, roots(), requires, environment):
                sys.exit(f"lock: constraints.txt lacks {', '.join(missing)}, which Python {python} needs there.")
    LOCK.write_text(lock(digests))


if __name__ == "__main__":
    main()
