"""What a reader follows: the frames of one training cycle, and the files that know a setting.

    python -m tools.walk                           a cycle of leader_follower_quick, batched and eager
    python -m tools.walk --set update=loop         another form of it
    python -m tools.walk --lines                   each call, indented by its depth

A frame is a call of a function of ``uavlab``; a move is a call into another file than that of the call before it. The
cycle is one whose functions were all called before, so that nothing is built or checked for the first time.
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import uavlab
from uavlab.experiment import build
from uavlab.experiment.config import configure, parse_setting
from uavlab.training import make_cycle

PACKAGE = Path(uavlab.__file__).parent
PRESET, SMALL = "leader_follower_quick", {"worlds": 4, "batch": 32, "learning_starts": 64}
WARM_UP = 3


@dataclass
class Walk:
    """Calls of functions of the package, in order."""

    calls: list[tuple[int, str, str]] = field(default_factory=list)  # depth, file, function

    @property
    def files(self) -> Counter[str]:
        """How often a function of each file was called."""
        return Counter(file for _, file, _ in self.calls)

    @property
    def moves(self) -> int:
        """How often a call is in another file than the call before it."""
        files = [file for _, file, _ in self.calls]
        return sum(before != after for before, after in pairwise(files))

    def __str__(self) -> str:
        """Return frames, files, moves and depth as text."""
        deepest = max((depth for depth, _, _ in self.calls), default=0)
        return f"{len(self.calls)} frames, {len(self.files)} files, {self.moves} moves, deepest {deepest}"


def walk(function: Callable[[], Any]) -> Walk:
    """Call a function and record the functions of the package that it calls."""
    result, depth = Walk(), 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal depth
        if event not in ("call", "return"):
            return
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return
        if event == "return":
            depth -= 1
            return
        depth += 1
        result.calls.append((depth, str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return result


def walk_cycle(settings: dict[str, Any]) -> tuple[Walk, Walk]:
    """Return the walk of one cycle of a small run, and that of the learner's update in it."""
    config = configure(PRESET, SMALL, settings)
    rt, rng, learner, source = build.assemble(config)
    with rt.scope():
        cycle = make_cycle(source, learner, rng, rt)
        for _ in range(WARM_UP):
            cycle()
        whole = walk(cycle)
        batch = source.next()
        noise = learner.update_noise(rng, batch.index.shape[1])
        return whole, walk(lambda: learner.update(batch, noise))


def files_that_name(setting: str) -> list[str]:
    """Return the files of the package that name a setting: as a field, a keyword, an attribute or a text."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "lean" in path.parts:  # which has nothing of the package
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = isinstance(node, ast.Constant) and node.value == setting
            attribute = isinstance(node, ast.Attribute) and node.attr == setting
            declared = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == setting
            if text or attribute or (declared and "Ge(" in ast.unparse(node.annotation)):
                found.append(str(path.relative_to(PACKAGE)))
                break
    return found


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting; repeatable")
    parser.add_argument("--lines", action="store_true", help="print each call")
    parser.add_argument("--setting", default="batch", help="setting whose files are listed")
    chosen = parser.parse_args()
    cycle, update = walk_cycle(dict(parse_setting(text) for text in chosen.set))
    if chosen.lines:
        print(*(f"{'  ' * depth}{file}: {function}" for depth, file, function in cycle.calls), sep="\n")
    for name, walked in (("cycle", cycle), ("update", update)):
        print(f"{name}: {walked}")
        print(*(f"  {count:4} {file}" for file, count in walked.files.most_common()), sep="\n")
    files = files_that_name(chosen.setting)
    print(f"{chosen.setting}: named in {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
