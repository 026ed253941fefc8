"""Print the part of docs/gpu.md about what a GPU has run, from the records of ``gpu_check``; ``--write`` puts it there.

Records of dry runs are no GPU's, wherever they lie.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.gpu_check.groups import cycle_config, sizes_of
from tools.gpu_check.relations import contradictions
from uavlab.benchmarks import format_rows
from uavlab_lab.claims import report
from uavlab_lab.claims.ledger import ledger

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
SIZES = {  # of suites whose older records do not say them
    "env": "sizes by the code: `leader_follower`, 64 steps in each timed round, pools of fresh worlds included",
    "guard": "sizes by the code: 5 cycles in each timed round, 64 worlds, batch 128, hidden 128",
    "missions": "sizes by the code: 4 UAVs, 493 x 493 cells, the published network; one training step",
    "update": "sizes by the code: batch 128, hidden 256, an actor for each agent, targets of one step",
}


def read(folder: Path = RECORDS) -> list[Record]:
    """Read the records of all CUDA devices, each with those of ``uavlab bench`` beside it."""
    records = []
    for path in sorted(folder.glob("gpu_check_*.json")):
        name = path.stem.removeprefix("gpu_check_")
        benches = [_read(each) for each in sorted(folder.glob(f"bench_*_{name}.json"))]
        claims = [_read(each) for each in folder.glob(f"claims_{name}.json")]
        records.append({**_read(path), "benches": benches, "claims": claims})
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
            cycles = [f"| {case['name']} | {sized(case)} |" for case in group["cases"] if case["figure"]]
    parts = [f"**{machine['device']}**, torch {machine['torch']}, Python {machine['python']}:", "\n".join(lines)]
    parts.append("A code is the digest of the package that `uavlab bench` writes into records.")
    if lead := summary(record):
        parts.insert(1, "In short: " + "; ".join(lead) + ".")
    if cases:
        parts.append("\n".join(["| group | case | status | message |", "| --- | --- | --- | --- |", *cases]))
    if cycles:
        parts.append("\n".join(["| cycle | sizes | time and waits |", "| --- | --- | --- |", *cycles]))
        if any("†" in line for line in cycles):
            parts.append("† Sizes are those of the check's configuration; this record does not say them.")
    if left := [line for name, group in record["groups"].items() if (line := untried(name, group["cases"]))]:
        parts.append("Not tried, with the number of cases:\n\n" + "\n".join(left))
    parts += [part for claims in record["claims"] for part in decided(claims)]
    return [*parts, *(part for bench in record["benches"] for part in measured(bench))]


def sized(case: Record) -> str:
    """Return sizes and figure of a cycle as cells; an older record does not say the sizes of its cycles."""
    figure, _, sizes = case["figure"].partition("; sizes: ")
    if not sizes:
        env, learner, _ = case["name"].split(", ", 2)
        sizes = sizes_of(cycle_config((env, learner), "cuda")).removeprefix("sizes: ") + " †"
    return f"{sizes} | {figure}"


def summary(record: Record) -> list[str]:
    """Return what the record shows of updates and cycles in a line: how many times faster, and how busy the device."""
    lines = []
    for bench in record["benches"]:
        if bench["suite"] == "update":
            gains = ", ".join(f"{row['over_loop']:.2f}x" for row in bench["rows"] if row["setting"] == "batched")
            teams = ", ".join(str(row["agents"]) for row in bench["rows"] if row["setting"] == "batched")
            lines.append(f"a batched update is {gains} as fast as the loop, with {teams} agents, eager")
    figures = {case["name"]: case["figure"].split() for case in record["groups"].get("waits", {"cases": []})["cases"]}
    for name, words in figures.items():
        other = figures.get(name.replace("graph=off", "graph=cycle"))
        if name.endswith("graph=off") and words[1:2] == ["ms,"] and other:
            (slow, busy), (fast, busier) = ((float(each[0]), float(each[6])) for each in (words, other))
            share = f"the device is busy in {busy / slow:.0%} of the time without and {busier / fast:.0%} with it"
            lines.append(f"{name.removesuffix(', graph=off')}: graph=cycle is {slow / fast:.2f}x as fast, and {share}")
    return lines


def decided(claims: Record) -> list[str]:
    """Return the verdicts that this device's record of claims gives, as a table."""
    rows = [row for row in report.rows(ledger(), claims) if row["machine"] == claims["machine"]["device"]]
    rows = [row for row in rows if row["verdict"] not in report.UNDECIDED]
    lines = [f"| {' | '.join(report.texts(row))} |" for row in rows]
    head = ["| claim | claimed | device | measured | verdict |", "| --- | --- | --- | --- | --- |"]
    note = f"Claims that this record decides, {len(rows)} of {len(ledger())}; those of utilisation for this program."
    return [note, "\n".join([*head, *lines])] if rows else []


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
    shown, notes = [dict(row) for row in rows], []
    for wrong in contradictions(bench["suite"], rows):
        key, (less, more) = wrong["key"], (rows[wrong[name]] for name in ("less", "more"))
        for name in ("less", "more"):
            shown[wrong[name]][key] = "contradicts"
        notes.append(f"{key} {more[key]:,} of {described(more)}, beside {less[key]:,} of {described(less)}")
    table = "\n".join(line.rstrip() for line in format_rows(shown).splitlines())
    how = f"Suite {bench['suite']}, {bench['rounds']} rounds: `{bench['command']}`"
    how += ", load {load} before, {cores} cores, code {code}".format(**bench["machine"])
    fell = [f"{row['setting']}: {', '.join(row['fell_back'])}" for row in rows if row.get("fell_back")]
    sizes = ", ".join(f"{name} {value}" for name, value in bench.get("sizes", {}).items())
    how += f"; sizes: {sizes}" if sizes else f"; {SIZES[bench['suite']]}" if bench["suite"] in SIZES else ""
    parts = [f"{how}{'; fell back: ' * bool(fell)}{'; '.join(fell)}:\n\n```\n{table}\n```"]
    if notes:
        wrong = "; ".join(notes)
        parts.append(f"**This record contradicts itself**: more work was faster. {wrong}. None is a figure to quote.")
    if networks := bench.get("networks"):
        parts.append(f"Its networks, of the largest teams and batches:\n\n```\n{format_rows(largest(networks))}\n```")
    return parts + replay_in_words(bench)


def described(row: Record) -> str:
    """Return which row it is."""
    return ", ".join(f"{row[key]} {key}" for key in ("agents", "worlds") if key in row) + f": {row['setting']}"


def largest(rows: list[Record]) -> list[Record]:
    """Return the rows of the most UAVs in the largest batch."""
    most = max((row["uavs"], row["batch"]) for row in rows)
    return [row for row in rows if (row["uavs"], row["batch"]) == most]


def replay_in_words(bench: Record) -> list[str]:
    """Return which structure of priorities is the fastest, where it is not the one that runs have."""
    ms = {row["structure"]: row["total_ms"] for row in bench["rows"] if bench["suite"] == "replay"}
    if not ms or ms["wide"] <= ms["cumsum"]:
        return []
    return [
        f"With priorities, sums over all rows at each draw (`cumsum`, {ms['cumsum']:.2f} ms) are "
        f"{ms['wide'] / ms['cumsum']:.1f}x as fast here as the tree that runs have (`wide`, {ms['wide']:.2f} ms), the "
        "other way round than on a CPU. The tree also guards and counts, so the true ratio is smaller. Runs have the "
        "tree on every device."
    ]


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
