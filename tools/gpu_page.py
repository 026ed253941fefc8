"""Print the part of docs/gpu.md about what a GPU has run, from the records of ``gpu_check``; ``--write`` puts it there.

Records of dry runs are no GPU's, wherever they lie.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def read(folder: Path = RECORDS) -> list[dict[str, Any]]:
    """Read the records of all CUDA devices."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("gpu_check_*.json"))]
    return [record for record in records if record["dry_run"] is False]


def block(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the text between the marks."""
    parts = [part for record in records for part in device(record)] or [NONE]
    return "\n\n".join([BEGIN, *parts, END])


def device(record: Mapping[str, Any]) -> list[str]:
    """Return what one device has run: a table by group, and each case that failed or fell back."""
    machine, lines = record["machine"], ["| group | shows | ok | failed | fell back | not tried | commit |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    cases = []
    for name, group in record["groups"].items():
        counts = Counter(case["status"] for case in group["cases"])
        numbers = " | ".join(str(counts[state]) for state in STATES)
        commit = (group["commit"] or "unknown")[:8] + "*" * bool(group["dirty"])
        lines.append(f"| {name} | {group['about']} | {numbers} | {commit} |")
        cases += [f"| {name} | {row(case)} |" for case in group["cases"] if case["status"] in SHOWN]
    parts = [f"**{machine['device']}**, torch {machine['torch']}, Python {machine['python']}:", "\n".join(lines)]
    if any(group["dirty"] for group in record["groups"].values()):
        parts.append("\\* with changes that were not committed.")
    if cases:
        parts.append("\n".join(["| group | case | status | message |", "| --- | --- | --- | --- |", *cases]))
    return parts


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
