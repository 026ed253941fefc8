"""Print the part of docs/gpu.md about what a GPU has run, from the records of ``gpu_check``; ``--write`` puts it there.

Records of dry runs are no GPU's, wherever they lie.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uavlab.benchmarks.registry import format_rows

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "figures" / "records"
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- gpu: made by tools/gpu_page.py -->", "<!-- end of gpu -->"
NONE = (
    "**No GPU has run this code: `figures/records` holds no record of a CUDA device.** What stands in its place: CUDA "
    "graphs ran on an emulator on a CPU (`tests/proofs/test_graph_runs.py`), placement of tensors on a fake device "
    "of the CPU (`tests/proofs/test_fake_device.py`), and the bodies of the tests marked `gpu` on the CPU "
    "(`tests/proofs/test_gpu.py`). None of them shows a speed, the rounding of a GPU's kernels, its memory, or what "
    "happens on several streams."
)
STATES = ("ok", "failed", "fell back", "not tried")
SHOWN = ("failed", "fell back")


def read(folder: Path = RECORDS) -> list[Record]:
    """Read the records of all CUDA devices, each with those of ``uavlab bench`` beside it."""
    records = []
    for path in sorted(folder.glob("gpu_check_*.json")):
        name = path.stem.removeprefix("gpu_check_")
        benches = [_read(each) for each in sorted(folder.glob(f"bench_*_{name}.json"))]
        records.append({**_read(path), "benches": benches})
    return [record for record in records if record["dry_run"] is False]


def _read(path: Path) -> Record:
    return json.loads(path.read_text(encoding="utf-8"))


def block(records: Iterable[Record]) -> str:
    """Return the text between the marks."""
    parts = [part for record in records for part in device(record)] or [NONE]
    return "\n\n".join([BEGIN, *parts, END])


def device(record: Record) -> list[str]:
    """Return what one device has run: a table by group, each case that failed or fell back, and what was measured."""
    machine, lines = record["machine"], ["| group | shows | ok | failed | fell back | not tried | code |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    cases, cycles = [], []
    for name, group in record["groups"].items():
        counts = Counter(case["status"] for case in group["cases"])
        numbers = " | ".join(str(counts[state]) for state in STATES)
        lines.append(f"| {name} | {group['about']} | {numbers} | {group.get('code') or 'unknown'} |")
        cases += [f"| {name} | {row(case)} |" for case in group["cases"] if case["status"] in SHOWN]
        if name == "waits":
            cycles = [f"| {case['name']} | {case['figure']} |" for case in group["cases"] if case["figure"]]
    parts = [f"**{machine['device']}**, torch {machine['torch']}, Python {machine['python']}:", "\n".join(lines)]
    parts.append("A code is the digest of the package that `uavlab bench` writes into records.")
    if cases:
        parts.append("\n".join(["| group | case | status | message |", "| --- | --- | --- | --- |", *cases]))
    if cycles:
        parts.append("\n".join(["| cycle | time and waits |", "| --- | --- |", *cycles]))
    if left := [line for name, group in record["groups"].items() if (line := untried(name, group["cases"]))]:
        parts.append("Not tried, with the number of cases:\n\n" + "\n".join(left))
    return [*parts, *(part for bench in record["benches"] for part in measured(bench))]


def untried(group: str, cases: Iterable[Record]) -> str:
    """Return what was not tried of a group, by kind, as a line of a list; empty if all was."""
    counts = Counter(kind(group, case["name"]) for case in cases if case["status"] == "not tried")
    return f"- {group}: " + "; ".join(f"{what} {count}" for what, count in counts.items()) if counts else ""


def kind(group: str, name: str) -> str:
    """Return of a case what several share: environment and learner, or what a group consists of."""
    if group in ("environment", "claims"):
        return "packages" if name.startswith("package") else group
    return ", ".join(part.partition(" ")[0] for part in name.split(", ")[:2])


def measured(bench: Record) -> list[str]:
    """Return a record of ``uavlab bench`` as a table, without columns that compare with another machine."""
    rows = [{key: value for key, value in row.items() if "original" not in key} for row in bench["rows"]]
    table = "\n".join(line.rstrip() for line in format_rows(rows).splitlines())
    how = f"Suite {bench['suite']}, {bench['rounds']} rounds: `{bench['command']}`"
    how += ", load {load} before, {cores} cores, code {code}".format(**bench["machine"])
    fell = [f"{row['setting']}: {', '.join(row['fell_back'])}" for row in rows if row.get("fell_back")]
    return [f"{how}{'; fell back: ' * bool(fell)}{'; '.join(fell)}:\n\n```\n{table}\n```"]


def row(case: Mapping[str, Any]) -> str:
    """Return a case as cells of a table."""
    cells = (case["name"], case["status"], case["message"])
    return " | ".join(" ".join(str(cell).replace("|", "\\|").replace("<", "&lt;").split()) for cell in cells)


def write() -> None:
    """Put the text into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.split(BEGIN)[0] + block(read()) + text.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(block(read()))
