"""Print what a reader follows: the frames of one training cycle, and the files of the package that name a setting.

    python -m tools.walk        a cycle of leader_follower_quick, batched and eager; the setting is ``batch``

A frame is a call of a function of ``uavlab``; a move is a call in another file than that of the call before it. The
cycle is one whose functions were all called before, so that nothing is built for the first time.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import uavlab
from uavlab.experiment import build
from uavlab.experiment.config import configure
from uavlab.training import make_cycle

PACKAGE = Path(uavlab.__file__).parent
SMALL = {"worlds": 4, "batch": 32, "learning_starts": 64}
WARM_UP = 3  # cycles


def walk(function: Callable[[], Any]) -> list[str]:
    """Call a function, and return the file of each call of a function of the package, in order."""
    files: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.append(str(path.relative_to(PACKAGE)))

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files


def walk_cycle() -> dict[str, list[str]]:
    """Return the walk of one cycle of a small run, and that of an update of its learner."""
    rt, rng, learner, source = build.assemble(configure("leader_follower_quick", SMALL))
    with rt.scope():
        cycle = make_cycle(source, learner, rng, rt)
        for _ in range(WARM_UP):
            cycle()
        batch = source.next()
        noise = learner.update_noise(rng, batch.index.shape[1])
        return {"cycle": walk(cycle), "update": walk(lambda: learner.update(batch, noise))}


def moves(files: list[str]) -> int:
    """Return how often a call is in another file than the call before it."""
    return sum(before != after for before, after in pairwise(files))


def files_that_name(setting: str) -> list[str]:
    """Return the files of the package, without the algorithms in one file, that name a setting by text or attribute."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = [] if "lean" in path.parts else list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        fields = {
            ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign) and "Ge(" in ast.unparse(node)
        }
        if setting in texts | attributes | fields:
            found.append(str(path.relative_to(PACKAGE)))
    return found


if __name__ == "__main__":
    for name, files in walk_cycle().items():
        print(f"{name}: {len(files)} frames, {len(set(files))} files, {moves(files)} moves")
        print(*(f"  {count:4} {file}" for file, count in Counter(files).most_common()), sep="\n")
    print("batch:", *files_that_name("batch"), sep="\n  ")
