"""What a user of this tree sees, as one JSON file, and how large the tree is.

    python -m tools.surface --out FILE          write the surface of this tree
    python -m tools.surface --against FILE      list what differs from it; the exit code is 1 if anything does
    python -m tools.surface --size              lines, lines of code and characters a line of code, by room

A surface holds public names with their signatures, the help of each command, settings, presets, toggles, keys of the
files of runs and of ``--json``, and exit codes. All of it comes through the command line and ``import uavlab``, so two
trees can be compared however their files are arranged. A line of code is neither blank, nor a comment, nor in a
docstring.
"""

import argparse
import ast
import enum
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import uavlab as ul

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^  ([a-z][\w-]*)  ", re.M)
RUNS = {
    "leader_follower_quick": "batch=16 worlds=4 learning_starts=16 hidden=8 evaluate_every=1 log_every=1",
    "leader_follower_mappo": "worlds=4 rollout_steps=8 minibatches=1 epochs=1 hidden=8 evaluate_every=1 log_every=1",
    "mapping_quick": "worlds=1 evaluate_every=1 log_every=1",
    "assignment_debug": "evaluate_every=1 log_every=1",
    "telemetry_quick": "flights=12 batch=16 evaluate_every=1 log_every=1",
}
"""Presets of which a short run shows the keys of its files, and settings that make the run short."""


def run_command(*words: str, cwd: Path = ROOT) -> str:
    """Return what ``uavlab`` prints, 80 columns wide.

    Raises:
        RuntimeError: The command failed.
    """
    env = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONPATH": import_path()}
    done = subprocess.run([sys.executable, "-m", "uavlab", *words], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"uavlab {' '.join(words)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def import_path() -> str:
    return os.pathsep.join((str(ROOT), str(ROOT / "notebooks")))


def read_json(*words: str, cwd: Path = ROOT) -> Any:
    """Return the object that a command prints as its last line."""
    return json.loads(run_command(*words, "--json", cwd=cwd).splitlines()[-1])


def list_names() -> dict[str, str]:
    """Return the public names of the package, and those of its public classes, with their signatures."""
    names = {}
    for name in sorted(ul.__all__):
        value = getattr(ul, name)
        names[name] = describe(value)
        if inspect.isclass(value) and not issubclass(value, enum.Enum):
            members = [key for kind in value.__mro__ if kind.__module__.startswith("uavlab") for key in vars(kind)]
            public = {key for key in members if not key.startswith("_")}
            names |= {f"{name}.{key}": describe(inspect.getattr_static(value, key)) for key in sorted(public)}
    return names


def describe(value: Any) -> str:
    """Return the signature of something that is called, otherwise its kind."""
    if isinstance(value, property):
        return "property"
    value = getattr(value, "__func__", value)
    if not callable(value):
        return type(value).__name__
    try:
        return re.sub(r" at 0x\w+", "", str(inspect.signature(value)))
    except ValueError:
        return "callable"


def read_help(*words: str) -> dict[str, list[str]]:
    """Return the lines of the help of a command and of its subcommands."""
    text = run_command(*words, "--help")
    pages = {" ".join(("uavlab", *words)): text.splitlines()}
    for name in COMMAND.findall(text.partition("\nCommands:\n")[2]):
        pages |= read_help(*words, name)
    return pages


def list_settings(presets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the value of each setting of each preset, and type, range and meaning of each setting by its name."""
    tables: dict[str, dict[str, str]] = {}
    texts: dict[str, set[str]] = {}
    for preset in presets:
        rows = read_json("settings", preset)["rows"]
        tables[preset] = {row["name"]: str(row["value"]) for row in rows}
        for row in rows:
            texts.setdefault(row["name"], set()).add(f"{row['kind']} | {row['meaning']}")
    return {**tables, "texts": {name: " or ".join(sorted(kinds)) for name, kinds in sorted(texts.items())}}


def list_toggles() -> dict[str, Any]:
    """Return the rows of ``uavlab toggles`` without what depends on the machine."""
    rows = {row.pop("name"): row for row in read_json("toggles", "--device", "cpu")["rows"]}
    rows["precision"].pop("sets")  # bfloat16 where the processor has instructions for it
    return {name: {k: v for k, v in row.items() if k not in ("unusable", "notes")} for name, row in rows.items()}


def list_keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each key in an object of JSON; all items of a list are one."""
    if isinstance(value, dict):
        for key, content in value.items():
            yield f"{path}.{key}".lstrip(".")
            yield from list_keys(content, f"{path}.{key}")
    elif isinstance(value, list):
        for content in value:
            yield from list_keys(content, f"{path}[]")


def read_runs() -> dict[str, list[str]]:
    """Return the keys of the files of short runs, and of what ``train`` and ``evaluate`` print as JSON."""
    keys = {}
    with tempfile.TemporaryDirectory() as folder:
        for preset, settings in RUNS.items():
            options = [word for setting in settings.split() for word in ("--set", setting)]
            run = Path(folder, preset)
            train = read_json(
                "train", preset, "--updates", "2", "--seed", "0", "--out", str(run), *options, cwd=Path(folder)
            )
            evaluate = read_json("evaluate", str(run), "--episodes", "2", cwd=Path(folder))
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            files = {path.name: json.loads(path.read_text()) for path in sorted(run.glob("*.json"))}
            for name, value in {"train": train, "evaluate": evaluate, "metrics.jsonl": rows, **files}.items():
                keys[f"{preset}: {name}"] = sorted({key.replace(str(run), "RUN") for key in list_keys(value)})
    return keys


def list_exit_codes() -> dict[str, int]:
    errors = {name: getattr(ul, name) for name in ul.__all__}
    return {
        name: kind.exit_code
        for name, kind in errors.items()
        if inspect.isclass(kind) and issubclass(kind, ul.UavlabError)
    }


def read_surface() -> dict[str, Any]:
    presets = read_json("presets")
    return {
        "names": list_names(),
        "commands": read_help(),
        "presets": presets,
        "settings": list_settings(presets),
        "toggles": list_toggles(),
        "keys": read_runs(),
        "exit codes": list_exit_codes(),
    }


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each entry that is gone, new or different."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            place = f"{path}/{key}".lstrip("/")
            if key not in after:
                yield f"- {place}"
            elif key not in before:
                yield f"+ {place}"
            else:
                yield from differences(before[key], after[key], place)
    elif isinstance(before, list) and isinstance(after, list):
        yield from (f"- {path}: {line}" for line in before if line not in after)
        yield from (f"+ {path}: {line}" for line in after if line not in before)
    elif before != after:
        yield f"! {path}: {before!r} -> {after!r}"


class Size(NamedTuple):
    """Sums over files."""

    files: int
    lines: int
    code: int
    characters: int

    def __str__(self) -> str:
        return f"{self.files:6,} {self.lines:8,} {self.code:8,} {self.characters / max(self.code, 1):12.1f}"


def code_lines(source: str) -> list[str]:
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines_with_code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            lines_with_code |= set(range(token.start[0], token.end[0] + 1))
    lines = source.splitlines()
    return [line for number, line in enumerate(lines, 1) if number in lines_with_code - skipped and line.strip()]


def room_of(path: Path) -> str:
    """Return the folder that a file is counted in: of the package the folder below it, otherwise the top one."""
    parts = path.parts
    return "/".join(parts[:2]) if parts[0] in ("uavlab", "notebooks", "tests") and len(parts) > 2 else parts[0]


def measure_rooms() -> dict[str, Size]:
    """Return the size of each room of the files that git knows."""
    words = ["git", "ls-files", "-z", "*.py"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    rooms: dict[str, Size] = {}
    for path in map(Path, names):
        source = (ROOT / path).read_text(encoding="utf-8")
        code = code_lines(source)
        new = Size(1, len(source.splitlines()), len(code), sum(len(line.strip()) for line in code))
        rooms[room_of(path)] = add(rooms.get(room_of(path)), new)
    return rooms


def add(first: Size | None, second: Size) -> Size:
    return second if first is None else Size(*(a + b for a, b in zip(first, second, strict=True)))


def format_sizes(rooms: Mapping[str, Size]) -> str:
    """Return a table of all rooms, and of the package, the other code and the tests as a whole."""
    wholes: dict[str, Size] = {}
    for room, size in rooms.items():
        top = room.split("/")[0]
        whole = f"all of {top if top in ('uavlab', 'tests') else 'the rest'}"
        wholes[whole] = add(wholes.get(whole), size)
    head = f"{'room':24} {'files':>6} {'lines':>8} {'code':>8} {'chars a line':>12}"
    return "\n".join([head, *(f"{room:24} {size}" for room, size in {**dict(sorted(rooms.items())), **wholes}.items())])


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE")
    what.add_argument("--against", type=Path, metavar="FILE")
    what.add_argument("--size", action="store_true")
    given = parser.parse_args(words)
    if given.size:
        print(format_sizes(measure_rooms()))
        return 0
    surface = read_surface()
    if given.out:
        given.out.write_text(json.dumps(surface, indent=1) + "\n")
        return 0
    lines = list(differences(json.loads(given.against.read_text()), surface))
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
