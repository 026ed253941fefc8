"""Draw small changes of the package by a seed, and run the tests that belong to the changed files on each.

    python -m tools.mutants draw --seed 46 --count 60    writes tests/mutants.json anew
    python -m tools.mutants run [--only 3,7]             fills in which test caught each of them

A mutant changes one line: a comparison, a sign, a number, an operand, a branch, a keyword or a statement. It is known
by the text of its line, so that the list can be run on a later tree. The exit code of ``run`` is 1 if a mutant is
neither caught nor argued to be equivalent (``equivalent`` in the list), or if its line is no longer there.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "mutants.json"
NO_LINE = "no such line"
INTERRUPTED, NO_TESTS = 2, 5  # exit codes of pytest; a file may have tests that are all soak
LIMIT = 900  # seconds of one step of tests; a mutant that hangs is caught
ACTING, EQUALITY = "tests/contracts/test_acting.py", "tests/contracts/test_equality.py"
AREAS: dict[str, tuple[list[str], list[str]]] = {  # files of the core, and the tests beside those that mirror them
    "toggles": (["runtime"], [ACTING, EQUALITY]),
    "replay": (["replay", "ops/sum_tree.py"], ["tests/unit/collectors", ACTING, EQUALITY]),
    "collecting": (["collectors", "training.py"], ["tests/contracts/test_flow.py", ACTING, EQUALITY]),
    "networks": (["nets", "ops/action_sampling.py"], ["tests/contracts/test_learners.py", EQUALITY]),
    "learners": (["learners", "ops/returns.py", "ops/schedules.py"], ["tests/contracts/test_learners.py", EQUALITY]),
    "runs": (["experiment"], ["tests/contracts/test_ranks.py", "tests/contracts/test_choosing.py"]),
    "environments": (["envs", "ops/geometry.py", "ops/belief_maps.py"], ["tests/contracts/test_envs.py"]),
}
COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield kinds of changes of a node, and what takes its place."""
    new: Any = copy.deepcopy(node)
    match new:
        case ast.Compare():
            new.ops[0] = COMPARISONS[type(new.ops[0])]()
            yield "comparison", new
        case ast.BinOp(op=op) if type(op) in SIGNS:
            new.op = SIGNS[type(op)]()
            yield "sign", new
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "control", new
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign", new.operand
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
            yield "control", new
        case ast.If():
            yield "control", ast.Constant(value=True)
        case ast.Constant(value=bool(value)):
            yield "number", ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            yield "number", ast.Constant(value=value + 1)
        case ast.Constant(value=float(value)):
            yield "number", ast.Constant(value=value * 2 if value else 1.0)
        case ast.Call(keywords=[_, *_]):
            yield "keyword", ast.Call(new.func, new.args, new.keywords[:-1])
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement", ast.Pass()


def sites(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes that decide about numbers or control, none of annotations, messages, decorators or strings."""
    for name, field in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.JoinedStr):
            continue
        for node in field if isinstance(field, list) else [field]:
            if isinstance(node, ast.AST):
                yield node
                yield from sites(node)


def mutants_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all mutants of a file whose change lies within one line."""
    source = path.read_text()
    lines = source.splitlines()
    for node in sites(ast.parse(source)):
        for kind, new in changes(node):
            old: Any = node.test if isinstance(node, ast.If) else node
            if old.lineno == old.end_lineno:
                before = lines[old.lineno - 1].encode()
                text = ast.unparse(new) if isinstance(new, ast.stmt | ast.Constant) else f"({ast.unparse(new)})"
                after = before[: old.col_offset] + text.encode() + before[old.end_col_offset :]
                row = {"file": str(path.relative_to(ROOT)), "line": old.lineno, "kind": kind}
                yield {**row, "before": before.decode(), "after": after.decode()}


def draw(seed: int, count: int) -> list[dict[str, Any]]:
    """Draw mutants, as many of each area, of as many kinds as there are, at most one of a line."""
    rng, lines = random.Random(seed), set()
    drawn: list[dict[str, Any]] = []
    while len(drawn) < count:
        area = list(AREAS)[len(drawn) % len(AREAS)]
        places = [ROOT / "uavlab" / name for name in AREAS[area][0]]
        files = [path for place in places for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
        choices = [row for path in files for row in mutants_of(path) if (row["file"], row["line"]) not in lines]
        kind = rng.choice(sorted({row["kind"] for row in choices}))
        row = rng.choice([row for row in choices if row["kind"] == kind])
        lines.add((row["file"], row["line"]))
        drawn.append({"area": area, **row})
    return drawn


def mutate(source: str, mutant: dict[str, Any]) -> str | None:
    """Change the line of the mutant's text, the nearest to where it was; None if there is none."""
    lines = source.splitlines()
    at = [number for number, line in enumerate(lines, 1) if line == mutant["before"]]
    if not at:
        return None
    lines[min(at, key=lambda number: abs(number - mutant["line"])) - 1] = mutant["after"]
    return "\n".join(lines) + "\n"


def catch(mutant: dict[str, Any], tree: Path) -> str | None:
    """Return the test that fails: of the file, else of its folder, else of its area; None if all pass."""
    path = Path(mutant["file"])
    folder = Path("tests", "unit", *path.parts[1:-1])
    for tests in ([str(folder / f"test_{path.name}")], [str(folder)], AREAS[mutant["area"]][1]):
        present = [name for name in tests if (tree / name).exists()]
        if not present:
            continue
        words = [sys.executable, "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider", "-m", "not soak", *present]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "notebooks")))}
        try:
            done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT} s: {' '.join(present)}"
        if done.returncode not in (0, NO_TESTS):
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            if not failed and done.returncode == INTERRUPTED:
                return f"{' '.join(present)}: a test is interrupted"
            if not failed:
                raise RuntimeError(f"{' '.join(present)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            return failed[0].partition(" ")[2].partition(" - ")[0]
    return None


def write(record: dict[str, Any]) -> None:
    """Write the list, a mutant in a line."""
    rows = ",\n".join(json.dumps(row) for row in record["mutants"])
    head = json.dumps({name: value for name, value in record.items() if name != "mutants"})[:-1]
    LIST.write_text(f'{head}, "mutants": [\n{rows}\n]}}\n')


def run(only: set[int]) -> int:
    """Run the tests on each mutant, and write what caught it after each."""
    record = json.loads(LIST.read_text())
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in names.split("\0")[:-1]:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        for number, mutant in enumerate(record["mutants"]):
            if not only or number in only:
                path = tree / mutant["file"]
                source = path.read_text() if path.exists() else ""
                if changed := mutate(source, mutant):
                    path.write_text(changed)
                    mutant["caught_by"] = catch(mutant, tree)
                    path.write_text(source)
                else:
                    mutant["caught_by"] = NO_LINE
                print(f"{number} {mutant['file']}:{mutant['line']}: {mutant['caught_by']}", flush=True)
                write(record)
    done = [mutant.get("caught_by") or mutant.get("equivalent") for mutant in record["mutants"]]
    return int(not all(done) or NO_LINE in done)


def main(words: list[str]) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("draw")
    new.add_argument("--seed", type=int, required=True)
    new.add_argument("--count", type=int, default=60)
    commands.add_parser("run").add_argument("--only", default="", help="numbers from 0, such as 3,7")
    given = parser.parse_args(words)
    if given.command == "run":
        return run({int(number) for number in given.only.split(",") if number})
    mutants = draw(given.seed, given.count)
    write({"seed": given.seed, "count": given.count, "mutants": mutants})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
