"""Print the part of docs/gpu.md about what a GPU has run, from the records of ``gpu_check``; ``--write`` puts it there.

Records of dry runs are no GPU's, wherever they lie. ``tools/tables/gpu.md.j2`` has the words.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools import tables
from tools.gpu_check.groups import cycle_config, sizes_of
from tools.gpu_check.relations import contradictions
from tools.tables.records import RECORDS, ROOT
from uavlab.benchmarks import format_rows
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger

Record = dict[str, Any]
PAGE = ROOT / "docs" / "gpu.md"
MARKS = ("<!-- gpu: made by tools/gpu_page.py -->", "<!-- end of gpu -->")


def read(folder: Path = RECORDS) -> list[Record]:
    """Read the records of all CUDA devices, each with those of ``uavlab bench`` beside it."""
    records = []
    for path in sorted(folder.glob("gpu_check_*.json")):
        name = path.stem.removeprefix("gpu_check_")
        benches = [load(each) for each in sorted(folder.glob(f"bench_*_{name}.json"))]
        claims = [load(each) for each in folder.glob(f"claims_{name}.json")]
        records.append({**load(path), "benches": benches, "claims": claims})
    return [record for record in records if record["dry_run"] is False]


def load(path: Path) -> Record:
    return json.loads(path.read_text(encoding="utf-8"))


def block(records: Iterable[Record]) -> str:
    own = (summary, ended, untried, decided, ledger, contradicted, largest, replay_ms)
    tables.TEMPLATES.filters |= {"sized": sized, "cell": cell}
    text = tables.render("gpu", records=list(records), **{each.__name__: each for each in own})
    return "\n\n".join([MARKS[0], text, MARKS[1]])


def cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").replace("<", "&lt;").split())


def sized(case: Record) -> tuple[str, str]:
    """Return sizes and figure of a cycle; an older record does not say the sizes of its cycles."""
    figure, _, sizes = case["figure"].partition("; sizes: ")
    if not sizes:
        env, learner, _ = case["name"].split(", ", 2)
        sizes = sizes_of(cycle_config((env, learner), "cuda")).removeprefix("sizes: ") + " †"
    return sizes, figure


def summary(record: Record) -> list[str]:
    """Return what the record shows of updates and cycles in a line: how many times faster, and how busy the device."""
    lines = []
    for bench in record["benches"]:
        if bench["suite"] == "update":
            batched = [row for row in bench["rows"] if row["setting"] == "batched"]
            gains = ", ".join(f"{row['over_loop']:.2f}x" for row in batched)
            teams = ", ".join(str(row["agents"]) for row in batched)
            lines.append(f"a batched update is {gains} as fast as the loop, with {teams} agents, eager")
    figures = {case["name"]: case["figure"].split() for case in record["groups"].get("waits", {"cases": []})["cases"]}
    for name, words in figures.items():
        other = figures.get(name.replace("graph=off", "graph=cycle"))
        if name.endswith("graph=off") and words[1:2] == ["ms,"] and other:
            (slow, busy), (fast, busier) = ((float(each[0]), float(each[6])) for each in (words, other))
            share = f"the device is busy in {busy / slow:.0%} of the time without and {busier / fast:.0%} with it"
            lines.append(f"{name.removesuffix(', graph=off')}: graph=cycle is {slow / fast:.2f}x as fast, and {share}")
    return lines


def ended(record: Record, states: list[str]) -> list[tuple[str, ...]]:
    """Return group, name, state and message of the cases that ended in some states."""
    return [
        (name, case["name"], case["status"], case["message"])
        for name, group in record["groups"].items()
        for case in group["cases"]
        if case["status"] in states
    ]


def untried(record: Record) -> dict[str, Counter[str]]:
    """Return by group how many cases of which kind were not tried."""
    counts: dict[str, Counter[str]] = {}
    for group, name, *_ in ended(record, ["not tried"]):
        what = ", ".join(part.partition(" ")[0] for part in name.split(", ")[:2])  # environment and learner
        if group in ("environment", "claims"):
            what = "packages" if name.startswith("package") else group
        counts.setdefault(group, Counter())[what] += 1
    return counts


def decided(claims: Record) -> list[tuple[str, ...]]:
    """Return the verdicts that this device's record of claims gives, as cells."""
    rows = [row for row in report.rows(ledger(), claims) if row["machine"] == claims["machine"]["device"]]
    return [report.texts(row) for row in rows if row["verdict"] not in report.UNDECIDED]


def contradicted(bench: Record) -> Record:
    """Return the table of a record, without columns that compare with another machine, and what contradicts in it."""
    rows = [{key: value for key, value in row.items() if "original" not in key} for row in bench["rows"]]
    shown, notes = [dict(row) for row in rows], []
    for wrong in contradictions(bench["suite"], rows):
        key, (less, more) = wrong["key"], (rows[wrong[name]] for name in ("less", "more"))
        shown[wrong["less"]][key] = shown[wrong["more"]][key] = "contradicts"
        notes.append(f"{key} {more[key]:,} of {described(more)}, beside {less[key]:,} of {described(less)}")
    return {"table": "\n".join(line.rstrip() for line in format_rows(shown).splitlines()), "notes": notes}


def described(row: Record) -> str:
    return ", ".join(f"{row[key]} {key}" for key in ("agents", "worlds") if key in row) + f": {row['setting']}"


def largest(rows: list[Record]) -> str:
    """Return the rows of the most UAVs in the largest batch."""
    most = max((row["uavs"], row["batch"]) for row in rows)
    return format_rows([row for row in rows if (row["uavs"], row["batch"]) == most])


def replay_ms(bench: Record) -> dict[str, float]:
    """Return the times of each structure of priorities."""
    return {row["structure"]: row["total_ms"] for row in bench["rows"]}


if __name__ == "__main__":
    if "--write" in sys.argv:
        tables.put(PAGE, block(read()), *MARKS)
    else:
        print(block(read()))
