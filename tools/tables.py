"""Print the tables of README and RELIABILITY from figures/records; ``--write`` puts them into their files.

A record names its machine, its commit and the command that makes it; that of the claims, one for each of its rows.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from uavlab.bench.claims import report
from uavlab.bench.claims.ledger import ledger
from uavlab.lab.plots.charts import interval

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "figures" / "records"
MARKS = {
    "README.md": ("<!-- tables: made by tools/tables.py -->", "<!-- end of tables -->"),
    "RELIABILITY.md": ("<!-- proofs: made by tools/tables.py -->", "<!-- end of proofs -->"),
}
CLAIMS = (  # of those about speed, the ones that stand for the others
    *("cached-forwards", "merged-backward", "stage-1", "amp-speed", "prefetch", "batched-acting", "compile", "total"),
    *("more-agents-gain-more", "interval-10", "slow-env"),
)
PUBLISHED_MAPS = (
    ("COMA, 50 missions", "0.284 ± 0.041", "0.786 ± 0.031"),
    ("information gain, 20 missions", "0.515 ± 0.080", "0.771 ± 0.027"),
    ("random, 20 missions", "0.733 ± 0.068", "0.647 ± 0.058"),
)
PUBLISHED = ("published MASAC, sampled actions", "0.85 *", "0.32", "265", "454", "294")


def read(name: str) -> dict[str, Any]:
    """Read one record."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Lay rows out as a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(row: dict[str, Any], key: str, shape: str) -> str:
    """Write a mean with its interval."""
    value = row[key]
    return f"{value['mean']:{shape}} [{value['low']:{shape}}, {value['high']:{shape}}]"


def published() -> str:
    """Tell how our teams do in the published test."""
    rows = [PUBLISHED]
    for name, label in (("published_sampled", "sampled actions"), ("published_mean", "mean action")):
        record = read(name)
        for row, trained in zip(record["rows"], record["trained"], strict=True):
            title = f"ours, seed {trained['seeds'][0]}, {label}, {trained['seconds'] / 60:.0f} min of training"
            columns = (("completion", ".3f"), ("formation_strict", ".2f"), ("flight_time", ".0f"), ("path", ".0f"))
            rows.append((title, *(figure(row, *c) for c in columns), figure(row, "energy", ".0f")))
    head = ("the published test: 1 + 4, 0.1 s steps", "completion", "strict formation", "steps", "path (px)", "energy")
    return grid(head, rows)


def quick() -> str:
    """Tell what the quick preset reaches, and what twelve minutes add."""
    rows = []
    for name, label in (("quick", "8 000 updates"), ("quick_12_minutes", "12 minutes")):
        record = read(name)
        for row, trained in zip(record["rows"], record["trained"], strict=True):
            title = f"`leader_follower_quick`, {label}, seed {trained['seeds'][0]}"
            seconds = f"{trained['seconds']:.0f}"
            rows.append((title, seconds, figure(row, "completion", ".3f"), figure(row, "formation_strict", ".2f")))
    return grid(("1 + 1, 1 s steps", "training (s)", "completion", "strict formation"), rows)


def update() -> str:
    """Tell what batching an update buys over the loop."""
    rows = read("bench_update")["rows"]
    table = []
    for loop, batched in zip(rows[::2], rows[1::2], strict=True):
        ratio = f"**{batched['batched_over_loop']:.2f}x**"
        operators = f"{loop['ops']:,} / {batched['ops']:,}"
        times = (f"{loop['original_ms']:.1f}", f"{loop['ms']:.1f}", f"{batched['ms']:.1f}")
        table.append((str(loop["agents"]), *times, ratio, operators))
    head = ("agents", "original program † (ms)", "loop (ms)", "batched (ms)", "batched over loop", "operators")
    return grid(head, table)


def ladder() -> str:
    """Tell what the best setting here brings over the plain loop, and which part of this machine it uses."""
    found, rows = read("bench_ladder")["rows"], []
    for loop in (row for row in found if row["setting"] == "loop"):
        same = [row for row in found if (row["agents"], row["threads"]) == (loop["agents"], loop["threads"])]
        (best,) = (row for row in same if row["best"])
        exact = min((row for row in same if "bf16" not in row["setting"]), key=lambda row: row["ms"])
        times = (f"{row['ms']:.1f}" for row in (loop, exact, best))
        paid = best["paid_back"]
        repaid = "never" if paid is None else f"{paid:,} updates" if paid else "at once"
        who = (str(loop["agents"]), str(loop["threads"]))
        rows.append((*who, *times, f"**{best['over_loop']:.2f}x**", best["setting"], f"{exact['share']:.0%}", repaid))
    head = ("agents", "threads", "loop (ms)", "best in fp32 (ms)", "best (ms)", "best over loop", "which is")
    return grid((*head, "fp32: share of its ceiling", "warm-up repaid after"), rows)


def told_claims() -> str:
    """Tell of the claims about speed what was measured here, and how all of them fared."""
    record = read("claims_intel-xeon-processor-2-cores")
    rows = report.rows(ledger(), record)
    verdicts = Counter(row["verdict"] for row in rows)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    table = report.markdown(report.HEAD, (report.texts(row) for row in rows if row["claim"] in CLAIMS))
    return f"{table}\n\nOf {len(rows)} claims: {counts}. A verdict may rest on arithmetic; then its note says so."


def env() -> str:
    """Tell how many agents step in a second."""
    rows = [
        (row["setting"], str(row["agents"]), str(row["worlds"]), f"{row['agent_steps_per_s'] / 1e6:.1f} million")
        for row in read("bench_env")["rows"]
    ]
    return grid(("`advance`, whole", "agents", "worlds", "agent-steps per second"), rows)


def mapping() -> str:
    """Tell what a learned team leaves unknown, beside plans and what was published."""
    learned = read("mapping_quick")
    (row,), (trained,) = learned["rows"], learned["trained"]
    minutes = f"{trained['seconds'] / 60:.0f} min of training"
    rows = [(f"`mapping_quick`, {minutes}", figure(row, "entropy", ".3f"), figure(row, "f1", ".3f"))]
    for plan, title in (("information_gain", "information gain"), ("sweep", "sweep"), ("random", "random")):
        (row,) = read(f"mapping_{plan}")["rows"]
        rows.append((title, figure(row, "entropy", ".3f"), figure(row, "f1", ".3f")))
    for title, entropy, f1 in PUBLISHED_MAPS:
        rows.append((f"published: {title} ‡", entropy, f1))
    return grid(("4 UAVs, 15 measurements each, 50 missions", "weighted entropy (bit)", "F1"), rows)


def maps() -> str:
    """Tell what a team step costs, and a training step."""
    found = read("bench_maps")["rows"]
    rows = [
        (
            row["path"],
            row["setting"],
            str(row["missions"]),
            f"{row['team_step_ms']:.1f}",
            f"**{row['over_host']:.1f}x**",
        )
        for row in found
    ]
    memory = f"{found[-1]['bytes_per_mission'] / 2**20:.1f} MiB of state per mission."
    steps = [
        (row["setting"], f"{row['s']:.1f}", f"{row['s_per_300']:.1f}", f"{row['over_plain']:.1f}x")
        for row in read("bench_missions")["rows"]
    ]
    head = ("maps", "setting", "missions", "team step (ms per mission)", "over the host")
    return "\n\n".join(
        (
            grid(head, rows),
            f"`uavlab bench maps`: 493 x 493 cells, 4 UAVs, without the policy; {memory}",
            grid(
                ("published network, 336 moves, 5 passes", "training step (s)", "per 300 moves (s)", "over plain"),
                steps,
            ),
            "`uavlab bench missions`. The published program took 13.0 s per 300 moves on one core of another machine.",
        )
    )


def telemetry() -> str:
    """Tell how well hidden states are told of flights never seen, beside a linear regression."""
    learned, linear = read("telemetry_full"), read("telemetry_ridge")["rows"][0]
    titled = [
        (f"`telemetry_full`, seed {trained['seeds'][0]}, {trained['seconds'] / 60:.0f} min of training", row)
        for row, trained in zip(learned["rows"], learned["trained"], strict=True)
    ]
    targets = list(linear["r2"])
    rows = [
        (title, f"**{row['mean_r2']['mean']:.3f}**", *(f"{row['r2'][target]['mean']:.2f}" for target in targets))
        for title, row in (*titled, ("ridge regression on the same windows", linear))
    ]
    head = [target.replace("_", " ") for target in targets[:-1]]
    return grid(("R² on 90 unseen flights", "mean", *head, "error in 0.5 s"), rows)


def physics() -> str:
    """Tell what equations of flight in the loss are worth where flights are few."""
    without, with_it = (read(f"telemetry_{name}")["rows"][0]["mean_r2"]["each"] for name in ("tenth", "physics"))
    mean, low, high = interval([b - a for a, b in zip(without, with_it, strict=True)])
    return (
        f"Equations of flight in the loss (`--set physics=0.1`), on a tenth of the training flights, {len(without)} "
        f"seeds, 2 000 updates: mean R² {sum(without) / len(without):.3f} without, {sum(with_it) / len(with_it):.3f} "
        f"with them; they change it by {mean:+.4f} [{low:+.4f}, {high:+.4f}]."
    )


def loaders() -> str:
    """Tell how fast windows are brought on each path, and what that leaves of the model's pace."""
    rows = [
        (
            f"`loader={row['path']}`",
            f"{row['loader']:,}",
            f"{row['over_per_item']:.0f}x",
            f"{row['model']:,}",
            f"{row['both']:,}",
            f"{row['of_model']:.0%} [{row['low']:.0%}, {row['high']:.0%}]",
            f"{row['bytes'] / row['raw_bytes']:.2f}",
        )
        for row in read("bench_telemetry")["rows"]
    ]
    head = ("windows per second", "loader alone", "over per_item", "model alone", "both", "both of the model's")
    return grid((*head, "memory over the raw series"), rows)


def tables() -> str:
    """Join all tables with the sentences between them."""
    machine = read("bench_update")["machine"]
    return "\n\n".join(
        (
            published(),
            "Ours trained on less than they are tested on: one follower, 1 s steps, reward prices of their own and "
            "wider obstacles (`leader_follower_published` in `uavlab/experiment/presets.py`). The test is the "
            "published one.",
            "\\* with the weights that were shipped; the paper's figures give no completion. "
            "The published program counts a flight from step 0, ours every step: 0.4 % more steps, the same flights. "
            "Records: `figures/records/published_*.json`.",
            quick(),
            "Records: `figures/records/quick*.json`.",
            mapping(),
            "‡ mean and standard deviation over missions: the paper's table, and its program run again for the plans. "
            "Ours: records `figures/records/mapping_*.json`.",
            maps(),
            telemetry(),
            f"{physics()} Records: `figures/records/telemetry_*.json`.",
            loaders(),
            "`uavlab bench telemetry`: 256 windows of 200 rows, float32, eager; `per_item` in one process.",
            update(),
            "† as it was measured once, on another machine: read it as a scale, not as a ratio. "
            "Batch 128, hidden 256, float32, eager; medians of interleaved rounds: `uavlab bench update`.",
            ladder(),
            "`uavlab bench ladder`, a process for each number of threads. The ceiling is the time of an update's "
            "matrix products alone, at the rate measured for their own shapes; compiling takes its time once.",
            told_claims(),
            "`uavlab claims` shows all of them, each with the command that measures it again, and "
            "[notebooks/08_claims.ipynb](notebooks/08_claims.ipynb) draws them.",
            env(),
            f"`uavlab bench env`. Measured on {machine['cpu']}, torch {machine['torch']}, one thread. "
            "How to re-make every record is in [CONTRIBUTING.md](CONTRIBUTING.md).",
        )
    )


def proofs() -> str:
    """Tell what each proof found, and how to run it again."""
    record = read("proofs")
    machine = record["machine"]
    costs = " and ".join(
        f"{100 * (row['guarded_over_plain'] - 1):.1f} % with {row['agents']} agents"
        for row in read("bench_guard")["rows"]
    )
    rows = [(name, found["figure"], f"`pytest {found['test']}`") for name, found in sorted(record["figures"].items())]
    return "\n\n".join(
        (
            grid(("what", "figure", "command"), rows),
            f"The guard costs {costs}, of an update of `leader_follower_quick` on one thread: `uavlab bench guard`.",
            f"On {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}; the "
            "commit of each figure stands in `figures/records/proofs.json`. How to run them all at once is in "
            "[CONTRIBUTING.md](CONTRIBUTING.md). A figure of 0 among n means a true rate below 3/n, with 95 % "
            "confidence.",
        )
    )


def block(name: str = "README.md") -> str:
    """Give what stands in a file between its two marks."""
    begin, end = MARKS[name]
    return f"{begin}\n\n{tables() if name == 'README.md' else proofs()}\n\n{end}"


def write(name: str) -> None:
    """Put a file's tables into it."""
    begin, end = MARKS[name]
    text = (ROOT / name).read_text(encoding="utf-8")
    (ROOT / name).write_text(text.split(begin)[0] + block(name) + text.split(end)[1], encoding="utf-8")


if __name__ == "__main__":
    for file in MARKS:
        if "--write" in sys.argv:
            write(file)
        else:
            print(block(file))
