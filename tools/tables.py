"""Print the tables of README and RELIABILITY from figures/records; ``--write`` puts them into their files.

A record holds its machine, commit and command; those of claims and proofs hold a commit for each row.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uavlab.benchmarks.claims import report
from uavlab.benchmarks.claims.ledger import ledger
from uavlab.core.bootstrap import interval

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "figures" / "records"
MARKS = {
    "README.md": ("<!-- tables: made by tools/tables.py -->", "<!-- end of tables -->"),
    "RELIABILITY.md": ("<!-- proofs: made by tools/tables.py -->", "<!-- end of proofs -->"),
}
CLAIMS = (  # a selection of the claims: each verdict, and the best known ones
    *("cached-forwards", "stage-1", "duplicate-waste-4", "amp-speed", "prefetch", "compile", "total"),
    *("cpu-not-applicable", "full-hours", "budget-10-missions", "budget-8", "throughput-drop", "prenormalised"),
    *("slow-env", "interval-10", "equal-updates", "eight-devices"),
)
Rows = Iterable[Mapping[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Read one record."""
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, line: str, rows: Rows, first: str = "", last: Iterable[str] = ()) -> str:
    """Format rows as a Markdown table.

    Args:
        head: The columns' names, separated by ``|``.
        line: A format string for each row.
        rows: Values by their names in ``line``.
        first: A line before the rows.
        last: Lines after the rows.
    """
    marks = " | ".join("---" for _ in head.split("|"))
    lines = [head, marks, *filter(None, [first]), *(line.format(**row) for row in rows), *last]
    return "\n".join(f"| {each} |" for each in lines)


def interval_of(key: str, shape: str) -> str:
    """Return the format string of a mean with its interval."""
    return f"{{{key}[mean]:{shape}}} [{{{key}[low]:{shape}}}, {{{key}[high]:{shape}}}]"


def trained_rows(name: str, **more: str) -> list[dict[str, Any]]:
    """Return the rows of a record of trained runs, each with its run's seed, seconds and minutes."""
    record = read(name)
    return [
        {**row, **more, "seed": run["seeds"][0], "seconds": run["seconds"], "minutes": run["seconds"] / 60}
        for row, run in zip(record["rows"], record["trained"], strict=True)
    ]


def ladder_rows() -> list[dict[str, Any]]:
    """Return the loop, the best setting in float32 and the best of all, for each team and thread count."""
    rows, records = [], read("bench_ladder")["rows"]
    for loop in (row for row in records if row["setting"] == "loop"):
        same = [row for row in records if (row["agents"], row["threads"]) == (loop["agents"], loop["threads"])]
        (best,) = (row for row in same if row["best"])
        exact = min((row for row in same if "bf16" not in row["setting"]), key=lambda row: row["ms"])
        paid = best["paid_back"]
        repaid = "never" if paid is None else f"{paid:,} updates" if paid else "at once"
        rows.append({"loop": loop, "exact": exact, "best": best, "repaid": repaid})
    return rows


def physics() -> dict[str, Any]:
    """Return the change of R² by equations of flight in the loss, on a tenth of the flights."""
    without, with_it = (read(f"telemetry_{name}")["rows"][0]["mean_r2"]["each"] for name in ("tenth", "physics"))
    change, low, high = interval([b - a for a, b in zip(without, with_it, strict=True)])
    means = {"without": sum(without) / len(without), "with_it": sum(with_it) / len(with_it)}
    return {"seeds": len(without), **means, "change": change, "low": low, "high": high}


def claims() -> str:
    """Return the claims about speed with what was measured here, and a count of all verdicts."""
    rows = report.rows(ledger(), read("claims_intel-xeon-processor-2-cores"))
    head = "claim | claimed | device | measured | verdict"
    text = table(head, "", [], last=[" | ".join(report.texts(row)) for row in rows if row["claim"] in CLAIMS])
    why = "A claim about a GPU has no verdict from a CPU. A verdict may rest on arithmetic; then its note says so."
    return f"{text}\n\n{report.count_verdicts(rows)}. {why}"


def followers() -> list[str]:
    """Return the scores of trained leader-follower teams."""
    return [
        table(
            "the published test: 1 + 4, 0.1 s steps | completion | strict formation | steps | path (px) | energy",
            "ours, seed {seed}, {label}, {minutes:.0f} min of training | "
            + " | ".join(
                interval_of(*column)
                for column in (
                    *(("completion", ".3f"), ("formation_strict", ".2f"), ("flight_time", ".0f"), ("path", ".0f")),
                    ("energy", ".0f"),
                )
            ),
            trained_rows("published_sampled", label="sampled actions")
            + trained_rows("published_mean", label="mean action"),
            first="published MASAC, sampled actions | 0.85 * | 0.32 | 265 | 454 | 294",
        ),
        "Ours trained on less than they are tested on: one follower, 1 s steps, reward prices of their own and "
        "wider obstacles (`leader_follower_published` in `uavlab/experiment/presets.toml`). The test is the "
        "published one.",
        "\\* with the weights that were shipped; the paper's figures give no completion. "
        "The published program counts a flight from step 0, ours every step: 0.4 % more steps, the same flights. "
        "Records: `figures/records/published_*.json`.",
        table(
            "1 + 1, 1 s steps | training (s) | completion | strict formation",
            "`leader_follower_quick`, {label}, seed {seed} | {seconds:.0f} | "
            f"{interval_of('completion', '.3f')} | {interval_of('formation_strict', '.2f')}",
            trained_rows("quick", label="8 000 updates") + trained_rows("quick_12_minutes", label="12 minutes"),
        ),
        "Records: `figures/records/quick*.json`.",
    ]


def mapping() -> list[str]:
    """Return the map quality of missions, and the time of their steps."""
    maps = read("bench_maps")["rows"]
    plans = {"information_gain": "information gain", "sweep": "sweep", "random": "random"}
    return [
        table(
            "4 UAVs, 15 measurements each, 50 missions | weighted entropy (bit) | F1",
            f"{{title}} | {interval_of('entropy', '.3f')} | {interval_of('f1', '.3f')}",
            [
                *(
                    {**r, "title": f"`mapping_quick`, {r['minutes']:.0f} min of training"}
                    for r in trained_rows("mapping_quick")
                ),
                *({**read(f"mapping_{plan}")["rows"][0], "title": title} for plan, title in plans.items()),
            ],
            last=(
                "published: COMA, 50 missions ‡ | 0.284 ± 0.041 | 0.786 ± 0.031",
                "published: information gain, 20 missions ‡ | 0.515 ± 0.080 | 0.771 ± 0.027",
                "published: random, 20 missions ‡ | 0.733 ± 0.068 | 0.647 ± 0.058",
            ),
        ),
        "‡ mean and standard deviation over missions: the paper's table, and its program run again for the plans. "
        "Ours: records `figures/records/mapping_*.json`.",
        table(
            "maps | setting | missions | team step (ms per mission) | over the host",
            "{path} | {setting} | {missions} | {team_step_ms:.1f} | **{over_host:.1f}x**",
            maps,
        ),
        "`uavlab bench maps`: 493 x 493 cells, 4 UAVs, without the policy; "
        f"{maps[-1]['bytes_per_mission'] / 2**20:.1f} MiB of state per mission.",
        table(
            "published network, 336 moves, 5 passes | training step (s) | per 300 moves (s) | over plain",
            "{setting} | {s:.1f} | {s_per_300:.1f} | {over_plain:.1f}x",
            read("bench_missions")["rows"],
        ),
        "`uavlab bench missions`. The published program took 13.0 s per 300 moves on one core of another machine.",
    ]


def telemetry() -> list[str]:
    """Return how well hidden states of flights are predicted, and how fast windows are loaded."""
    linear = {**read("telemetry_ridge")["rows"][0], "title": "ridge regression on the same windows"}
    *targets, tracking = linear["r2"]
    return [
        table(
            f"R² on 90 unseen flights | mean | {' | '.join(targets).replace('_', ' ')} | error in 0.5 s",
            "{title} | **{mean_r2[mean]:.3f}** | "
            + " | ".join(f"{{r2[{target}][mean]:.2f}}" for target in (*targets, tracking)),
            [
                *(
                    {**row, "title": "`telemetry_full`, seed {seed}, {minutes:.0f} min of training".format(**row)}
                    for row in trained_rows("telemetry_full")
                ),
                linear,
            ],
        ),
        "Equations of flight in the loss (`--set physics=0.1`), on a tenth of the training flights, {seeds} "
        "seeds, 2 000 updates: mean R² {without:.3f} without, {with_it:.3f} "
        "with them; they change it by {change:+.4f} [{low:+.4f}, {high:+.4f}]. "
        "Records: `figures/records/telemetry_*.json`.".format(**physics()),
        table(
            "windows per second | loader alone | over per_item | model alone | both | both of the model's | "
            "memory over the raw series",
            "`loader={path}` | {loader:,} | {over_per_item:.0f}x | {model:,} | {both:,} | "
            "{of_model:.0%} [{low:.0%}, {high:.0%}] | {memory:.2f}",
            [{**row, "memory": row["bytes"] / row["raw_bytes"]} for row in read("bench_telemetry")["rows"]],
        ),
        "`uavlab bench telemetry`: 256 windows of 200 rows, float32, eager; `per_item` in one process.",
    ]


def speed() -> list[str]:
    """Return how fast updates and environments are, and the verdicts on claims about speed."""
    updates = read("bench_update")
    return [
        table(
            "agents | original program † (ms) | loop (ms) | batched (ms) | batched over loop | operators",
            "{loop[agents]} | {loop[original_ms]:.1f} | {loop[ms]:.1f} | {batched[ms]:.1f} | "
            "**{batched[batched_over_loop]:.2f}x** | {loop[ops]:,} / {batched[ops]:,}",
            [
                {"loop": loop, "batched": batched}
                for loop, batched in zip(updates["rows"][::2], updates["rows"][1::2], strict=True)
            ],
        ),
        "† as it was measured once, on another machine: read it as a scale, not as a ratio. "
        "Batch 128, hidden 256, float32, eager; medians of interleaved rounds: `uavlab bench update`.",
        table(
            "agents | threads | loop (ms) | best in fp32 (ms) | best (ms) | best over loop | which is | "
            "fp32: share of its ceiling | warm-up repaid after",
            "{loop[agents]} | {loop[threads]} | {loop[ms]:.1f} | {exact[ms]:.1f} | {best[ms]:.1f} | "
            "**{best[over_loop]:.2f}x** | {best[setting]} | {exact[share]:.0%} | {repaid}",
            ladder_rows(),
        ),
        "`uavlab bench ladder`, a process for each number of threads. The ceiling is the time of an update's "
        "matrix products alone, at the rate measured for their own shapes; compiling takes its time once.",
        claims(),
        "`uavlab claims` shows all of them, each with the command that measures it again, and "
        "[notebooks/08_claims.ipynb](notebooks/08_claims.ipynb) draws them.",
        table(
            "`advance`, whole | agents | worlds | agent-steps per second",
            "{setting} | {agents} | {worlds} | {millions:.1f} million",
            [{**row, "millions": row["agent_steps_per_s"] / 1e6} for row in read("bench_env")["rows"]],
        ),
        "`uavlab bench env`. Measured on {cpu}, torch {torch}, one thread. "
        "How to re-make every record is in [CONTRIBUTING.md](CONTRIBUTING.md).".format(**updates["machine"]),
    ]


def proofs() -> list[str]:
    """Return the result of each proof, and how to run it again."""
    record = read("proofs")
    costs = " and ".join(
        f"{100 * (row['guarded_over_plain'] - 1):.1f} % with {row['agents']} agents"
        for row in read("bench_guard")["rows"]
    )
    rows = [{"name": name, **proof} for name, proof in sorted(record["figures"].items())]
    return [
        table("what | figure | command", "{name} | {figure} | `pytest {test}`", rows),
        f"The guard costs {costs}, of an update of `leader_follower_quick` on one thread: `uavlab bench guard`.",
        "On {cpu}, {cores} cores, torch {torch}, Python {python}; the "
        "commit of each figure stands in `figures/records/proofs.json`. How to run them all at once is in "
        "[CONTRIBUTING.md](CONTRIBUTING.md). A figure of 0 among n means a true rate below 3/n, with 95 % "
        "confidence.".format(**record["machine"]),
    ]


def tables() -> list[str]:
    """Return all tables of the README with the sentences between them."""
    return [*followers(), *mapping(), *telemetry(), *speed()]


PARTS = {"README.md": tables, "RELIABILITY.md": proofs}


def block(name: str = "README.md") -> str:
    """Return the text of a file between its two marks."""
    begin, end = MARKS[name]
    return "\n\n".join([begin, *PARTS[name](), end])


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
