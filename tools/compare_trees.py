"""Compare this tree with another commit on this machine: the bits that presets train to, and the speed of a suite.

    python tools/compare_trees.py COMMIT                                  every preset, 60 updates
    python tools/compare_trees.py COMMIT --sets plain,eager,laptop        every preset and set of toggles, 5 updates
    python tools/compare_trees.py COMMIT --resume                         runs of COMMIT, resumed and evaluated here
    python tools/compare_trees.py COMMIT --bench update                   ratios of times, here over there

Both trees run the ordinary command line in processes of their own, on the CPU and on one thread. Compared are the
tensors of ``learner`` and ``best`` in the last checkpoint, bit for bit, and the rows of metrics apart from the clock.
The exit code is 1 if anything differs or fails.
"""

import argparse
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from uavlab.profiling.timing import ENOUGH, ratio

ROOT = Path(__file__).parents[1]
MEMBERS = ("learner", "best")
EPISODES = 2
SMALLER = {
    "passes": {"worlds": 2},
    "flights": {"flights": 12},
    "epochs": {"rollout_steps": 64, "minibatches": 8, "epochs": 5},
}
"""Smaller settings of presets that have the setting in the key: the same code on less data."""
TIMES_AND_RATES = re.compile(r"(?:.*_)?(?:ms|s)")
"""Keys of times (ms, s) and rates (per_s) in a row of a bench record."""
UPDATES, UPDATES_OF_SETS = 60, 5  # defaults: with the toggles of the preset, and with a named set


@dataclass(frozen=True)
class Case:
    """A preset, its number of updates, and the set of toggles and the settings over it."""

    preset: str
    updates: int
    toggles: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Tree:
    """A checkout and its name in results."""

    name: str
    root: Path

    def python(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run Python with this tree's packages, on one thread."""
        path = os.pathsep.join((str(self.root), str(self.root / "notebooks")))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True)

    def uavlab(self, *arguments: str, cwd: Path) -> Any:
        """Run a command of the command line and return its JSON object.

        Raises:
            RuntimeError: It failed; the message is the last line of stderr.
        """
        done = self.python("-m", "uavlab", *arguments, "--json", cwd=cwd)
        if done.returncode:
            message = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"{self.name}: uavlab {arguments[0]}: exit code {done.returncode}: {message}")
        return json.loads(done.stdout.splitlines()[-1])


def checkout(commit: str, folder: Path) -> None:
    """Unpack a commit of this repository into ``folder``.

    Raises:
        RuntimeError: There is no such commit.
    """
    archive_process = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
    if archive_process.returncode:
        raise RuntimeError(archive_process.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archive_process.stdout)) as archive:
        archive.extractall(folder, filter="data")


def require_own_package(tree: Tree, cwd: Path) -> None:
    """Raise RuntimeError unless a tree's processes import its own package."""
    where = tree.python("-c", "import uavlab; print(uavlab.__file__)", cwd=cwd).stdout.strip()
    if not Path(where).is_relative_to(tree.root):
        raise RuntimeError(f"{tree.name}: imports {where or 'nothing'}; expected the package in {tree.root}.")


def reductions(tree: Tree, preset: str, cwd: Path) -> dict[str, int]:
    """Return the settings of ``SMALLER`` that make a preset smaller."""
    values = {row["name"]: row["value"] for row in tree.uavlab("settings", preset, cwd=cwd)["rows"]}
    smaller = {name: value for key, settings in SMALLER.items() if key in values for name, value in settings.items()}
    return {name: value for name, value in smaller.items() if values[name] > value}


def train(tree: Tree, case: Case, cwd: Path) -> None:
    """Train a preset in the new folder ``cwd / "run"``; two or three of its updates are followed by a score."""
    cwd.mkdir()
    every = -(-case.updates // 3)
    settings = {"evaluate_every": every, "evaluate_episodes": EPISODES, "minutes": "null", "log_every": every}
    options = [f"--set={name}={value}" for name, value in {**settings, **case.settings}.items()]
    toggles = [] if case.toggles == "default" else ["--toggles", case.toggles]
    run = ("--out", "run", "--updates", str(case.updates), "--seed", "0", "--device", "cpu")
    tree.uavlab("train", case.preset, *run, *options, *toggles, cwd=cwd)


def last_checkpoint(run: Path) -> dict[str, np.ndarray]:
    """Read the compared tensors of a run's last checkpoint, by member and name."""
    folder = max((run / "checkpoints").glob("ckpt-*"))
    tensors = {}
    for member in MEMBERS:
        with np.load(folder / f"{member}.npz", allow_pickle=False) as arrays:
            tensors |= {f"{member}/{name}": arrays[name] for name in arrays.files}
    return tensors


def tensor_differences(here: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Describe every tensor that only one side has, or whose type, shape or bits differ."""
    for name in sorted(here.keys() | there.keys()):
        if name not in there or name not in here:
            yield f"{name}: only {'here' if name in here else 'there'}"
            continue
        a, b = here[name], there[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield f"{name}: {a.dtype}{list(a.shape)} here, {b.dtype}{list(b.shape)} there"
        elif a.tobytes() != b.tobytes():
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
            yield f"{name}: {int((a != b).sum())} of {a.size} values differ, by at most {gap:.3g}"


def run_differences(here: Path, there: Path) -> tuple[int, list[str]]:
    """Compare two run folders; return how many tensors were compared, and every difference."""
    tensors = last_checkpoint(here), last_checkpoint(there)
    differences = list(tensor_differences(*tensors))
    metrics = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (here, there)]
    if [{**row, "seconds": 0} for row in metrics[0]] != [{**row, "seconds": 0} for row in metrics[1]]:
        differences.append("metrics.jsonl: other rows")
    return len(tensors[0]), differences


def resume_both(trees: Sequence[Tree], case: Case, cwd: Path) -> list[str]:
    """Train in the other tree, then evaluate that run and resume it to twice the updates in both; compare figures."""
    train(trees[1], case, cwd / "start")
    figures = []
    for tree in trees:
        shutil.copytree(cwd / "start", cwd / tree.name)
        figures.append(tree.uavlab("evaluate", "run", "--episodes", str(EPISODES), cwd=cwd / tree.name))
        tree.uavlab("resume", "run", "--updates", str(2 * case.updates), cwd=cwd / tree.name)
    return ["evaluate: other figures"] * (figures[0] != figures[1])


def compare_case(trees: Sequence[Tree], case: Case, options: argparse.Namespace, cwd: Path) -> dict[str, Any]:
    """Compare one case and print its result; a failure counts as a difference."""
    began, count, reduced = time.monotonic(), 0, ""
    try:
        smaller = {} if options.whole else reductions(trees[0], case.preset, cwd)
        reduced = "".join(f"  {name}={value}" for name, value in smaller.items())
        case = replace(case, settings={**smaller, **case.settings})
        differences = resume_both(trees, case, cwd) if options.resume else []
        for tree in () if options.resume else trees:
            train(tree, case, cwd / tree.name)
        count, of_runs = run_differences(*(cwd / tree.name / "run" for tree in trees))
        differences += of_runs if count else ["no tensor was compared"]
    except (RuntimeError, OSError, ValueError) as error:
        differences = [str(error)]
    result, seconds = "DIFFERS" if differences else "equal bits", time.monotonic() - began
    print(f"{case.preset:28} {case.toggles:8} {case.updates:7} {count:7} {seconds:6.0f}  {result:10}{reduced}")
    print(*(f"    {text}\n" for text in differences), sep="", end="", flush=True)
    return {**asdict(case), "tensors": count, "differences": differences}


def compare_presets(trees: Sequence[Tree], options: argparse.Namespace, cwd: Path) -> list[dict[str, Any]]:
    """Compare all presets of both trees, or those asked for, under all sets of toggles."""
    presets = options.presets or list(dict.fromkeys(name for tree in trees for name in tree.uavlab("presets", cwd=cwd)))
    settings = dict(text.split("=", 1) for text in options.set)
    rows = []
    print(f"{'preset':28} {'toggles':8} {'updates':>7} {'tensors':>7} {'s':>6}  result")
    for toggles in options.sets:
        updates = options.updates or (UPDATES if toggles == "default" else UPDATES_OF_SETS)
        for preset in presets:
            with tempfile.TemporaryDirectory(dir=cwd) as folder:
                rows.append(compare_case(trees, Case(preset, updates, toggles, settings), options, Path(folder)))
    return rows


def compare_bench(trees: Sequence[Tree], options: argparse.Namespace, cwd: Path) -> list[dict[str, Any]]:
    """Run a bench suite in both trees in turn; print the median ratio of each time and rate, here over there.

    A time below 1 and a rate above 1 are better here.
    """
    suite, records = options.bench, {tree.name: [] for tree in trees}
    command = ["bench", *shlex.split(suite), "--device", "cpu", "--rounds", str(options.samples)]
    for number in range(options.rounds):
        for tree in trees if number % 2 else reversed(trees):
            records[tree.name].append(tree.uavlab(*command, cwd=cwd)["rows"])
    here, there = records.values()
    rows = []
    ends = "95 % interval of the median" if options.rounds >= ENOUGH else "least and greatest"
    print(f"{suite:40} {'figure':20} {'here / there':>12} [{ends}]")
    for at, first in enumerate(here[0]):
        label = " ".join(f"{key}={value}" for key, value in first.items() if key in ("agents", "setting", "path"))
        known = there[0][at] if at < len(there[0]) else {}  # another tree may measure less
        for key in (key for key in first if key in known and TIMES_AND_RATES.fullmatch(key) and key != "original_ms"):
            over = ratio(*([record[at][key] for record in records] for records in (here, there)))
            print(f"{label:40} {key:20} {over['median']:12.3f} [{over['low']:.3f}, {over['high']:.3f}]")
            rows.append({"suite": suite, "row": at, "label": label, "key": key, **over})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare as the command line asks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {"type": lambda text: text.split(","), "metavar": "NAME,..."}
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--presets", default=[], help="all if not given", **names)
    parser.add_argument("--sets", default=["default"], help="named sets of toggles; `default` leaves them", **names)
    parser.add_argument("--updates", type=int, help=f"{UPDATES}, with a named set {UPDATES_OF_SETS}, if not given")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every run")
    parser.add_argument("--whole", action="store_true", help="do not reduce worlds and flights of large presets")
    parser.add_argument("--resume", action="store_true", help="resume and evaluate runs of the other commit")
    parser.add_argument("--bench", metavar="SUITE", help="measure a bench suite, which options may follow")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each tree with --bench (%(default)s)")
    parser.add_argument("--samples", type=int, default=30, help="interleaved repetitions in each process (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write all rows to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="compare-trees-") as name:
        folder = Path(name).resolve()
        trees = (Tree("here", ROOT), Tree("there", folder / "tree"))
        try:
            checkout(options.commit, trees[1].root)
            for tree in trees:
                require_own_package(tree, folder)
            rows = (compare_bench if options.bench else compare_presets)(trees, options, folder)
        except RuntimeError as error:
            parser.error(str(error))
    if options.json:
        options.json.write_text(json.dumps({"commit": options.commit, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    different = sum(bool(row.get("differences")) for row in rows)
    print("" if options.bench else f"{len(rows) - different} of {len(rows)} equal to {options.commit}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
