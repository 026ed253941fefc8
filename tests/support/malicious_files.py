"""Malicious files, and the reader that each is given to.

``python -m tests.support.malicious_files FOLDER`` reads them all.

Every payload would make a file called ``made``. Nothing here is ever unpickled or executed on purpose.
"""

import json
import math
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import torch

from tests.support.fixtures_config import train_tiny
from tests.support.tampered_runs import checkpoint_in, edit_manifest
from uavlab import api
from uavlab.core.errors import ConfigError, FileError, UavlabError
from uavlab.core.text import one_line
from uavlab.experiment import policy
from uavlab.experiment.config import configure, parse_setting, read_yaml
from uavlab.experiment.run_dir import run_name
from uavlab.storage import checkpoint
from uavlab.storage.files import json_digest
from uavlab_lab.headless.parameters import check_values, declared_parameters, read_parameters

Reader = Callable[[], object]
Content = str | bytes | Callable[[Path], object]
CODE = "__import__('os').system('touch made')"
PATIENCE = 20  # seconds until a reader is called hung
ROOM = 5 * 2**30  # memory limit of this program (bytes)


class Payload:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch made",)


PICKLE = pickle.dumps({"preset": Payload(), "values": {}})


def put(path: Path, content: Content) -> None:
    path.unlink(missing_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def repeated(piece: bytes, size: int) -> Content:
    """Make a file of about ``size`` bytes, the JSON list of many pieces."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(b'{"update": [')
            for _ in range(size // (1000 * len(piece))):
                file.write(piece * 1000)
            file.write(b"0]}\n")

    return write


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
MERGE = "a: &a {k: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{f'*{a}, ' * 9}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP = "[" * 100_000 + "]" * 100_000
LARGE = repeated(b"[],", 100_000_000)


def settings(content: Content) -> Reader:
    put(Path("mine.yaml"), content)
    return lambda: configure("leader_follower", read_yaml(Path("mine.yaml")))


def in_run(name: str, content: Content, reader: Callable[[Path], object] = policy.load) -> Reader:
    put(Path("run") / name, content)
    return lambda: reader(Path("run"))


def signed(body: dict[str, Any]) -> str:
    """Return a JSON file with the digest of its content."""
    return json.dumps({**body, "sha256": json_digest(body)})


def rows(folder: Path) -> object:
    return policy.load(folder).rows()


def copied(folder: Path) -> object:
    return api.export(folder, "copy")


def manifest(change: Callable[[dict[str, Any]], object]) -> Reader:
    edit_manifest(change)(Path("run"))
    return lambda: policy.load(Path("run"))


def group(write: Callable[[Path], object]) -> Reader:
    """Put other contents into the group of the best policy, and make its digest fit."""
    path = checkpoint_in(Path("run")) / "best.npz"
    write(path)
    with path.open("rb") as handle:
        digest = checkpoint.hashlib.file_digest(handle, "sha256").hexdigest()
    return manifest(lambda body: body["members"]["best"].update(bytes=path.stat().st_size, sha256=digest))


def members(contents: dict[str, bytes], change: Callable[[zipfile.ZipInfo], object] = lambda info: None) -> Reader:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents.items():
                archive.writestr(info := zipfile.ZipInfo(name), content)
                change(info)

    return group(write)


def array(header: str, data: bytes = b"") -> Reader:
    """Put a hand-made array into the group of the best policy."""
    text = header.encode().ljust(118) + b"\n"
    return members({"parameters.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data})


def bomb(path: Path) -> None:
    """Write an archive of a few MB that unpacks to 1.5 GB."""
    header = f"{{{BYTES}, 'shape': (1500000000,)}}".encode().ljust(117) + b"\n"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("parameters.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x01\x00\x76\x00" + header)
        for _ in range(1500):
            member.write(bytes(1_000_000))


BYTES = "'descr': '|u1', 'fortran_order': False"


def notebook(cell: str) -> Reader:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]})])
    nbformat.write(book, "mine.ipynb")
    return lambda: declared_parameters(Path("mine.ipynb"))


def raw_notebook(content: Content) -> Reader:
    put(Path("mine.ipynb"), content)
    return lambda: declared_parameters(Path("mine.ipynb"))


def parameter(name: str) -> Reader:
    notebook("n: int = 1")
    return lambda: check_values(Path("mine.ipynb"), {name: 5})


def parameter_file(content: Content) -> Reader:
    notebook("n: int = 1")
    put(Path("mine.yaml"), content)
    return lambda: read_parameters(Path("mine.ipynb"), [], Path("mine.yaml"))


Entry = tuple[type[UavlabError], Callable[[], Reader]]
SETTINGS: dict[str, Entry] = {
    "yaml: apply": (ConfigError, lambda: settings("lr: !!python/object/apply:os.system ['touch made']")),
    "yaml: new": (ConfigError, lambda: settings("lr: !!python/object/new:os.system ['touch made']")),
    "yaml: name": (ConfigError, lambda: settings("lr: !!python/name:os.system")),
    "yaml: pickle": (ConfigError, lambda: settings(PICKLE)),
    "yaml: binary pickle": (ConfigError, lambda: settings(f"lr: !!binary {PICKLE.hex()}")),
    "yaml: alias bomb": (ConfigError, lambda: settings(BOMB)),
    "yaml: merge bomb": (ConfigError, lambda: settings(MERGE)),
    "yaml: deep": (ConfigError, lambda: settings("lr: " + DEEP[:40_000])),
    "yaml: large": (ConfigError, lambda: settings(LARGE)),
    "yaml: enormous number": (ConfigError, lambda: settings("seed: 0x" + "f" * 40_000)),
    "yaml: pipe": (ConfigError, lambda: settings(os.mkfifo)),
    "yaml: device": (ConfigError, lambda: settings(zeros)),
    "yaml: escapes": (ConfigError, lambda: settings('"\\e[2J<script>": "\\e[31m"')),
    "yaml: escapes twice": (ConfigError, lambda: settings('"\\e[2J": 1\n"\\e[2J": 2')),
    "--set": (ConfigError, lambda: lambda: parse_setting("lr=!!python/object/apply:os.system ['touch made']")),
    **{
        f"run name: {name!r}": (ConfigError, lambda name=name: lambda: run_name(name))
        for name in (
            "../made",
            "/made",
            "$(touch made)",
            "\x1b[2J",
            "<script>alert(1)</script>",
            "a\0b",
            "=1+1",
            "a\nb",
        )
    },
}
RUN_FILES: dict[str, Entry] = {
    "config: pickle": (FileError, lambda: in_run("config.json", PICKLE)),
    "config: deep": (FileError, lambda: in_run("config.json", DEEP)),
    "config: large": (FileError, lambda: in_run("config.json", LARGE)),
    "config: pipe": (FileError, lambda: in_run("config.json", os.mkfifo)),
    "config: device": (FileError, lambda: in_run("config.json", zeros)),
    "config: number": (FileError, lambda: in_run("config.json", '{"seed": 1' + "0" * 5000 + "}")),
    "config: not finite": (
        ConfigError,
        lambda: in_run(
            "config.json", signed({"preset": "leader_follower", "values": {"lr": math.nan, "tau": math.inf}})
        ),
    ),
    "config: escapes": (
        ConfigError,
        lambda: in_run("config.json", signed({"preset": "\x1b[2J<script>", "values": {}})),
    ),
    "run: pipe": (FileError, lambda: in_run("run.json", os.mkfifo, copied)),
    "run: large": (FileError, lambda: in_run("run.json", LARGE, copied)),
    "metrics: pickle": (FileError, lambda: in_run("metrics.jsonl", PICKLE + b"\n", rows)),
    "metrics: pipe": (FileError, lambda: in_run("metrics.jsonl", os.mkfifo, rows)),
    "metrics: device": (FileError, lambda: in_run("metrics.jsonl", zeros, rows)),
    "metrics: large": (FileError, lambda: in_run("metrics.jsonl", LARGE, rows)),
    "metrics: deep": (FileError, lambda: in_run("metrics.jsonl", DEEP + "\n", rows)),
    "metrics: escapes": (FileError, lambda: in_run("metrics.jsonl", "\x1b[2J\n", rows)),
}
CHECKPOINTS: dict[str, Entry] = {
    "manifest: pickle": (FileError, lambda: in_run(f"checkpoints/{SAVED}/manifest.json", PICKLE)),
    "manifest: large": (FileError, lambda: in_run(f"checkpoints/{SAVED}/manifest.json", LARGE)),
    "manifest: deep": (FileError, lambda: in_run(f"checkpoints/{SAVED}/manifest.json", DEEP)),
    "manifest: pipe": (FileError, lambda: in_run(f"checkpoints/{SAVED}/manifest.json", os.mkfifo)),
    "manifest: device": (FileError, lambda: in_run(f"checkpoints/{SAVED}/manifest.json", zeros)),
    "manifest: outside": (
        FileError,
        lambda: manifest(lambda body: body["members"].update({"../../../best": body["members"]["best"]})),
    ),
    "manifest: absolute": (
        FileError,
        lambda: manifest(lambda body: body["members"].update({"/etc/passwd": body["members"]["best"]})),
    ),
    "manifest: negative": (FileError, lambda: manifest(lambda body: body["members"]["best"].update(bytes=-1))),
    "manifest: list": (FileError, lambda: manifest(lambda body: body["members"].update(best=["bytes", "sha256"]))),
    "manifest: escapes": (FileError, lambda: manifest(lambda body: body.update(format="\x1b[2J<script>"))),
    "group: pipe": (FileError, lambda: in_run(f"checkpoints/{SAVED}/best.npz", os.mkfifo)),
    "group: device": (FileError, lambda: in_run(f"checkpoints/{SAVED}/best.npz", zeros)),
    "group: elsewhere": (
        FileError,
        lambda: in_run(f"checkpoints/{SAVED}/best.npz", lambda path: path.symlink_to("/etc/passwd")),
    ),
    "group: pickle": (FileError, lambda: group(lambda path: path.write_bytes(PICKLE))),
    "group: torch.save": (FileError, lambda: group(lambda path: torch.save({"parameters": Payload()}, path))),
    "group: objects": (
        FileError,
        lambda: group(lambda path: np.savez(path, parameters=np.array([Payload()], dtype=object))),
    ),
    "group: many": (
        FileError,
        lambda: members({f"{n}.npy": b"" for n in range(30_000)}),
    ),
    "group: bomb": (FileError, lambda: group(bomb)),
    "member: outside": (FileError, lambda: members({"../../../made": b""})),
    "member: absolute": (FileError, lambda: members({"/tmp/made": b""})),
    "member: link": (
        FileError,
        lambda: members(
            {"parameters.npy": b"/etc/passwd"}, lambda info: setattr(info, "external_attr", 0o120777 << 16)
        ),
    ),
    "member: encrypted": (
        FileError,
        lambda: members({"parameters.npy": b"x" * 99}, lambda info: setattr(info, "flag_bits", 1)),
    ),
    "member: overlapping": (
        FileError,
        lambda: members({f"{n}.npy": bytes(10_000) for n in range(9)}, lambda info: setattr(info, "header_offset", 0)),
    ),
    "member: size": (
        FileError,
        lambda: members({"parameters.npy": b"x" * 99}, lambda info: setattr(info, "file_size", 10**15)),
    ),
    "array: code": (FileError, lambda: array(f"{{'descr': {CODE}, 'fortran_order': False, 'shape': (1,)}}")),
    "array: enormous": (FileError, lambda: array(f"{{{BYTES}, 'shape': (1000000000000,)}}")),
    "array: large": (FileError, lambda: array(f"{{{BYTES}, 'shape': (2000000000,)}}", bytes(99))),
    "array: negative": (FileError, lambda: array(f"{{{BYTES}, 'shape': (-9,)}}", bytes(9))),
    "array: overflow": (FileError, lambda: array(f"{{{BYTES}, 'shape': (4294967296, 4294967296)}}", bytes(9))),
    "array: header": (FileError, lambda: array("{" + " " * 60_000 + "}")),
    "array: records": (
        FileError,
        lambda: array("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}", bytes(4)),
    ),
}
NOTEBOOKS: dict[str, Entry] = {
    "notebook: pickle": (FileError, lambda: raw_notebook(PICKLE)),
    "notebook: deep": (FileError, lambda: raw_notebook(DEEP)),
    "notebook: large": (FileError, lambda: raw_notebook(LARGE)),
    "notebook: pipe": (FileError, lambda: raw_notebook(os.mkfifo)),
    "notebook: device": (FileError, lambda: raw_notebook(zeros)),
    "parameters: value": (ConfigError, lambda: notebook(f"n: int = {CODE}")),
    "parameters: type": (ConfigError, lambda: notebook(f"n: {CODE} = 1")),
    "parameters: statement": (ConfigError, lambda: notebook(f"n: int = 1\n{CODE}")),
    "parameters: deep": (ConfigError, lambda: notebook("n: list = " + DEEP[:40_000])),
    "parameters: signs": (ConfigError, lambda: notebook("n: int = " + "-" * 50_000 + "1")),
    "parameter: statement": (ConfigError, lambda: parameter("n=1;import os;os.system('touch made');n")),
    "parameter: line": (ConfigError, lambda: parameter(f"n = 1\n{CODE}\nn")),
    "parameter: escapes": (ConfigError, lambda: parameter("\x1b[2J<script>")),
    "parameter: keyword": (ConfigError, lambda: parameter("import")),
    "parameter file: apply": (ConfigError, lambda: parameter_file("n: !!python/object/apply:os.system ['touch made']")),
    "parameter file: pipe": (ConfigError, lambda: parameter_file(os.mkfifo)),
}
SAVED = "ckpt-000000000008"
GALLERY = SETTINGS | RUN_FILES | CHECKPOINTS | NOTEBOOKS


class Hung(BaseException):
    """A reader did not end in time. No reader catches it, because it is no ``Exception``."""


def hang(number: int, frame: object) -> None:
    raise Hung


def complaint(entry: Entry, folder: Path, run: Path) -> str:
    """Have a reader read one file in a fresh folder; return what went wrong, empty if it was refused as expected."""
    expected, prepare = entry
    shutil.copytree(run, folder / "run")
    os.chdir(folder)
    reader = prepare()
    before = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE)
    try:
        reader()
        return "was read"
    except UavlabError as error:
        if type(error) is not expected or not one_line(str(error)).isprintable():
            return f"{type(error).__name__}: {error}"
        if any(word in str(error) for word in ("Error(", "KeyError", "NoneType", "\x1b")) or len(str(error)) > 1000:
            return f"is reported badly: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    after = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    return "" if after == before else f"left {set(after) ^ set(before)}"


def peak_bytes() -> int:
    """Return the peak memory of this program (bytes); getrusage would count that of its parent, too."""
    status = Path("/proc/self/status")
    if status.exists() and (match := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return 1024 * int(match[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(folder: Path) -> None:
    """Read all of them; print what went wrong, the longest time and the peak memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (ROOM, ROOM))
    train_tiny(folder / "finished", keep=1)
    complaints, seconds = {}, {}
    for number, (name, entry) in enumerate(GALLERY.items()):
        began = time.monotonic()
        if problem := complaint(entry, folder / str(number), folder / "finished"):
            complaints[name] = problem
        seconds[name] = time.monotonic() - began
    peak = peak_bytes()
    longest = max(seconds, key=lambda name: seconds[name])
    print(
        json.dumps(
            {"complaints": complaints, "read": len(seconds), "longest": [longest, seconds[longest]], "peak": peak}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
